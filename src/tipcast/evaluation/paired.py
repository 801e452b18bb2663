"""Two models on the same rows: the difference of their areas under the ROC curve, with a bootstrap interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tipcast.backends.host import to_host
from tipcast.evaluation.interval import Interval
from tipcast.evaluation.result import Floats, Ints

MOST_ROWS = 200_000
"""Rows that are resampled; of more rows at most so many are taken at even distances, and the spread is scaled."""
TASKS = 16
"""Replicates are spread over so many tasks, each replicate with a seed of its own."""


@dataclass(frozen=True)
class Difference:
    """AUC of the first model less that of the second."""

    value: float
    """Of all rows, exact."""
    interval: Interval
    """95 %, between percentiles."""
    replicates: Floats
    """The bootstrap's differences (replicates,), centred on ``value``."""
    rows: int
    resampled: int


@dataclass(frozen=True)
class Ranks:
    """One model's scores of rows of both classes as ranks: equal scores have equal ranks."""

    positives: Ints
    negatives: Ints
    number: int
    """Different scores."""


def difference(
    client: Any,
    first: Sequence[Any],
    second: Sequence[Any],
    labels: Sequence[Any],
    aucs: tuple[float, float],
    *,
    parts: Sequence[int],
    replicates: int,
    seed: int,
) -> Difference:
    """Compare two models' AUC by a paired bootstrap, stratified by class.

    Positives and negatives are drawn with replacement, each as many as there are; both models are measured on the
    same draw. Of more rows than ``MOST_ROWS`` one part, the same for all replicates, stands for all of them, and the
    replicates' spread is scaled by the root of the part's share: the spread of an AUC falls so with the number of rows.

    Parameters
    ----------
    client
        A ``distributed.Client``.
    first, second
        Futures of (rows,) scores by each model, of the same rows in the same order.
    labels
        Futures of (rows,) 0 and 1.
    aucs
        The exact AUC of each model on all rows.
    parts
        Rows of each future.
    replicates
        Draws.
    seed
        Of the draws; the same seed gives the same interval for any number of workers.

    References
    ----------
    Efron, Tibshirani (1993), An Introduction to the Bootstrap, chapters 13 and 16. Stratified and paired as in
    Robin et al. (2011), pROC, BMC Bioinformatics 12:77.

    """
    rows = sum(parts)
    step = max(math.ceil(rows / MOST_ROWS), 1)
    starts = [-sum(parts[:at]) % step for at in range(len(parts))]  # even distances across the parts' borders
    taken = [
        client.submit(sample, *each, start, step, pure=False)
        for *each, start in zip(first, second, labels, starts, strict=True)
    ]
    held = client.submit(ranked, taken, pure=False)
    here = client.submit(measured, held, pure=False)
    tasks = [
        client.submit(draw, held, seed, range(at, replicates, TASKS), pure=False)
        for at in range(min(TASKS, replicates))
    ]
    drawn = np.empty(replicates)
    for at, found in enumerate(client.gather(tasks)):
        drawn[at::TASKS] = found
    centre, resampled = here.result()
    value = aucs[0] - aucs[1]
    drawn = value + (drawn - centre) * math.sqrt(resampled / rows)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Difference(value, Interval(float(low), float(high)), drawn, rows, resampled)


def sample(first: Any, second: Any, labels: Any, start: int, step: int) -> tuple[Any, Any, Any]:
    """Return every so manieth row of a part, on the host."""
    found = (to_host(getattr(values, "values", values)[start::step]) for values in (first, second, labels))
    return tuple(np.ascontiguousarray(values) for values in found)  # type: ignore[return-value]


def ranked(parts: Sequence[tuple[Any, Any, Any]]) -> tuple[Ranks, Ranks]:
    """Return both models' ranks of the rows of all parts."""
    first, second, labels = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return _ranks(first, labels), _ranks(second, labels)


def draw(models: tuple[Ranks, Ranks], seed: int, replicates: Sequence[int]) -> list[float]:
    """Return the difference of both AUCs in each replicate."""
    return [_replicate(models, np.random.default_rng([seed, at])) for at in replicates]


def measured(models: tuple[Ranks, Ranks]) -> tuple[float, int]:
    """Return the difference of both AUCs on the rows as they are, and their number."""
    first, second = (area(each.positives, each.negatives, each.number) for each in models)
    return first - second, len(models[0].positives) + len(models[0].negatives)


def area(positives: Ints, negatives: Ints, number: int) -> float:
    """Return the AUC of ranks below ``number``: the share of pairs in the right order, ties as halves."""
    below = np.bincount(negatives, minlength=number)
    twice = 2 * np.cumsum(below) - below
    return float(twice[positives].sum()) / (2 * len(positives) * len(negatives))


def _replicate(models: tuple[Ranks, Ranks], random: np.random.Generator) -> float:
    positives, negatives = len(models[0].positives), len(models[0].negatives)
    hits, misses = random.integers(0, positives, positives), random.integers(0, negatives, negatives)
    first, second = (area(each.positives[hits], each.negatives[misses], each.number) for each in models)
    return first - second


def _ranks(scores: Any, labels: Any) -> Ranks:
    values, ranks = np.unique(scores, return_inverse=True)
    return Ranks(ranks[labels == 1], ranks[labels == 0], len(values))
