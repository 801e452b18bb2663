"""The ROC curve of two classes whose rows are counted by score, the area under it, and DeLong's
interval.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tipcast.compute.base import Array, Frame, module_of
from tipcast.evaluation.sums import (
    Z95,
    Floats,
    Interval,
    mean_sums,
    shares_of,
    values_of,
    weighted_rows,
)

MAX_POINTS = 2000
"""Most points of a curve; with more, those at even distances along it are kept."""


class SquaredWeights(NamedTuple):
    """What the interval of an AUC of weighted rows needs."""

    positive_rows: int
    """Positives whose weight is above 0."""
    negative_rows: int
    positives: NDArray[Any]
    """(vertices,) the sum of the positives' squared weights."""
    negatives: NDArray[Any]


class Vertices(NamedTuple):
    """Rows of each class, or their weights, (vertices,) at rising scores, or at the lower borders
    of bins.
    """

    scores: NDArray[Any]
    positives: NDArray[Any]
    negatives: NDArray[Any]

    def average_precision(self) -> float:
        """Return the mean precision at the positives' scores."""
        positives = self.positives.sum()
        hits = at_or_above(self.positives)
        alarms = at_or_above(self.negatives)
        return float((self.positives * hits / (hits + alarms)).sum()) / float(positives)


def at_or_above(rows: Floats) -> Floats:
    """Return (vertices,) the rows, or weights, at each score and above it.

    They are summed from above: a difference of large sums would lose a small weight.
    """
    sums: Floats = np.cumsum(rows[::-1])[::-1]
    return sums


def curve(scores: Floats, positives: Floats, negatives: Floats) -> Mapping[str, Floats]:
    """Return the points of the ROC curve, from the rows of each class (vertices,) by rising score,
    or their weights.

    At the first point no row is called positive, at the last one all rows are.
    """
    all_hits = np.append(at_or_above(positives), 0)
    all_alarms = np.append(at_or_above(negatives), 0)
    n_positives = all_hits[0]
    n_negatives = all_alarms[0]

    positives_below = np.append(0, np.cumsum(positives))
    negatives_below = np.append(0, np.cumsum(negatives))
    chosen = thin(negatives_below / n_negatives, positives_below / n_positives)[::-1]
    hits = all_hits[chosen]
    alarms = all_alarms[chosen]
    precision = shares_of(hits, hits + alarms)
    precision[0] = precision[1]

    return {
        "fpr": alarms / n_negatives,
        "tpr": hits / n_positives,
        "precision": precision,
        "threshold": np.append(scores, math.inf)[chosen],
    }


def area_under(
    positives: Floats,
    negatives: Floats,
    resolution: float = 0.0,
    squared: SquaredWeights | None = None,
) -> tuple[float, Interval]:
    """Return the AUC, from the rows of each class (vertices,) by rising score, and its 95 %
    interval by DeLong's variance.

    The interval is wider by ``resolution`` on each side and cut to 0..1; it is 0..1 if a class has
    fewer than two rows. A positive's component is the share of negatives below it, a negative's
    the share of positives above it (ties as halves). The variance of the AUC is the sum over both
    classes of the components' sample variance over their number. The AUC is close to normal if
    both classes have many rows; with few rows, or close to 1, the interval is too short.

    With weights, ``positives`` and ``negatives`` are their sums, and components are shares of
    weight. The variance is that of both classes' weighted mean components, see
    ``sums.weighted_half_width``; equal weights give the interval of no weights.

    References
    ----------
    DeLong, DeLong, Clarke-Pearson (1988), Biometrics 44(3), 837-845.

    """
    n_positives = positives.sum()
    n_negatives = negatives.sum()
    negatives_below = np.cumsum(negatives) - negatives
    wins = (positives * (2 * negatives_below + negatives)).sum()
    auc = float(wins / (2 * n_positives * n_negatives))
    fewest = min(n_positives, n_negatives)
    if squared is not None:
        fewest = min(squared.positive_rows, squared.negative_rows)
    if fewest < 2:
        return auc, Interval(0.0, 1.0)

    of_positives, of_negatives = misses(positives, negatives)
    if squared is None:
        variance = _variance_of_mean(positives, of_positives, 1.0 - auc)
        variance += _variance_of_mean(negatives, of_negatives, 1.0 - auc)
    else:
        scatter = float(squared.positives @ (of_positives - (1.0 - auc)) ** 2)
        variance = _linearised_variance(squared.positive_rows, n_positives, scatter)
        scatter = float(squared.negatives @ (of_negatives - (1.0 - auc)) ** 2)
        variance += _linearised_variance(squared.negative_rows, n_negatives, scatter)

    half = Z95 * math.sqrt(variance)
    return auc, Interval(max(auc - half - resolution, 0.0), min(auc + half + resolution, 1.0))


def _variance_of_mean(rows: Floats, values: Floats, mean: float) -> float:
    """Return the variance of a mean over rows, from values (vertices,) and the rows with each."""
    number = rows.sum()
    scatter = max(float((rows * values**2).sum()) - number * mean * mean, 0.0)
    return float(scatter / (number - 1) / number)


def _linearised_variance(rows: int, weight: float, scatter: float) -> float:
    """Return the variance of a weighted mean over rows, see ``sums.weighted_half_width``.

    ``weight`` is the sum of the weights, ``scatter`` that of the squared distances from the mean
    times the squared weights.
    """
    return float(rows / (rows - 1) * scatter / weight**2)


def misses(positives: Floats, negatives: Floats) -> tuple[Floats, Floats]:
    """Return (vertices,) the complements of a positive's and of a negative's component at each
    score, which lose no digits if an AUC is close to 1.
    """
    positives_below = np.cumsum(positives) - positives
    negatives_below = np.cumsum(negatives) - negatives
    of_positives = 1 - (negatives_below + negatives / 2) / negatives.sum()
    of_negatives = (positives_below + positives / 2) / positives.sum()
    return of_positives, of_negatives


def component_sums(
    curves: Sequence[tuple[Floats, Floats, Floats]],
    first: Array | Frame,
    second: Array | Frame,
    labels: Array | Frame,
    weights: Array | Frame | None = None,
) -> list[float]:
    """Return the sums of the differences of a part's components, see ``mean_sums``: those of its
    positives, and then those of its negatives.

    ``curves`` has for each model the scores of its vertices, and there the complements of a
    positive's and of a negative's component, see ``misses``.
    """
    columns = [values_of(column) for column in (labels, first, second)]
    row_weights, labels, *models = weighted_rows(values_of(weights), *columns)
    first_components, second_components = map(_components, curves, models, [labels, labels])
    differences = second_components - first_components

    sums = []
    for label in (1, 0):
        chosen = labels == label
        class_weights = None if row_weights is None else row_weights[chosen]
        sums += mean_sums(differences[chosen], class_weights)

    return sums


def _components(curve: tuple[Floats, Floats, Floats], scores: Array, labels: Array) -> Array:
    """Return (rows,) the complement of each row's component, by the vertex at which its score is
    counted.
    """
    xp = module_of(scores)
    borders, of_positives, of_negatives = map(xp.asarray, curve)
    wide = scores.astype(xp.float64)
    vertex = xp.searchsorted(borders, wide, side="right") - 1
    return xp.where(labels == 1, of_positives[vertex], of_negatives[vertex])


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
