"""Metrics with their direction, and one evaluator for each kind of task.

An evaluator counts sums of each part on the worker that holds it. One worker adds up the sums of
all parts. The driver computes metrics from the total, so that its memory does not grow with the
rows. Clusters have no target: the features take its place.
"""

import functools
import importlib.metadata
import itertools
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tipcast.compute.base import Array, Frame, module_of
from tipcast.config.errors import TipcastError
from tipcast.datasets.counts import Counts
from tipcast.evaluation.sums import (
    Interval,
    PartedColumns,
    PartValues,
    Sums,
    half_width_of,
    mean_sums,
    root_slope,
    sum_columns,
    sum_fields,
    values_of,
    weighted_rows,
)
from tipcast.tasks.kinds import Kind

if TYPE_CHECKING:
    from distributed import Client

LEADING_METRICS = 5
"""Metrics that a job's last lines, a version's page and a promotion show: the first of an
evaluation.
"""
Loss = Callable[[Array, Array], Array]
"""(rows,) losses, of predictions and then targets."""
RowMetric = Callable[[Array, Array], Array]
"""(rows,) values of a metric of a user's own, of targets and then predictions."""
Tables = dict[str, dict[str, list[Any]]]
"""Artifact path -> columns."""


@dataclass(frozen=True)
class Metric:
    """A number that says how good predictions are, and which way is better."""

    name: str
    """Its key below a split, as ``auc`` of ``test/auc``."""
    maximize: bool
    label: str = ""
    """The headline's name in titles."""
    ranks: bool = True
    """Whether models may be ranked by it: a bias is best in the middle."""


@dataclass(frozen=True)
class Evaluation:
    """How good predictions are; each kind adds the data of its figures."""

    metrics: Mapping[str, float]
    """The headline first, those of users last."""
    interval: Interval
    """Confidence interval of the headline."""
    sums: Any
    """The sums that the metrics are computed from, see ``Evaluator.sums``."""
    threshold: float | None = field(default=None, kw_only=True)
    """Scores at or above it are called positive; None unless there are two classes."""
    trial_curve: Sequence[float] = field(default=(), kw_only=True)
    """For two classes, true-positive rates at even false-positive rates: MLflow draws the curves of
    several runs together.
    """

    @property
    def rows(self) -> int:
        """Rows evaluated."""
        return int(self.sums.rows)

    @property
    def headline_value(self) -> float:
        """The value that models are ranked by."""
        return next(iter(self.metrics.values()))

    @property
    def leading_metrics(self) -> dict[str, float]:
        """The first ``LEADING_METRICS`` metrics."""
        return dict(itertools.islice(self.metrics.items(), LEADING_METRICS))


