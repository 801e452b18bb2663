"""One walk along a bucket's sorted keys: every sum that exact metrics, curves and bins are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tipcast.compute.base import Array, module_of
from tipcast.evaluation.sorted_scores import Whole, key_of

BLOCKS = {"numpy": 1 << 18, "cupy": 1 << 24}
"""Array module -> rows walked at a time, so that temporaries stay small, and a device's launches few."""
BINS = 100
"""Equal-width score bins that calibration and histograms are summed from."""
GRID = 8192
"""Cells along the ROC curve; the first vertex in each is kept."""

_FOLD = 16


@dataclass
class Tally:
    """Sums over one bucket, all plain Python numbers and lists."""

    area: int = 0
    """Twice the number of (positive, negative) pairs in the right order, ties counted as one."""
    positive_misses: float = 0.0
    """Sum over positives of the squared share of negatives above them."""
    negative_misses: float = 0.0
    """Sum over negatives of the squared share of positives below them."""
    precision: float = 0.0
    """Sum over positives of the precision at their score."""
    log_loss: float = 0.0
    squares: float = 0.0
    best: tuple[int, int, int, int] | None = None
    """Where accuracy is highest: rows gained over calling all positive, key, positives and negatives below."""
    bin_rows: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))
    bin_positives: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))
    bin_scores: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(BINS))
    vertices: list[list[int]] = field(default_factory=list)
    """Of the ROC curve, as rows: key, positives below, negatives below."""


@dataclass(frozen=True)
class _Groups:
    """Rows of equal score that end in one block, ascending: arrays over groups."""

    key: Array
    positives_before: Array
    positives: Array
    negatives_before: Array
    negatives: Array


@dataclass(frozen=True)
class _Block:
    keys: Array
    start: int
    ranks: Array
    """Running number of positives (rows,) within the block."""
    groups: _Groups | None


def tally(keys: Array, whole: Whole) -> Tally:
    """Walk once along a bucket's sorted keys (rows,); return its sums. No other bucket has a row of an equal score."""
    sums, edges, cell = Tally(), _edges(keys), -1
    sums.bin_rows[:] = np.diff(edges)
    for block in _blocks(keys, whole):
        _add_rows(sums, block, edges)
        if block.groups is not None:
            _add_area(sums, block.groups, whole)
            _add_decisions(sums, block.groups, whole)
            cell = _add_vertices(sums, block.groups, whole, cell)
    return sums


def _blocks(keys: Array, whole: Whole) -> Iterator[_Block]:
    xp = module_of(keys)
    one = keys.dtype.type(1)
    positives, negatives = whole.positives_below, whole.negatives_below  # before the block's first group
    ones, rows = positives, positives + negatives  # before the block's first row
    size = BLOCKS[xp.__name__]
    for start in range(0, len(keys), size):
        block = keys[start : start + size]
        follow = keys[start + 1 : start + size + 1]
        ranks = xp.cumsum(block & one, dtype=xp.int64)
        ends = xp.flatnonzero((block[: len(follow)] ^ follow) > one)
        if len(follow) < len(block):
            ends = xp.concatenate((ends, xp.asarray([len(block) - 1], dtype=ends.dtype)))
        groups = None
        if len(ends):
            after = ranks[ends]
            after += ones
            negative_after = ends + (rows + 1)
            negative_after -= after
            groups = _Groups(block[ends], *_steps(xp, positives, after), *_steps(xp, negatives, negative_after))
            positives, negatives = int(after[-1]), int(negative_after[-1])
        yield _Block(block, start, ranks, groups)
        ones += int(ranks[-1])
        rows += len(block)


def _steps(xp: Any, first: int, after: Array) -> tuple[Array, Array]:
    before = xp.empty_like(after)
    before[0] = first
    before[1:] = after[:-1]
    return before, after - before


