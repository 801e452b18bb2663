"""What predictions are judged by: metrics with their direction, and one evaluator for each kind of task.

An evaluator adds up sums of each part where its rows lie (NumPy or CuPy: whatever the part's arrays are of) and makes
metrics of the sums in the driver, whose memory does not grow with the rows. Of clusters, which have no target, the
rows' features take the target's place: see ``judged_by``.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from tipcast.backends.base import Array
from tipcast.backends.host import module_of
from tipcast.config.errors import TipcastError

if TYPE_CHECKING:
    from tipcast.evaluation.paired import Difference

KINDS = ("classification", "multiclass", "regression", "clustering")
ENTRY_POINTS = "tipcast.metrics"
"""Group of entry points that name modules with metrics of users, see ``metric``."""
SHOWN = 5
"""Metrics that a job's last lines, a version's page and a promotion show: the first of an evaluation."""
ROWS = "rows"
"""The last entry of an evaluation's metrics."""
Z95 = 1.959963984540054
"""97.5 % point of the normal distribution."""


@dataclass(frozen=True)
class Interval:
    """An estimate's bounds at 95 % confidence."""

    low: float
    high: float

    def around(self, value: float, digits: int = 4) -> str:
        """Return the estimate with its bounds, as ``0.5886 (0.5774 to 0.5998)``."""
        return f"{value:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


@dataclass(frozen=True)
class Metric:
    """A number that says how good predictions are, and which way is better."""

    name: str
    """Its key below a split, as ``auc`` of ``test/auc``."""
    maximize: bool
    of: Callable[[Any], float] | None = None
    """Computes it of the evaluator's sums over all rows; None: a user's, see ``metric``."""
    label: str = ""
    """In titles, where it is not the name."""

    @property
    def title(self) -> str:
        """What titles call it."""
        return self.label or self.name


@dataclass(frozen=True)
class Estimate:
    """The headline of some rows."""

    value: float
    interval: Interval
    rows: int


@dataclass(frozen=True)
class Evaluation:
    """How good predictions are; each kind adds what its figures are drawn from."""

    metrics: Mapping[str, float]
    """The headline first, ``rows`` last; names with a slash are details, as ``class_0/recall``."""
    interval: Interval
    """Of the headline."""
    threshold: float | None = field(default=None, kw_only=True)
    """Scores at or above it are called positive; None where no score is called anything."""

    @property
    def rows(self) -> int:
        """Rows evaluated."""
        return int(self.metrics[ROWS])

    @property
    def headline(self) -> float:
        """The value that models are ranked by."""
        return next(iter(self.metrics.values()))

    @property
    def trial_curve(self) -> Sequence[float]:
        """What a sweep keeps of each trial to draw them together; empty where there is no such curve."""
        return ()

    def shown(self) -> dict[str, float]:
        """Return the metrics for tables, without details."""
        return {name: value for name, value in self.metrics.items() if name != ROWS and "/" not in name}


