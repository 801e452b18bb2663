"""Sort keys of scores and labels: made per partition, cut by score range, merged.

A key is the score's bits shifted left by one with the label in the lowest place. Scores in 0..1 are ordered like their
bits, so one integer sort orders rows by score and keeps ties together. The shift also drops the sign of -0.0.
Every function takes the array module from its arrays, so NumPy and CuPy arrays go the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tipcast.backends.base import Array
from tipcast.backends.host import module_of as module_of

CHUNK = 1 << 20
"""Rows counted at a time."""


@dataclass(frozen=True)
class Facts:
    """What a partition holds, and what is wrong with it."""

    rows: int
    dtype: str
    not_numbers: int
    outside: int
    odd_labels: int
    labels_missing: int
    """Scores without a label (negative: labels without a score)."""


def _rows(values: Any, mask: Array | None) -> Array:
    array = getattr(values, "values", values)  # a pandas or cuDF Series holds its array there
    return array if mask is None else array[mask == 1]


def _bits(scores: Array) -> Array:
    xp = module_of(scores)
    if scores.dtype.itemsize == 8:
        return scores.astype(xp.float64, copy=False).view(xp.uint64)
    return scores.astype(xp.float32, copy=False).view(xp.uint32)


def inspect(scores: Any, labels: Any, mask: Array | None = None) -> Facts:
    """Count the rows, and what must not be among them: NaN, scores outside 0..1, labels other than 0 and 1."""
    found, truth = _rows(scores, mask), _rows(labels, mask)
    if not len(found) or len(found) != len(truth):
        return Facts(len(found), str(found.dtype), 0, 0, 0, len(found) - len(truth))
    xp = module_of(found)
    bits = _bits(found)
    one = _bits(xp.ones(1, dtype=found.dtype))
    not_numbers = outside = 0
    if bool(bits.max() > one[0]):  # -0.0 comes here too, and passes
        not_numbers = int(xp.count_nonzero(xp.isnan(found)))
        outside = int(xp.count_nonzero((found < 0) | (found > 1)))
    odd = int(xp.count_nonzero((truth != 0) & (truth != 1))) if int(truth.min()) < 0 or int(truth.max()) > 1 else 0
    return Facts(len(found), str(bits.dtype), not_numbers, outside, odd, 0)


def sort_keys(scores: Any, labels: Any, mask: Array | None = None) -> Array:
    """Return a partition's sorted keys: uint32 (rows,) for float32 scores, uint64 (rows,) for float64 scores."""
    bits = _bits(_rows(scores, mask))
    keys = bits << bits.dtype.type(1)
    truth = _rows(labels, mask)
    if len(truth) == len(keys):  # otherwise ``inspect`` has it refused
        keys |= truth.astype(keys.dtype)
    keys.sort()
    return keys


def key_of(threshold: float, dtype: Any) -> int:
    """Return the lowest key of a score that is at least ``threshold``, for keys of a dtype."""
    real = np.float64 if np.dtype(dtype).itemsize == 8 else np.float32
    score = np.maximum(real(threshold), real(0))
    if float(score) < threshold:  # rounded down: the next one is the first that reaches it
        score = np.nextafter(score, real(np.inf))
    return int(np.asarray(score).view(dtype)) << 1


def score_of(key: int, dtype: Any) -> float:
    """Return the score of a key."""
    real = np.float64 if np.dtype(dtype).itemsize == 8 else np.float32
    return float(np.asarray(key >> 1, dtype=dtype).view(real))


def sample(keys: Array, size: int) -> list[int]:
    """Return at most ``size`` keys at even distances."""
    step = -(-len(keys) // size) or 1
    picked: list[int] = keys[step // 2 :: step].tolist()
    return picked


def cut(keys: Array, low: int | None, high: int | None) -> Array:
    """Return the slice of sorted keys from ``low`` to below ``high`` (None: the end)."""
    xp = module_of(keys)
    start, stop = (
        end if key is None else int(xp.searchsorted(keys, xp.asarray([key], dtype=keys.dtype))[0])
        for key, end in ((low, 0), (high, len(keys)))
    )
    return keys[start:stop]


def merge(slices: Sequence[Array]) -> Array:
    """Return the slices of one score range as one sorted array."""
    if len(slices) == 1:
        return slices[0]
    keys = module_of(slices[0]).concatenate(slices)
    keys.sort()
    return keys


def classes_below(keys: Array, key: int | None = None) -> tuple[int, int]:
    """Return how many positives and negatives have keys below ``key`` (None: all)."""
    part = keys if key is None else cut(keys, None, key)
    xp = module_of(keys)
    ones = sum(int(xp.count_nonzero(part[i : i + CHUNK] & 1)) for i in range(0, len(part), CHUNK))
    return ones, len(part) - ones