def _edges(keys: Array) -> np.ndarray[Any, Any]:
    """Positions in the keys where score bins begin and end (BINS + 1,)."""
    xp = module_of(keys)
    borders = xp.asarray([key_of(i / BINS, keys.dtype) for i in range(1, BINS)], dtype=keys.dtype)
    return np.asarray([0, *xp.searchsorted(keys, borders).tolist(), len(keys)], dtype=np.int64)


def _add_rows(sums: Tally, block: _Block, edges: np.ndarray[Any, Any]) -> None:
    """Add what needs each row's score: bins, squared errors, log loss (clipped like scikit-learn's for the dtype)."""
    xp = module_of(block.keys)
    one = block.keys.dtype.type(1)
    real = xp.float64 if block.keys.dtype.itemsize == 8 else xp.float32
    score = (block.keys >> one).view(real).astype(xp.float64)
    label = (block.keys & one).astype(xp.float64)
    inside = np.clip(edges - block.start, 0, len(score))
    at = xp.asarray(np.maximum(inside - 1, 0))
    sums.bin_positives += np.diff(np.where(inside > 0, block.ranks[at].tolist(), 0))
    sums.bin_scores += np.diff(np.where(inside > 0, xp.cumsum(score)[at].tolist(), 0.0))
    wrong = score - label
    sums.squares += float(xp.dot(wrong, wrong))
    label -= 1
    score += label
    right = xp.abs(score, out=score)  # the probability given to the class that came
    eps = float(np.finfo(np.float64 if block.keys.dtype.itemsize == 8 else np.float32).eps)
    xp.clip(right, eps, 1 - eps, out=right)
    even = len(right) // _FOLD * _FOLD  # one logarithm for 16 rows: the product stays above 1e-251
    folded = right[:even].reshape(_FOLD, -1).prod(axis=0)
    sums.log_loss -= float(xp.log(folded).sum()) + float(xp.log(right[even:]).sum())


def _add_area(sums: Tally, groups: _Groups, whole: Whole) -> None:
    twice = groups.negatives_before * 2  # negatives below a positive, ties as halves, doubled to stay whole
    twice += groups.negatives
    sums.area += int((groups.positives * twice).sum())
    above = twice * (-0.5 / whole.negatives)
    above += 1
    above *= above
    above *= groups.positives
    sums.positive_misses += float(above.sum())
    below = groups.positives_before * 2
    below += groups.positives
    below = below * (0.5 / whole.positives)
    below *= below
    below *= groups.negatives
    sums.negative_misses += float(below.sum())


def _add_decisions(sums: Tally, groups: _Groups, whole: Whole) -> None:
    """Add what comes of calling the rows of a group and above positive: precision, and the most accurate threshold."""
    xp = module_of(groups.key)
    hits = whole.positives - groups.positives_before
    calls = hits + whole.negatives
    calls -= groups.negatives_before
    precision = hits / calls
    precision *= groups.positives
    sums.precision += float(precision.sum())
    gain = groups.negatives_before - groups.positives_before
    i = int(xp.argmax(gain))
    if sums.best is None or int(gain[i]) > sums.best[0]:
        found = (gain, groups.key, groups.positives_before, groups.negatives_before)
        sums.best = tuple(int(values[i]) for values in found)  # type: ignore[assignment]


def _add_vertices(sums: Tally, groups: _Groups, whole: Whole, cell: int) -> int:
    """Add the first vertex of each cell of the ROC curve, of states before a group; return the last cell."""
    xp = module_of(groups.key)
    along = groups.positives_before * (GRID / 2 / whole.positives)
    along += groups.negatives_before * (GRID / 2 / whole.negatives)
    cells = along.astype(xp.int64)
    first = xp.ones(len(cells), dtype=bool)
    first[1:] = cells[1:] != cells[:-1]
    if int(cells[0]) == cell:
        first[0] = False
    chosen = xp.flatnonzero(first)
    columns = (groups.key, groups.positives_before, groups.negatives_before)
    sums.vertices += [list(row) for row in zip(*(values[chosen].tolist() for values in columns), strict=True)]
    return int(cells[-1])
