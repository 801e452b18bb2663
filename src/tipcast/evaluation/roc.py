"""The ROC curve of rows of two classes that are counted by score, the area under it, and DeLong's
interval.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tipcast.evaluation.sums import Z95, Floats, Interval

MAX_POINTS = 2000
"""Of a curve: those at even distances along it."""


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
    """Return the ROC of rows of each class (vertices,) by rising score; the last point is below all
    of them.
    """
    below, above = (np.append(0, np.cumsum(rows)) for rows in (positives, negatives))
    chosen = thin(above / above[-1], below / below[-1])[::-1]
    hits = below[-1] - below[chosen]
    alarms = above[-1] - above[chosen]
    precision = hits / np.maximum(hits + alarms, 1)
    precision[0] = precision[1]
    points = {"fpr": alarms / above[-1], "tpr": hits / below[-1], "precision": precision}
    return points | {"threshold": np.append(scores, math.inf)[chosen]}


def area_under(
    positives: Floats, negatives: Floats, resolution: float = 0.0
) -> tuple[float, Interval]:
    """Return the AUC of rows of each class (vertices,) by rising score, and its 95 % interval by
    DeLong's variance.

    The interval is wider by ``resolution`` on each side, cut to 0..1, and all of it where a class
    has fewer than two rows. A positive's component is the share of negatives below it, a negative's
    the share of positives above it (ties as halves). The variance of the AUC is the sum over both
    classes of the components' sample variance over their number. The AUC is near to normal where
    both classes have many rows; of few, or close to 1, the interval is too short.

    References
    ----------
    DeLong, DeLong, Clarke-Pearson (1988), Biometrics 44(3), 837-845.

    """
    numbers = positives.sum(), negatives.sum()
    above = np.cumsum(negatives) - negatives
    auc = float((positives * (2 * above + negatives)).sum() / (2 * numbers[0] * numbers[1]))
    if min(numbers) < 2:
        return auc, Interval(0.0, 1.0)

    miss = 1.0 - auc
    variance = 0.0
    for rows, number, share in zip(
        (positives, negatives), numbers, misses(positives, negatives), strict=True
    ):
        variance += (
            max(float((rows * share**2).sum()) - number * miss * miss, 0.0) / (number - 1) / number
        )

    half = Z95 * math.sqrt(variance)
    return auc, Interval(max(auc - half - resolution, 0.0), min(auc + half + resolution, 1.0))


def misses(positives: Floats, negatives: Floats) -> tuple[Floats, Floats]:
    """Return (vertices,) the complements of a positive's and of a negative's component at each
    score.

    Of these nothing cancels where an AUC is close to 1.
    """
    below = np.cumsum(positives) - positives
    above = np.cumsum(negatives) - negatives
    return 1 - (above + negatives / 2) / negatives.sum(), (below + positives / 2) / positives.sum()


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

    along = (x + y)[corners]
    chosen: NDArray[np.intp] = corners[
        np.unique(np.searchsorted(along, np.linspace(0, along[-1], MAX_POINTS)))
    ]
    return chosen
