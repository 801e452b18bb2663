"""What predictions are judged by: metrics with their direction, and one evaluator for each kind of
task.

An evaluator adds up sums of each part where its rows lie and makes metrics of the sums in the
driver, whose memory does not grow with the rows. Of clusters, which have no target, the features
take its place.
"""

import functools
import importlib.metadata
import itertools
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from tipcast.compute.base import Array, module_of
from tipcast.config.errors import TipcastError
from tipcast.datasets.counts import Counts
from tipcast.evaluation.sums import (
    Interval,
    Parts,
    Sums,
    added,
    half_width,
    root_slope,
    summed,
    values_of,
)
from tipcast.tasks.kinds import Kind

SHOWN = 5
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
    """What titles call a headline."""
    ranks: bool = True
    """Whether models may be ranked by it: a bias is best in the middle."""


@dataclass(frozen=True)
class Evaluation:
    """How good predictions are; each kind adds what its figures are drawn from."""

    metrics: Mapping[str, float]
    """The headline first, those of users last."""
    interval: Interval
    """Confidence interval of the headline."""
    sums: Any
    """What the metrics are of, see ``Evaluator.sums``."""
    threshold: float | None = field(default=None, kw_only=True)
    """Scores at or above it are called positive; None where no score is called anything."""
    trial_curve: Sequence[float] = field(default=(), kw_only=True)
    """True-positive rates at even false-positive rates, of two classes: MLflow draws those of
    several runs together.
    """

    @property
    def rows(self) -> int:
        """Rows evaluated."""
        return int(self.sums.rows)

    @property
    def headline(self) -> float:
        """The value that models are ranked by."""
        return next(iter(self.metrics.values()))

    @property
    def shown(self) -> dict[str, float]:
        """The first ``SHOWN`` metrics."""
        return dict(itertools.islice(self.metrics.items(), SHOWN))


class Evaluator(ABC):
    """Judges predictions of one kind; without state, so that it travels to workers for nothing."""

    kind: ClassVar[Kind]
    sums: ClassVar[type[Sums]]
    """What ``count`` returns."""
    metrics: ClassVar[tuple[Metric, ...]]
    """The headline first."""
    plots: ClassVar[tuple[str, ...]]
    """Functions of ``evaluation.plots`` that draw evaluations, the leading figure first."""
    odd_predictions: ClassVar[tuple[str, str]] = (
        "predictions are not finite",
        "check the model and its input",
    )
    """What D030 says of rows whose prediction cannot be, and how to mend it."""
    odd_targets: ClassVar[str] = "targets are not finite"
    """What D031 says of rows whose target cannot be; formatted with the ``sums``."""
    threshold: ClassVar[float | None] = None
    """Threshold that holds without validation rows to choose a better one on."""
    loss: Loss
    """(rows,) values of predictions and target whose mean is the headline, or its square; where it
    is such a mean.
    """
    root: ClassVar[bool] = False
    """Whether the headline is the root of the mean ``loss``, not the mean itself."""

    @property
    def headline(self) -> Metric:
        """What models are ranked by."""
        return self.metrics[0]

    @property
    def figure(self) -> str:
        """Artifact path of the leading figure."""
        return f"plots/{self.plots[0]}.png"

    def evaluate(
        self,
        client: Any,
        predictions: Sequence[Any],
        targets: Sequence[Any],
        *,
        threshold: float | None = None,
        where: str = "predictions",
    ) -> Any:
        """Evaluate predictions without bringing rows to the driver.

        D014 no rows; D015 one class only; D030 predictions that cannot be; D031 targets that cannot
        be.

        ``predictions`` are futures of what ``Scorer.score`` returns for the kind, ``targets`` of
        (rows,) Series or arrays in the same order, for clustering of (rows, features) frames;
        ``client`` None: not futures, but arrays of this process. Two classes: scores at or above
        ``threshold`` are positive; None takes the most accurate. ``where`` is the data's name in
        error messages.
        """
        load_entry_points()
        parts = Parts((predictions, targets), client, where)
        registered = OWN[self.kind.name]
        sums: Sums = parts.add(functools.partial(self.count, threshold=threshold), self.total)
        self._check_rows(sums, where)

        evaluation: Evaluation = self._evaluate(parts, sums, threshold)
        if not registered:
            return evaluation

        totals = parts.add(functools.partial(_row_sums, registered), summed)
        means = {
            metric.name: total / sums.scored
            for metric, total in zip(registered, totals, strict=True)
        }
        return replace(evaluation, metrics={**evaluation.metrics, **means})

    def _check_rows(self, sums: Sums, where: str) -> None:
        """Refuse no rows, D014, predictions, D030, and targets, D031, that cannot be."""
        rows = sums.scored + sums.not_numbers
        if not rows:
            fix = "take a longer period or a weaker filter"
            raise TipcastError("D014", where, "no rows to evaluate", fix)

        if sums.not_numbers:
            what, fix = self.odd_predictions
            raise TipcastError("D030", where, f"{sums.not_numbers} of {rows} {what}", fix)

        if sums.unknown:
            what = f"{sums.unknown} of {rows} {self.odd_targets.format(sums=sums)}"
            raise TipcastError("D031", where, what, "check the target")

    def evaluate_here(self, predictions: Array, target: Any) -> Any:
        """Evaluate rows of this process: a trial; see ``evaluate``."""
        return self.evaluate(None, [predictions], [target])

    def _evaluate(self, parts: Parts, sums: Any, threshold: float | None) -> Any:
        """Evaluate parts whose sums are good, in as many more passes as it takes."""
        return self.of_sums(sums, threshold)

    def difference(
        self, parts: Parts, evaluations: tuple[Evaluation, Evaluation]
    ) -> tuple[float, Interval]:
        """Compare two models' headline on the same rows, the first less the second, with its 95 %
        interval.

        ``parts`` are both models' predictions and the targets, see ``evaluate``; ``evaluations``
        are of these. The interval is of the mean of rows' differences, of a root by the delta
        method (see ``mean_interval``).
        """
        slopes = [root_slope(evaluation.headline, self.root) for evaluation in evaluations]
        sums = parts.add(functools.partial(_difference_sums, self.loss, slopes), summed)
        half = half_width(*sums)
        value = evaluations[0].headline - evaluations[1].headline
        return value, Interval(value - half, value + half)

    def figures(
        self, named: Mapping[str, Any], subtitle: str, classes: Sequence[str] = ()
    ) -> Iterator[Any]:
        """Draw named evaluations: yield (artifact path, PNG).

        The leading figure comes first, and has room for several of some kinds; the others are of
        the first evaluation.
        """
        # Matplotlib takes half a second, which workers need not spend
        from tipcast.evaluation import plots

        for name in self.plots:
            yield f"plots/{name}.png", getattr(plots, name)(named, subtitle, classes)

    def baseline(self, evaluation: Any, trained: Counts, tested: Counts) -> dict[str, float]:
        """Return the metrics of a prediction without features: of classes their shares in the
        training rows.
        """
        if not trained.classes:
            return {}
        eps = float(np.finfo(np.float64).eps)  # as scikit-learn clips
        of_classes = np.clip(np.asarray(trained.classes) / trained.rows, eps, 1 - eps)
        log_loss = -float(np.dot(tested.classes, np.log(of_classes))) / tested.rows
        return {
            "accuracy": tested.classes[int(of_classes.argmax())] / tested.rows,
            "log_loss": log_loss,
        }

    def details(self, evaluation: Any, classes: Sequence[str] = ()) -> dict[str, float]:
        """Return metrics of single classes or clusters; of many none."""
        return {}

    def tables(self, evaluation: Any, classes: Sequence[str] = ()) -> Tables:
        """Return what is kept as tables: artifact path -> columns."""
        return {}

    @abstractmethod
    def count(
        self, predictions: Array, target: Any = None, *, threshold: float | None = None
    ) -> Any:
        """Count a part's rows while they are scored: sums that ``total`` adds up, on the host.

        ``target`` is (rows,) with -1 (classes) or NaN (numbers) where it is not known; None: of no
        row. Of two classes, scores at or above ``threshold`` are called positive.
        """

    def total(self, parts: Sequence[Any]) -> Any:
        """Return the sums of several parts."""
        return self.sums(**added([self.sums(), *parts]))

    @abstractmethod
    def summary(self, sums: Any, classes: Sequence[str] = ()) -> dict[str, float]:
        """Return what is logged of predictions whether or not their targets are known, as
        ``mean``.
        """

    def of_sums(self, sums: Any, threshold: float | None = None) -> Any:
        """Evaluate the counted rows whose target is known; None where that is not possible, or
        there is no target.
        """
        return None


