"""The ROC curve of two classes whose rows are counted by score, the area under it, and DeLong's
interval.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tipcast.evaluation.sums import Z95, Floats, Interval

MAX_POINTS = 2000
"""Most points of a curve; with more, those at even distances along it are kept."""


class Vertices(NamedTuple):
    """Rows of each class (vertices,) at rising scores, or at the lower borders of bins."""

    scores: NDArray[Any]
    positives: NDArray[Any]
    negatives: NDArray[Any]

    def average_precision(self) -> float:
        """Return the mean precision at the positives' scores."""
        positives = self.positives.sum()
        # Rows at or above each score.
        hits = positives - (np.cumsum(self.positives) - self.positives)
        alarms = self.negatives.sum() - (np.cumsum(self.negatives) - self.negatives)
        return float((self.positives * hits / (hits + alarms)).sum()) / float(positives)


def curve(scores: Floats, positives: Floats, negatives: Floats) -> Mapping[str, Floats]:
    """Return the points of the ROC curve, from the rows of each class (vertices,) by rising score.

    At the first point no row is called positive, at the last one all rows are.
    """
    positives_below = np.append(0, np.cumsum(positives))
    negatives_below = np.append(0, np.cumsum(negatives))
    n_positives = positives_below[-1]
    n_negatives = negatives_below[-1]

    chosen = thin(negatives_below / n_negatives, positives_below / n_positives)[::-1]
    hits = n_positives - positives_below[chosen]
    alarms = n_negatives - negatives_below[chosen]
    precision = hits / np.maximum(hits + alarms, 1)
    precision[0] = precision[1]

    return {
        "fpr": alarms / n_negatives,
        "tpr": hits / n_positives,
        "precision": precision,
        "threshold": np.append(scores, math.inf)[chosen],
    }


def area_under(
    positives: Floats, negatives: Floats, resolution: float = 0.0
) -> tuple[float, Interval]:
    """Return the AUC, from the rows of each class (vertices,) by rising score, and its 95 %
    interval by DeLong's variance.

    The interval is wider by ``resolution`` on each side and cut to 0..1; it is 0..1 if a class has
    fewer than two rows. A positive's component is the share of negatives below it, a negative's
    the share of positives above it (ties as halves). The variance of the AUC is the sum over both
    classes of the components' sample variance over their number. The AUC is close to normal if
    both classes have many rows; with few rows, or close to 1, the interval is too short.

    References
    ----------
    DeLong, DeLong, Clarke-Pearson (1988), Biometrics 44(3), 837-845.

    """
    n_positives = positives.sum()
    n_negatives = negatives.sum()
    negatives_below = np.cumsum(negatives) - negatives
    wins = (positives * (2 * negatives_below + negatives)).sum()
    auc = float(wins / (2 * n_positives * n_negatives))
    if min(n_positives, n_negatives) < 2:
        return auc, Interval(0.0, 1.0)

    of_positives, of_negatives = misses(positives, negatives)
    variance = _variance_of_mean(positives, of_positives, 1.0 - auc)
    variance += _variance_of_mean(negatives, of_negatives, 1.0 - auc)

    half = Z95 * math.sqrt(variance)
    return auc, Interval(max(auc - half - resolution, 0.0), min(auc + half + resolution, 1.0))


def _variance_of_mean(rows: Floats, values: Floats, mean: float) -> float:
    """Return the variance of a mean over rows, from values (vertices,) and the rows with each."""
    number = rows.sum()
    scatter = max(float((rows * values**2).sum()) - number * mean * mean, 0.0)
    return float(scatter / (number - 1) / number)


def misses(positives: Floats, negatives: Floats) -> tuple[Floats, Floats]:
    """Return (vertices,) the complements of a positive's and of a negative's component at each
    score, which lose no digits if an AUC is close to 1.
    """
    positives_below = np.cumsum(positives) - positives
    negatives_below = np.cumsum(negatives) - negatives
    of_positives = 1 - (negatives_below + negatives / 2) / negatives.sum()
    of_negatives = (positives_below + positives / 2) / positives.sum()
    return of_positives, of_negatives


def thin(x: Floats, y: Floats) -> NDArray[np.intp]:
    """Choose vertices of a monotone curve (points,) at even distances, the first and the last among
    them.
    """
    dx = np.diff(x) == 0
    dy = np.diff(y) == 0
    straight = (dx[1:] & dx[:-1]) | (dy[1:] & dy[:-1])
    corners: NDArray[np.intp] = np.r_[0, 1 + np.flatnonzero(~straight), len(x) - 1]
    if len(corners) <= MAX_POINTS:
        return corners

    distances = (x + y)[corners]
    even = np.linspace(0, distances[-1], MAX_POINTS)
    chosen: NDArray[np.intp] = corners[np.unique(np.searchsorted(distances, even))]
    return chosen
