"""What an evaluation of two classes consists of: its metrics, DeLong's interval, curves, bins and counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tipcast.evaluation.base import Evaluation, Metric
from tipcast.evaluation.sums import Z95, Floats, Interval, Ints

CALIBRATION_BINS = 16
HISTOGRAM_BINS = 64
TRIAL_STEPS = 25
"""Equal steps of the false-positive rate at which a trial's ROC curve is kept."""
MAX_POINTS = 2000
"""Of a curve: those at even distances along it."""


@dataclass(frozen=True)
class Confusion:
    """Rows by what they were and what they were called."""

    true_negatives: int
    false_positives: int
    false_negatives: int
    true_positives: int

    @property
    def positives(self) -> int:
        """Rows of class 1."""
        return self.true_positives + self.false_negatives

    @property
    def negatives(self) -> int:
        """Rows of class 0."""
        return self.true_negatives + self.false_positives

    @property
    def called(self) -> int:
        """Rows called positive."""
        return self.true_positives + self.false_positives

    @property
    def rows(self) -> int:
        """All rows."""
        return self.positives + self.negatives

    @property
    def matrix(self) -> Ints:
        """Rows (2, 2) by true class and by the class they were called."""
        rows = [[self.true_negatives, self.false_positives], [self.false_negatives, self.true_positives]]
        return np.asarray(rows, dtype=np.int64)


@dataclass(frozen=True)
class Sums:
    """What metrics are made of."""

    auc: float
    precision: float
    """Sum over positives of the precision at their score."""
    log_loss: float
    squares: float
    """Sum of squared differences of score and label."""
    confusion: Confusion


METRICS = (
    Metric("auc", True, lambda sums: sums.auc, label="AUC"),
    Metric("average_precision", True, lambda sums: sums.precision / sums.confusion.positives),
    Metric("log_loss", False, lambda sums: sums.log_loss / sums.confusion.rows),
    Metric("brier", False, lambda sums: sums.squares / sums.confusion.rows),
    Metric(
        "accuracy",
        True,
        lambda sums: (sums.confusion.true_positives + sums.confusion.true_negatives) / sums.confusion.rows,
    ),
    Metric("precision", True, lambda sums: sums.confusion.true_positives / max(sums.confusion.called, 1)),
    Metric("recall", True, lambda sums: sums.confusion.true_positives / sums.confusion.positives),
    Metric(
        "f1",
        True,
        lambda sums: 2 * sums.confusion.true_positives / (sums.confusion.called + sums.confusion.positives),
    ),
)


@dataclass(frozen=True)
class Roc:
    """Points of the ROC curve (points,) by falling threshold; calling scores >= threshold positive gives the point."""

    fpr: Floats
    tpr: Floats
    thresholds: Floats


@dataclass(frozen=True)
class PrecisionRecall:
    """Points of the precision-recall curve (points,) by falling threshold."""

    recall: Floats
    precision: Floats
    thresholds: Floats


@dataclass(frozen=True)
class Calibration:
    """16 equal-width bins of scores; mean score and rate of positives are NaN where no rows are."""

    mean_score: Floats
    rate: Floats
    rows: Ints

    @property
    def mean(self) -> float:
        """Mean score of all rows."""
        return float(np.nansum(self.mean_score * self.rows) / self.rows.sum())

    @property
    def error(self) -> float:
        """Expected calibration error: mean distance of a bin's rate from its mean score (Naeini et al. 2015)."""
        return float(np.nansum(np.abs(self.mean_score - self.rate) * self.rows) / self.rows.sum())


@dataclass(frozen=True)
class Histogram:
    """Rows of each class in 64 equal-width bins of scores."""

    edges: Floats
    negatives: Ints
    positives: Ints


def curves(below: Any, above: Any, threshold_of: Callable[[NDArray[np.intp]], Floats]) -> tuple[Roc, PrecisionRecall]:
    """Return both curves of positives ``below`` and negatives below, ``above``, (vertices,) by rising score.

    The last vertex is above all scores; ``threshold_of`` returns the scores at vertices.
    """
    positives, negatives = below[-1], above[-1]
    chosen = thin(above / negatives, below / positives)[::-1]
    thresholds = threshold_of(chosen)
    hits, alarms = positives - below[chosen], negatives - above[chosen]
    roc = Roc(alarms / negatives, hits / positives, thresholds)
    hits, calls = hits[1:], (hits + alarms)[1:]
    return roc, PrecisionRecall(hits / positives, hits / calls, thresholds[1:])