class Evaluator(ABC):
    """Judges predictions of one kind; without state, so that it travels to workers for nothing."""

    kind: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]
    """The headline first."""
    interval_remark: ClassVar[str]
    """What the headline's interval is, in a sentence."""
    difference_remark: ClassVar[str]
    """What the interval of two models' difference is, in a sentence."""
    figure: ClassVar[str]
    """Artifact path of the leading figure."""
    threshold: ClassVar[float | None] = None
    """Where there are no validation rows to choose a better one on."""

    @property
    def headline(self) -> Metric:
        """What models are ranked by."""
        return self.metrics[0]

    @abstractmethod
    def evaluate(
        self,
        client: Any,
        predictions: Sequence[Any],
        targets: Sequence[Any],
        *,
        threshold: float | None = None,
        masks: Sequence[Any] | None = None,
        where: str = "predictions",
    ) -> Evaluation:
        """Evaluate predictions without bringing rows to the driver.

        Parameters
        ----------
        client
            A ``distributed.Client``.
        predictions
            Futures of what ``Scorer.score`` returns for the kind.
        targets
            Futures of (rows,) Series or arrays in the same order, for clustering of (rows, features) frames.
        threshold
            Of classification: scores at or above it are called positive; None takes the most accurate.
        masks
            Futures of (rows,) arrays; rows count where the mask is 1 (True). None takes all rows.
        where
            The data's name in error messages.

        Raises
        ------
        TipcastError
            D014 no rows; D015 one class only; D030 predictions that cannot be; D031 targets that cannot be.

        """

    @abstractmethod
    def evaluate_here(self, predictions: Array, target: Any) -> Evaluation:
        """Evaluate rows of this process, unchecked: a trial; see ``evaluate``."""

    def estimate(
        self,
        client: Any,
        predictions: Sequence[Any],
        targets: Sequence[Any],
        masks: Sequence[Any] | None = None,
        where: str = "predictions",
    ) -> Estimate:
        """Return the headline alone, as of a subset of the rows; see ``evaluate``."""
        found = self.evaluate(client, predictions, targets, masks=masks, where=where)
        return Estimate(found.headline, found.interval, found.rows)

    def warm_up(self, predictions: Array, target: Any) -> None:
        """Run on a worker what an evaluation runs there, so that what it compiles is compiled."""
        self.evaluate_here(predictions, target)

    @abstractmethod
    def difference(
        self,
        client: Any,
        first: Sequence[Any],
        second: Sequence[Any],
        targets: Sequence[Any],
        evaluations: tuple[Evaluation, Evaluation],
        *,
        parts: Sequence[int],
        replicates: int,
        seed: int,
    ) -> Difference:
        """Compare two models' headline on the same rows, the first less the second, with an interval.

        Parameters
        ----------
        client
            A ``distributed.Client``.
        first, second
            Futures of both models' predictions of the same rows in the same order.
        targets
            See ``evaluate``.
        evaluations
            Of both, on these rows.
        parts
            Rows of each future.
        replicates, seed
            Of a bootstrap, where the interval is of one.

        Raises
        ------
        TipcastError
            M021 where two models of the kind cannot be compared.

        """

    @abstractmethod
    def lead(
        self,
        evaluation: Any,
        subtitle: str,
        *,
        name: str = "test",
        other: Any = None,
        other_name: str = "validation",
        classes: Sequence[str] = (),
    ) -> bytes:
        """Draw the leading figure; ``other`` is a second evaluation behind it, where the figure has room for one."""

    @abstractmethod
    def figures(self, evaluation: Any, subtitle: str, classes: Sequence[str] = ()) -> dict[str, bytes]:
        """Draw the other figures: artifact path -> PNG."""

    def tables(self, evaluation: Any, classes: Sequence[str] = ()) -> dict[str, dict[str, list[Any]]]:
        """Return what is kept as tables: artifact path -> columns."""
        return {}

    def remark(self, evaluation: Any, *, chosen: bool) -> str:
        """Return what is said below a table of metrics; ``chosen``: whether on validation rows."""
        return self.interval_remark

    @abstractmethod
    def count(
        self,
        predictions: Array,
        target: Any | None,
        *,
        threshold: float | None = None,
        reference: Mapping[str, Any] | None = None,
    ) -> Any:
        """Count a part's rows while they are scored: sums that ``total`` adds up, on the host.

        Parameters
        ----------
        predictions
            Of the part, on any device.
        target
            (rows,) with -1 (classes) or NaN (numbers) where it is not known; None: of no row.
        threshold
            See ``evaluate``.
        reference
            What ``profile`` told of the predictions at training.

        """

    @abstractmethod
    def total(self, parts: Sequence[Any]) -> Any:
        """Return the sums of several parts."""

    @abstractmethod
    def summary(self, sums: Any) -> dict[str, float]:
        """Return what is logged of predictions whether or not their targets are known, as ``mean``."""

    @abstractmethod
    def of_sums(self, sums: Any, threshold: float | None = None) -> Evaluation | None:
        """Evaluate the counted rows whose target is known; None where that is not possible."""

    @abstractmethod
    def histogram(self, counted: Any) -> Any:
        """Return rows by bin of their prediction, of sums or of an evaluation: (bins,) whole numbers."""

    @abstractmethod
    def profile(self, evaluation: Any, split: str) -> dict[str, Any]:
        """Describe held-out rows' predictions for a model's manifest, see ``drift.described``."""


def evaluator(kind: str) -> Evaluator:
    """Return the evaluator of a kind of task."""
    if kind not in KINDS:
        raise TipcastError("C003", "task.kind", f"no such kind: {kind}", f"use {', '.join(KINDS)}")
    if kind == "classification":
        from tipcast.evaluation.classification import Classification

        return Classification()
    if kind == "multiclass":
        from tipcast.evaluation.multiclass import Multiclass

        return Multiclass()
    if kind == "regression":
        from tipcast.evaluation.regression import Regression

        return Regression()
    from tipcast.evaluation.clustering import Clustering

    return Clustering()


def judged_by(rows: Any) -> Sequence[Any]:
    """Return what predictions of rows (``data.rows.Rows``) are judged by: their target, or their features."""
    found: Sequence[Any] = rows.y or rows.x
    return found


def logged(evaluation: Evaluation, split: str, headline: Metric) -> dict[str, float]:
    """Return a split's metrics by their keys in MLflow: the headline first, the bounds of its interval last."""
    found = {f"{split}/{name}": value for name, value in evaluation.metrics.items() if name != ROWS}
    return found | bounds(evaluation.interval, f"{split}/{headline.name}")


def with_own(metrics: Mapping[str, float], own: Mapping[str, float]) -> dict[str, float]:
    """Return metrics with those of users before the number of rows."""
    return {**{name: value for name, value in metrics.items() if name != ROWS}, **own, ROWS: metrics[ROWS]}


def bounds(interval: Interval, key: str) -> dict[str, float]:
    """Return the bounds of an interval by their keys in MLflow."""
    return {f"{key}_low": interval.low, f"{key}_high": interval.high}


# Sums of parts


def values_of(values: Any, mask: Array | None = None) -> Array:
    """Return the array of a Series, a frame or an array, and of it the rows where the mask is 1."""
    array = getattr(values, "values", values)  # a pandas or cuDF Series holds its array there
    return array if mask is None else array[mask == 1]


