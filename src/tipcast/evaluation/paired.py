"""Two models on the same rows: the difference of their headline with a 95 % interval.

Of two AUCs the interval is of a paired bootstrap (``bootstrap``); of a mean over rows, as the log loss, and of a
function of one, as the root of the mean squared error, it is asymptotic (``difference_of_means``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tipcast.compute.base import Array, module_of, to_host
from tipcast.evaluation.sums import Z95, Floats, Interval, Ints, Parts, even, root_slope, summed, values_of

MOST_ROWS = 200_000
"""Most rows that are resampled: of more, rows at even distances are taken, and the spread is scaled."""
TASKS = 16
"""Tasks that the replicates are spread over, each replicate with a seed of its own."""


@dataclass(frozen=True)
class Difference:
    """The headline of the first model less that of the second."""

    value: float
    """Of all rows."""
    interval: Interval
    """95 %."""
    replicates: Floats
    """The bootstrap's differences (replicates,), centred on ``value``; empty where the interval is asymptotic."""
    rows: int
    resampled: int
    """Rows that the interval is of."""

    def gain(self, maximize: bool, *, certain: bool = False) -> float:
        """Return by how much the first is better, at least (``certain``) or as measured; negative: worse."""
        least, most = (self.interval.low, self.interval.high) if certain else (self.value, self.value)
        return least if maximize else -most


def difference_of_means(parts: Parts, loss: Callable[[Array, Array], Array], *, root: bool = False) -> Difference:
    """Compare two models' mean loss on the same rows, or its root by the delta method (see ``mean_interval``)."""
    rows, a, b, aa, bb, ab = parts.add(functools.partial(_moments, loss), summed)
    means = a / rows, b / rows
    values = (math.sqrt(means[0]), math.sqrt(means[1])) if root else means
    slopes = [root_slope(value, root) for value in values]
    spare = max(rows - 1, 1.0)
    variances = (aa - rows * means[0] ** 2) / spare, (bb - rows * means[1] ** 2) / spare
    shared = (ab - rows * means[0] * means[1]) / spare
    variance = slopes[0] ** 2 * variances[0] + slopes[1] ** 2 * variances[1] - 2 * slopes[0] * slopes[1] * shared
    half = Z95 * math.sqrt(max(variance, 0.0) / rows)
    value = values[0] - values[1]
    return Difference(value, Interval(value - half, value + half), np.empty(0), int(rows), int(rows))


def _moments(loss: Callable[[Array, Array], Array], first: Any, second: Any, target: Any) -> list[float]:
    """Return the rows of a part, and the sums of both losses, their squares and their product."""
    a, b = (loss(values_of(each), values_of(target)) for each in (first, second))
    xp = module_of(a)
    return [float(each) for each in (len(a), a.sum(), b.sum(), xp.dot(a, a), xp.dot(b, b), xp.dot(a, b))]


@dataclass(frozen=True)
class Ranks:
    """One model's scores of rows of both classes as ranks: equal scores have equal ranks."""

    positives: Ints
    negatives: Ints
    number: int
    """Different scores."""


def bootstrap(parts: Parts, aucs: tuple[float, float], *, replicates: int, seed: int) -> Difference:
    """Compare two models' AUC by a paired bootstrap, stratified by class.

    Positives and negatives are drawn with replacement, each as many as there are; both models are measured on the
    same draw. Of more rows than ``MOST_ROWS`` one part, the same for all replicates, stands for all of them, and the
    replicates' spread is scaled by the root of the part's share: the spread of an AUC falls so with the number of rows.

    ``parts`` are futures of both models' scores and of the labels, ``aucs`` of all their rows. The same seed gives the
    same interval for any number of workers.

    References
    ----------
    Efron, Tibshirani (1993), An Introduction to the Bootstrap, chapters 13 and 16. Stratified and paired as in
    Robin et al. (2011), pROC, BMC Bioinformatics 12:77.

    """
    client, (*models, labels) = parts.client, parts.columns
    sizes = client.gather([client.submit(len, part) for part in labels])
    rows, (step, starts) = sum(sizes), even(sizes, MOST_ROWS)
    columns = zip(*models, labels, starts, strict=True)
    held = client.submit(ranked, [client.submit(sample, *part, step, pure=False) for part in columns], pure=False)
    here = client.submit(draw, held, seed, [None], pure=False)
    tasks = [
        client.submit(draw, held, seed, range(at, replicates, TASKS), pure=False)
        for at in range(min(TASKS, replicates))
    ]
    drawn = np.empty(replicates)
    for at, found in enumerate(client.gather(tasks)):
        drawn[at::TASKS] = found
    value, resampled, (centre,) = aucs[0] - aucs[1], -(-rows // step), here.result()
    drawn = value + (drawn - centre) * math.sqrt(resampled / rows)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Difference(value, Interval(float(low), float(high)), drawn, rows, resampled)


def sample(first: Any, second: Any, labels: Any, start: int, step: int) -> list[Any]:
    """Return every ``step``-th row of a part, on the host."""
    return [np.ascontiguousarray(to_host(values_of(values)[start::step])) for values in (first, second, labels)]


def ranked(parts: Sequence[Sequence[Any]]) -> tuple[Ranks, Ranks]:
    """Return both models' ranks of the rows of all parts."""
    *scores, labels = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    places = [np.unique(values, return_inverse=True) for values in scores]
    first, second = (Ranks(ranks[labels == 1], ranks[labels == 0], len(values)) for values, ranks in places)
    return first, second


def draw(models: tuple[Ranks, Ranks], seed: int, replicates: Sequence[int | None]) -> list[float]:
    """Return the difference of both AUCs in each replicate; None: of the rows as they are."""
    found, sizes = [], (len(models[0].positives), len(models[0].negatives))
    for at in replicates:
        hits, misses = (np.arange(size) for size in sizes)
        if at is not None:
            random = np.random.default_rng([seed, at])
            hits, misses = (random.integers(0, size, size) for size in sizes)
        first, second = (area(each.positives[hits], each.negatives[misses], each.number) for each in models)
        found.append(first - second)
    return found


def area(positives: Ints, negatives: Ints, number: int) -> float:
    """Return the AUC of ranks below ``number``: the share of pairs in the right order, ties as halves."""
    below = np.bincount(negatives, minlength=number)
    twice = 2 * np.cumsum(below) - below
    return float(twice[positives].sum()) / (2 * len(positives) * len(negatives))