def in_bins(negatives: Ints, positives: Ints, scores: Floats) -> tuple[Calibration, Histogram]:
    """Return the calibration and the histogram of rows by class, and of sums of scores, in finer bins."""
    of_zero, of_one, total = (coarse(values, CALIBRATION_BINS) for values in (negatives, positives, scores))
    rows = of_zero + of_one
    mean, rate = (np.where(rows > 0, values / np.where(rows > 0, rows, 1), np.nan) for values in (total, of_one))
    edges = np.linspace(0, 1, HISTOGRAM_BINS + 1)
    return Calibration(mean, rate, rows), Histogram(edges, coarse(negatives), coarse(positives))


def coarse(counts: Any, number: int = HISTOGRAM_BINS) -> Any:
    """Return counts in fewer bins."""
    return np.asarray(counts).reshape(number, -1).sum(axis=1)


@dataclass(frozen=True)
class ClassificationEvaluation(Evaluation):
    """How well scores tell two classes apart."""

    threshold: float = field(kw_only=True)
    confusion: Confusion
    roc: Roc
    precision_recall: PrecisionRecall
    calibration: Calibration
    histogram: Histogram

    @property
    def trial_curve(self) -> Sequence[float]:
        """True-positive rates of the ROC curve at even false-positive rates from 0 to 1."""
        return [float(rate) for rate in np.interp(np.linspace(0, 1, TRIAL_STEPS + 1), self.roc.fpr, self.roc.tpr)]


def area_under(p: Floats, n: Floats) -> tuple[float, Interval]:
    """Return the AUC of (bins,) rows of each class by rising score, counted or expected, and DeLong's interval."""
    p_all, n_all = p.sum(), n.sum()
    below, above = np.cumsum(p) - p, np.cumsum(n) - n
    auc = float((p * (2 * above + n)).sum() / (2 * p_all * n_all))
    missed = float((p * (1 - (above + n / 2) / n_all) ** 2).sum()), float((n * ((below + p / 2) / p_all) ** 2).sum())
    return auc, delong(auc, p_all, n_all, *missed)


def delong(auc: float, positives: float, negatives: float, positive_misses: float, negative_misses: float) -> Interval:
    """Return the 95 % interval of an AUC by DeLong's variance, cut to 0..1: all of it of fewer than two rows.

    A positive's component is the share of negatives below it, a negative's the share of positives above it (ties as
    halves). The variance of the AUC is the sum over both classes of the components' sample variance over their number.
    The AUC is near to normal where both classes have many rows; of few, or close to 1, the interval is too short.
    The misses are sums of squared complements, so that nothing cancels when the AUC is close to 1: over positives of
    the squared share of negatives above them, over negatives of the squared share of positives below them.

    References
    ----------
    DeLong, DeLong, Clarke-Pearson (1988), Biometrics 44(3), 837-845.

    """
    if positives < 2 or negatives < 2:
        return Interval(0.0, 1.0)
    miss = 1.0 - auc
    variance = 0.0
    for rows, squares in ((positives, positive_misses), (negatives, negative_misses)):
        variance += max(squares - rows * miss * miss, 0.0) / (rows - 1) / rows
    half = Z95 * math.sqrt(variance)
    return Interval(max(auc - half, 0.0), min(auc + half, 1.0))


def thin(x: Floats, y: Floats) -> NDArray[np.intp]:
    """Choose vertices of a monotone curve (points,) at even distances, the first and the last among them."""
    turns = np.ones(len(x), dtype=bool)  # not inside a horizontal or a vertical stretch
    dx, dy = np.diff(x) == 0, np.diff(y) == 0
    turns[1:-1] = ~((dx[1:] & dx[:-1]) | (dy[1:] & dy[:-1]))
    corners = np.flatnonzero(turns)
    if len(corners) <= MAX_POINTS:
        return corners
    along = (x + y)[corners]
    return corners[np.unique(np.searchsorted(along, np.linspace(0, along[-1], MAX_POINTS)))]


def wilson(rate: Floats, rows: Ints) -> tuple[Floats, Floats]:
    """Return the 95 % bounds of observed rates (bins,) by Wilson's score interval, which stays within 0..1."""
    z = Z95 * Z95 / rows
    middle = (rate + z / 2) / (1 + z)
    half = np.sqrt(rate * (1 - rate) * z + z * z / 4) / (1 + z)
    return middle - half, middle + half