class Evaluator(ABC):
    """Evaluates predictions of one kind. It has no state, so that sending it costs nothing."""

    kind: ClassVar[Kind]
    sums: ClassVar[type[Sums]]
    """Type of the sums that ``count`` returns."""
    metrics: ClassVar[tuple[Metric, ...]]
    """The headline first."""
    plots: ClassVar[tuple[str, ...]]
    """Functions of ``evaluation.plots`` that draw evaluations, the leading figure first."""
    odd_predictions: ClassVar[tuple[str, str]] = (
        "predictions are not finite",
        "check the model and its input",
    )
    """What D030 says of rows with an impossible prediction, and how to fix it."""
    odd_targets: ClassVar[str] = "targets are not finite"
    """What D031 says of rows with an impossible target; formatted with the ``sums``."""
    threshold: ClassVar[float | None] = None
    """Threshold without validation rows to choose a better one on."""
    loss: Loss
    """Loss of each row, whose mean is the headline or the square of it; only of evaluators whose
    headline is such a mean.
    """
    root: ClassVar[bool] = False
    """Whether the headline is the root of the mean ``loss``, not the mean itself."""

    @property
    def headline_metric(self) -> Metric:
        """The metric by which models are ranked."""
        return self.metrics[0]

    @property
    def figure(self) -> str:
        """Artifact path of the leading figure."""
        return f"plots/{self.plots[0]}.png"

    def evaluate(
        self,
        client: "Client | None",
        predictions: PartValues,
        targets: PartValues,
        *,
        weights: PartValues | None = None,
        threshold: float | None = None,
        where: str = "predictions",
    ) -> Any:
        """Evaluate predictions without bringing rows to the driver.

        ``predictions`` are futures of what ``Scorer.score`` returns for the kind; ``targets`` are
        futures of (rows,) Series or arrays in the same order, for clustering of (rows, features)
        frames. ``weights`` are futures of (rows,) Series or arrays of finite weights, at least 0:
        metrics are those of scikit-learn with ``sample_weight``, and a row of weight 0 counts for
        nothing. If ``client`` is None, all are arrays of this process, not futures. With two
        classes, scores at or above ``threshold`` are positive; None takes the most accurate one.
        ``where`` is the data's name in error messages.

        Raises D014 without rows or if all weights are 0, D015 for one class only, D030 for
        impossible predictions, D031 for impossible targets.
        """
        load_entry_points()
        columns = [predictions, targets]
        if weights is not None:
            columns.append(weights)
        parts = PartedColumns(columns, client, where)
        registered = OWN[self.kind.name]
        sums: Sums = parts.map_reduce(
            functools.partial(self.count, threshold=threshold), self.total
        )
        self._check_rows(sums, where)

        evaluation: Evaluation = self._evaluate(parts, sums, threshold)
        if not registered:
            return evaluation

        totals = parts.map_reduce(functools.partial(_row_sums, registered), sum_columns)
        means = {
            metric.name: total / sums.weight
            for metric, total in zip(registered, totals, strict=True)
        }
        return replace(evaluation, metrics={**evaluation.metrics, **means})

    def _check_rows(self, sums: Sums, where: str) -> None:
        """Refuse no rows (D014), impossible predictions (D030) and impossible targets (D031)."""
        rows = sums.scored + sums.impossible_predictions
        if not rows:
            fix = "use a longer period or a weaker filter"
            raise TipcastError("D014", where, "no rows to evaluate", fix)

        if sums.impossible_predictions:
            what, fix = self.odd_predictions
            raise TipcastError(
                "D030", where, f"{sums.impossible_predictions} of {rows} {what}", fix
            )

        if sums.unknown:
            what = f"{sums.unknown} of {rows} {self.odd_targets.format(sums=sums)}"
            raise TipcastError("D031", where, what, "check the target")

        if not sums.weight:
            what = f"the weights of all {rows} rows are 0"
            raise TipcastError("D014", where, what, "use rows whose weight is above 0")

    def evaluate_here(
        self,
        predictions: Array,
        target: Array | Frame,
        weight: Array | Frame | None = None,
        threshold: float | None = None,
    ) -> Any:
        """Evaluate rows of this process, as a trial's; see ``evaluate``."""
        weights = None if weight is None else [weight]
        return self.evaluate(None, [predictions], [target], weights=weights, threshold=threshold)

    def _evaluate(self, parts: PartedColumns, sums: Any, threshold: float | None) -> Any:
        """Evaluate parts whose sums have been checked; subclasses may pass over the rows again."""
        return self.of_sums(sums, threshold)

    def difference(
        self, parts: PartedColumns, evaluations: tuple[Evaluation, Evaluation]
    ) -> tuple[float, Interval]:
        """Compare two models' headline on the same rows, the first less the second, with its 95 %
        interval.

        ``parts`` are the predictions of both models, the targets, and the weights if there are
        some, see ``evaluate``; ``evaluations`` are those of the models, with the same weights. The
        interval is that of the mean difference of rows, for a root by the delta method (see
        ``mean_interval``).
        """
        slopes = [root_slope(evaluation.headline_value, self.root) for evaluation in evaluations]
        sums = parts.map_reduce(functools.partial(_difference_sums, self.loss, slopes), sum_columns)
        half = half_width_of(sums)
        value = evaluations[0].headline_value - evaluations[1].headline_value
        return value, Interval(value - half, value + half)

    def figures(
        self,
        evaluations: Mapping[str, Evaluation],
        subtitle: str,
        classes: Sequence[str] = (),
        target: str = "",
    ) -> Iterator[Any]:
        """Draw evaluations, by their names: yield (artifact path, PNG).

        The leading figure comes first; some kinds show several evaluations in it. The other figures
        show the first evaluation. ``target`` is the target's name, see ``Task.target_name``.
        """
        # Matplotlib takes half a second, which workers need not spend
        from tipcast.evaluation import plots

        for name in self.plots:
            yield f"plots/{name}.png", getattr(plots, name)(evaluations, subtitle, classes, target)

    def baseline(self, evaluation: Evaluation, trained: Counts, tested: Counts) -> dict[str, float]:
        """Return the metrics of a prediction without features: for classes, their shares in the
        training rows, by weight if rows have weights.
        """
        if not trained.classes:
            return {}

        eps = float(np.finfo(np.float64).eps)  # as scikit-learn clips
        class_shares = np.clip(trained.class_shares, eps, 1 - eps)
        tested_weights = tested.class_weights or tested.classes
        tested_weight = tested.weight or tested.rows
        log_loss = -float(np.dot(tested_weights, np.log(class_shares))) / tested_weight
        return {
            "accuracy": tested_weights[int(class_shares.argmax())] / tested_weight,
            "log_loss": log_loss,
        }

    def details(self, evaluation: Evaluation, classes: Sequence[str] = ()) -> dict[str, float]:
        """Return metrics of single classes or clusters; none if there are many."""
        return {}

    def tables(self, evaluation: Any, classes: Sequence[str] = ()) -> Tables:
        """Return tables that are logged: artifact path -> columns."""
        return {}

    @abstractmethod
    def count(
        self,
        predictions: Array,
        target: Array | None = None,
        weights: Array | None = None,
        *,
        threshold: float | None = None,
    ) -> Any:
        """Count a part's rows while they are scored; return sums that ``total`` adds up, on the
        host.

        ``target`` is (rows,), -1 (classes) or NaN (numbers) for rows whose target is unknown; None
        if all are. ``weights`` are (rows,), or None; either all parts have weights or none has.
        With two classes, scores at or above ``threshold`` are called positive.
        """

    def total(self, parts: Sequence[Any]) -> Any:
        """Return the sums of several parts."""
        return self.sums(**sum_fields([self.sums(), *parts]))

    @abstractmethod
    def summary(self, sums: Any, classes: Sequence[str] = ()) -> dict[str, float]:
        """Return metrics of the predictions alone, such as ``mean``: they need no targets."""

    def of_sums(self, sums: Any, threshold: float | None = None) -> Any:
        """Evaluate the counted rows whose target is known; None if that is not possible."""
        return None


