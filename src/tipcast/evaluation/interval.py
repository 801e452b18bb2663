"""Confidence interval of the area under the ROC curve, from counts: DeLong's, which is asymptotic."""

from __future__ import annotations

import math
from dataclasses import dataclass

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


def delong(auc: float, positives: int, negatives: int, positive_misses: float, negative_misses: float) -> Interval:
    """Return the 95 % interval of an AUC by DeLong's variance, cut to 0..1.

    A positive's component is the share of negatives below it, a negative's the share of positives above it (ties as
    halves). The variance of the AUC is the sum over both classes of the components' sample variance over their number.
    The AUC is near to normal where both classes have many rows; of few, or close to 1, the interval is too short.
    The sums are of squared complements, so that nothing cancels when the AUC is close to 1.

    Parameters
    ----------
    auc
        Area under the curve, 0..1.
    positives, negatives
        Rows of each class.
    positive_misses
        Sum over positives of the squared share of negatives above them.
    negative_misses
        Sum over negatives of the squared share of positives below them.

    Returns
    -------
    Interval
        0..1 when a class has fewer than two rows: nothing is known then.

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