def _difference_sums(
    loss: Loss, slopes: Sequence[float], first: Any, second: Any, target: Any
) -> list[float]:
    """Return the rows of a part, the sum of what each moves the difference of two headlines by, and
    of its square.
    """
    truth = values_of(target)
    first_loss = slopes[0] * loss(values_of(first), truth)
    differences = first_loss - slopes[1] * loss(values_of(second), truth)
    squares = module_of(differences).dot(differences, differences)
    return [float(len(differences)), float(differences.sum()), float(squares)]


def logged(
    judge: Evaluator, evaluation: Evaluation, split: str, classes: Sequence[str] = ()
) -> dict[str, float]:
    """Return a split's metrics by their keys in MLflow: headline, others, bounds of its interval,
    those of classes.
    """
    metrics = {f"{split}/{name}": value for name, value in evaluation.metrics.items()}
    metrics |= bounds(evaluation.interval, f"{split}/{judge.headline.name}")
    return metrics | {
        f"{split}/{name}": value for name, value in judge.details(evaluation, classes).items()
    }


def keys(names: Sequence[str]) -> list[str]:
    """Return names of classes as parts of MLflow's keys: other characters become ``_``, and equal
    ones get a number.
    """
    unique: list[str] = []
    for name in names:
        plain = re.sub(r"[^\w.\-: ]", "_", name)[:100].strip()  # MLflow allows 250 letters in a key
        plain = plain if plain.strip(".") else "_"  # keys are paths to MLflow
        numbered = (f"{plain}_{number}" for number in itertools.count(2))
        key = next(key for key in itertools.chain([plain], numbered) if key not in unique)
        unique.append(key)
    return unique


def bounds(interval: Interval, key: str) -> dict[str, float]:
    """Return an interval's bounds by their keys in MLflow."""
    return {f"{key}_low": interval.low, f"{key}_high": interval.high}


# Metrics of users

OWN: dict[str, dict[Metric, RowMetric]] = defaultdict(dict)
"""Kind -> a user's metric -> what computes a value of each row."""


@functools.cache
def load_entry_points() -> None:
    for point in importlib.metadata.entry_points(group="tipcast.metrics"):
        point.load()


def _row_sums(metrics: Mapping[Metric, RowMetric], predictions: Any, target: Any) -> list[float]:
    """Return the sum of each metric's values of a part's rows."""
    predicted = values_of(predictions)
    truth = values_of(target)[:]
    sums = []
    xp = module_of(predicted)

    for metric, function in metrics.items():
        values = xp.asarray(function(truth, predicted))
        if values.shape != (len(predicted),):
            what = f"returned {values.shape} of {len(predicted)} rows"
            raise TipcastError(
                "C003", f"metric {metric.name}", what, "return one value for each row"
            )
        sums.append(float(values.sum(dtype=xp.float64)))

    return sums