def _difference_sums(
    loss: Loss,
    slopes: Sequence[float],
    first: Array | Frame,
    second: Array | Frame,
    target: Array | Frame,
    weights: Array | Frame | None = None,
) -> list[float]:
    """Return the sums of a part's contributions to the difference of two headlines, see
    ``mean_sums``.
    """
    target_values = values_of(target)
    first_loss = slopes[0] * loss(values_of(first), target_values)
    differences = first_loss - slopes[1] * loss(values_of(second), target_values)
    row_weights, differences = weighted_rows(values_of(weights), differences)
    return mean_sums(differences, row_weights)


def logged(
    evaluator: Evaluator, evaluation: Evaluation, split: str, classes: Sequence[str] = ()
) -> dict[str, float]:
    """Return a split's metrics by their keys in MLflow: the evaluation's, the headline first, the
    bounds of the headline, and those of single classes.
    """
    metrics = {f"{split}/{name}": value for name, value in evaluation.metrics.items()}
    metrics |= bounds(evaluation.interval, f"{split}/{evaluator.headline_metric.name}")

    details = evaluator.details(evaluation, classes)
    return metrics | {f"{split}/{name}": value for name, value in details.items()}


def keys(names: Sequence[str]) -> list[str]:
    """Return names of classes as parts of MLflow's keys: characters that MLflow refuses become
    ``_``, and equal names get a number.
    """
    unique: list[str] = []
    for name in names:
        plain = re.sub(r"[^\w.\-: ]", "_", name)[:100].strip()  # MLflow allows 250 letters in a key
        if not plain.strip("."):  # keys are paths to MLflow
            plain = "_"
        numbered = (f"{plain}_{number}" for number in itertools.count(2))
        key = next(key for key in itertools.chain([plain], numbered) if key not in unique)
        unique.append(key)
    return unique


def bounds(interval: Interval, key: str) -> dict[str, float]:
    """Return an interval's bounds by their keys in MLflow."""
    return {f"{key}_low": interval.low, f"{key}_high": interval.high}


# Metrics of users

OWN: dict[str, dict[Metric, RowMetric]] = defaultdict(dict)
"""Kind -> a user's metric -> function that computes a value of each row."""


@functools.cache
def load_entry_points() -> None:
    for point in importlib.metadata.entry_points(group="tipcast.metrics"):
        point.load()


def _row_sums(
    metrics: Mapping[Metric, RowMetric],
    predictions: Array | Frame,
    target: Array | Frame,
    weights: Array | Frame | None = None,
) -> list[float]:
    """Return the sum of each metric's values of a part's rows, times their weights if they have
    some.
    """
    predicted = values_of(predictions)
    target_values = values_of(target)[:]
    sums = []
    xp = module_of(predicted)

    for metric, function in metrics.items():
        values = xp.asarray(function(target_values, predicted))
        if values.shape != (len(predicted),):
            what = f"returned shape {values.shape} for {len(predicted)} rows"
            fix = "return one value for each row"
            raise TipcastError("C003", f"metric {metric.name}", what, fix)
        row_weights, values = weighted_rows(values_of(weights), values)
        if row_weights is not None:
            values = values * row_weights
        sums.append(float(values.sum(dtype=xp.float64)))

    return sums