def added(
    client: Any,
    count: Callable[..., Any],
    total: Callable[[Sequence[Any]], Any],
    columns: Sequence[Sequence[Any]],
    *facts: Any,
) -> Any:
    """Count each part where it lies, and return the total.

    Parameters
    ----------
    client
        A ``distributed.Client``.
    count
        Called with one future of each column and the facts.
    total
        Adds up what ``count`` returned.
    columns
        Lists of futures, part by part alike.
    facts
        The same for all parts.

    """
    if len({len(column) for column in columns}) != 1:
        raise ValueError(f"partitions differ in number: {[len(column) for column in columns]}")
    parts = [client.submit(count, *part, *facts, pure=False) for part in zip(*columns, strict=True)]
    return client.submit(total, parts, pure=False).result()


def mean_interval(rows: int, total: float, squares: float, slope: float = 1.0, value: float | None = None) -> Interval:
    """Return the asymptotic 95 % interval of a mean, or of a function of a mean by the delta method.

    Parameters
    ----------
    rows
        Rows that the mean is of.
    total, squares
        Sums over the rows of the value and of its square.
    slope
        Derivative of the function at the mean.
    value
        Of the function at the mean; None: the mean itself.

    References
    ----------
    van der Vaart (1998), Asymptotic Statistics, chapter 3.

    """
    mean = total / rows
    middle = mean if value is None else value
    if rows < 2:
        return Interval(-math.inf, math.inf)
    variance = max(squares - rows * mean * mean, 0.0) / (rows - 1)
    half = Z95 * abs(slope) * math.sqrt(variance / rows)
    return Interval(middle - half, middle + half)


# Metrics of users

RowFunction = Callable[[Array, Array], Array]

_OWN: dict[str, dict[Metric, RowFunction]] = {kind: {} for kind in KINDS}


def metric(kind: str, *, maximize: bool, name: str | None = None) -> Callable[[RowFunction], RowFunction]:
    """Make a function a metric of all tasks of a kind: it is logged, and stands in every table.

    The function gets a part's target and predictions as arrays of its device and returns one value for each row; the
    metric is their mean over all rows, exact for any number of parts. What is no mean over rows, as a median, cannot be
    computed so. Workers must be able to import the function's module, which an installed package makes known by an
    entry point of the group ``tipcast.metrics``.

    Parameters
    ----------
    kind
        ``classification``, ``multiclass``, ``regression`` or ``clustering``.
    maximize
        Whether more is better.
    name
        Its key; the function's name where None.

    Examples
    --------
    >>> @metric("regression", maximize=True)
    ... def within_one(target, prediction):
    ...     return abs(prediction - target) <= 1

    """

    def register(function: RowFunction) -> RowFunction:
        found = Metric(name or function.__name__, maximize)
        if found.name in {each.name for each in evaluator(kind).metrics} | {ROWS}:
            raise TipcastError("C003", f"metric {found.name}", "is one of ours", "give it another name")
        _OWN[kind][found] = function
        return function

    return register


@functools.cache
def _load_entry_points() -> None:
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        point.load()


def own_metrics(kind: str) -> dict[Metric, RowFunction]:
    """Return the metrics that users have registered for a kind, and what computes a value of each row."""
    _load_entry_points()
    return dict(_OWN[kind])


def own_means(
    client: Any, kind: str, predictions: Sequence[Any], targets: Sequence[Any], masks: Sequence[Any] | None
) -> dict[str, float]:
    """Return users' metrics over all rows; nothing is computed where there are none."""
    found = own_metrics(kind)
    if not found:
        return {}
    columns = (predictions, targets) if masks is None else (predictions, targets, masks)
    rows, *sums = added(client, functools.partial(_row_sums, found), _add, columns)
    return {each.name: total / rows for each, total in zip(found, sums, strict=True)}


def own_means_here(kind: str, predictions: Array, target: Any) -> dict[str, float]:
    """Return users' metrics of rows of this process."""
    found = own_metrics(kind)
    rows, *sums = _row_sums(found, predictions, target) if found else (1.0,)
    return {each.name: total / rows for each, total in zip(found, sums, strict=True)}


def _row_sums(
    metrics: Mapping[Metric, RowFunction], predictions: Any, target: Any, mask: Array | None = None
) -> list[float]:
    """Return the number of rows, and the sum of each metric's values of them."""
    predicted, truth = values_of(predictions, mask), values_of(target, mask)
    xp, sums = module_of(predicted), [float(len(predicted))]
    for each, function in metrics.items():
        values = xp.asarray(function(truth, predicted))
        if values.shape != (len(predicted),):
            what = f"returned {values.shape} of {len(predicted)} rows"
            raise TipcastError("C003", f"metric {each.name}", what, "return one value for each row")
        sums.append(float(values.sum(dtype=xp.float64)))
    return sums


def _add(parts: Sequence[Sequence[float]]) -> list[float]:
    return [math.fsum(column) for column in zip(*parts, strict=True)]
