"""Scores and labels as integers, sorted on the workers into score ranges: what an exact AUC is counted along.

A key is the score's bits shifted left by one with the label in the lowest place. Scores in 0..1 are ordered like their
bits, so one integer sort orders rows by score and keeps ties together. The shift also drops the sign of -0.0.
A bucket holds the sorted keys of one score range. Every function of keys takes the array module from its arrays, so
NumPy and CuPy arrays go the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tipcast.compute.base import Array, module_of
from tipcast.config.errors import TipcastError
from tipcast.evaluation.sums import Parts, added, values_of

CHUNK = 1 << 20
"""Rows counted at a time."""
MOST_ROWS = 1 << 25
"""Rows that a bucket should not exceed (its keys take 4 or 8 bytes a row, three times over while merging)."""
LEAST_ROWS = 1 << 19
"""Rows that a bucket should have, however many threads there are."""
MOST_SLICES = 4096
"""Partitions times buckets, each a task, unless buckets would grow too large."""
SAMPLE = 512
"""Keys that a partition shows the driver."""


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


def _bits(scores: Array) -> Array:
    xp = module_of(scores)
    if scores.dtype.itemsize == 8:
        return scores.astype(xp.float64, copy=False).view(xp.uint64)
    return scores.astype(xp.float32, copy=False).view(xp.uint32)


def inspect(scores: Any, labels: Any) -> Facts:
    """Count the rows, and what must not be among them: NaN, scores outside 0..1, labels other than 0 and 1."""
    found, truth = values_of(scores), values_of(labels)
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


def sort_keys(scores: Any, labels: Any) -> Array:
    """Return a partition's sorted keys: uint32 (rows,) for float32 scores, uint64 (rows,) for float64 scores."""
    bits = _bits(values_of(scores))
    keys = bits << bits.dtype.type(1)
    truth = values_of(labels)
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


def join(slices: Sequence[Array]) -> Array:
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


@dataclass(frozen=True)
class Whole:
    """What a bucket is a part of: rows of each class in all buckets, and in the buckets of lower scores."""

    positives: int
    negatives: int
    positives_below: int
    negatives_below: int


@dataclass(frozen=True)
class Buckets:
    """Sorted keys by ascending score range; rows of equal score are in one bucket."""

    futures: tuple[Any, ...]
    wholes: tuple[Whole, ...]
    """Each bucket's place in the whole."""
    dtype: str

    def below(self, client: Any, key: int) -> tuple[int, int]:
        """Return how many positives and negatives have keys below ``key``."""
        found = client.gather([client.submit(classes_below, f, key, pure=False) for f in self.futures])
        return sum(p for p, _ in found), sum(n for _, n in found)


def fill(parts: Parts) -> Buckets:
    """Check scores and labels on workers, and sort them into buckets; for errors see ``base.Evaluator.evaluate``."""
    client = parts.client
    columns = parts.rows()
    facts = [client.submit(inspect, *part, pure=False) for part in columns]
    ordered = [client.submit(sort_keys, *part, pure=False) for part in columns]
    samples = [client.submit(sample, future, SAMPLE, pure=False) for future in ordered]
    known, shown = client.gather([facts, samples])
    dtype = _check(known, parts)
    rows = [fact.rows for fact in known]
    ordered = [future for future, n in zip(ordered, rows, strict=True) if n]
    borders = split_points(rows, shown, _number(sum(rows), len(ordered), sum(client.nthreads().values())))
    return merge(client, ordered, borders, dtype, parts.where)


def merge(client: Any, ordered: Sequence[Any], borders: Sequence[int], dtype: str, where: str) -> Buckets:
    """Merge partitions' sorted keys into buckets that end below each border and at the end."""
    futures = []
    for low, high in zip((None, *borders), (*borders, None), strict=True):
        whole = low is None and high is None
        slices = ordered if whole else [client.submit(cut, f, low, high, pure=False) for f in ordered]
        futures.append(client.submit(join, slices, pure=False))
    classes = client.gather([client.submit(classes_below, future, pure=False) for future in futures])
    positives, negatives = sum(p for p, _ in classes), sum(n for _, n in classes)
    if not positives or not negatives:
        what = f"all {positives + negatives} rows are of class {int(positives > 0)}: no curve separates one class"
        raise TipcastError("D015", where, what, "take a period or a target with both classes")
    wholes, below = [], (0, 0)
    for p, n in classes:
        wholes.append(Whole(positives, negatives, *below))
        below = (below[0] + p, below[1] + n)
    return Buckets(tuple(futures), tuple(wholes), dtype)


def split_points(rows: Sequence[int], samples: Sequence[Sequence[int]], number: int) -> list[int]:
    """Return at most ``number`` - 1 ascending keys of label 0 that part the rows evenly, as samples tell."""
    weighted = sorted((key & ~1, n / len(shown)) for n, shown in zip(rows, samples, strict=True) for key in shown)
    total, seen = sum(rows), 0.0
    points: list[int] = []
    for key, weight in weighted:
        if seen >= total * (len(points) + 1) / number and (not points or key > points[-1]):
            points.append(key)
        seen += weight
    return points[: number - 1]


def _number(rows: int, partitions: int, threads: int) -> int:
    """Return how many buckets keep the threads busy, the tasks few, and each bucket small enough for a worker."""
    useful = min(threads, rows // LEAST_ROWS, MOST_SLICES // max(partitions, 1))
    return max(useful, -(-rows // MOST_ROWS), 1)


def _check(facts: Sequence[Facts], parts: Parts) -> str:
    """Return the keys' dtype, or raise for what makes metrics impossible."""
    unpaired = next((fact for fact in facts if fact.labels_missing), None)
    if unpaired is not None:
        raise ValueError(f"{unpaired.rows} scores came with {unpaired.rows - unpaired.labels_missing} labels")
    count = added(facts, but=("dtype",))
    parts.refuse(
        count["rows"],
        ("D030", count["not_numbers"], "scores are NaN", "check the model and its input"),
        ("D030", count["outside"], "scores are outside 0..1", "let the model return probabilities"),
        ("D031", count["odd_labels"], "labels are neither 0 nor 1", "check the target"),
    )
    dtypes = {fact.dtype for fact in facts if fact.rows}
    if len(dtypes) != 1:
        raise ValueError(f"scores are of several dtypes (keys {sorted(dtypes)})")
    return dtypes.pop()
