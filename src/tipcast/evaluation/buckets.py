"""Sort scores and labels into score ranges, one bucket of sorted keys each, all on the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tipcast.config.errors import TipcastError
from tipcast.evaluation import keys
from tipcast.evaluation.counts import Whole

MOST_ROWS = 1 << 25
"""Rows that a bucket should not exceed (its keys take 4 or 8 bytes a row, three times over while merging)."""
LEAST_ROWS = 1 << 19
"""Rows that a bucket should have, however many threads there are."""
MOST_SLICES = 4096
"""Partitions times buckets, each a task, unless buckets would grow too large."""
SAMPLE = 512
"""Keys that a partition shows the driver."""


@dataclass(frozen=True)
class Buckets:
    """Sorted keys by ascending score range; rows of equal score are in one bucket."""

    futures: tuple[Any, ...]
    wholes: tuple[Whole, ...]
    """Each bucket's place in the whole."""
    dtype: str

    def below(self, client: Any, key: int) -> tuple[int, int]:
        """Return how many positives and negatives have keys below ``key``."""
        found = client.gather([client.submit(keys.classes_below, f, key, pure=False) for f in self.futures])
        return sum(p for p, _ in found), sum(n for _, n in found)


def fill(client: Any, scores: Sequence[Any], labels: Sequence[Any], masks: Sequence[Any] | None, where: str) -> Buckets:
    """Check scores and labels, and sort them into buckets.

    Parameters
    ----------
    client
        A ``distributed.Client``.
    scores, labels, masks
        Futures of (rows,) arrays, see ``metrics.evaluate``.
    where
        The data's name in error messages.

    Raises
    ------
    TipcastError
        D014, D015, D030, D031, see ``metrics.evaluate``.

    """
    columns = (scores, labels) if masks is None else (scores, labels, masks)
    if len({len(column) for column in columns}) != 1:
        raise ValueError(f"partitions differ in number: {[len(column) for column in columns]}")
    parts = list(zip(*columns, strict=True))
    facts = [client.submit(keys.inspect, *part, pure=False) for part in parts]
    ordered = [client.submit(keys.sort_keys, *part, pure=False) for part in parts]
    samples = [client.submit(keys.sample, future, SAMPLE, pure=False) for future in ordered]
    known, shown = client.gather([facts, samples])
    dtype = _check(known, where)
    rows = [fact.rows for fact in known]
    ordered = [future for future, n in zip(ordered, rows, strict=True) if n]
    borders = split_points(rows, shown, _number(sum(rows), len(ordered), sum(client.nthreads().values())))
    return merge(client, ordered, borders, dtype, where)


def merge(client: Any, ordered: Sequence[Any], borders: Sequence[int], dtype: str, where: str) -> Buckets:
    """Merge partitions' sorted keys into buckets that end below each border and at the end."""
    futures = []
    for low, high in zip((None, *borders), (*borders, None), strict=True):
        whole = low is None and high is None
        slices = ordered if whole else [client.submit(keys.cut, f, low, high, pure=False) for f in ordered]
        futures.append(client.submit(keys.merge, slices, pure=False))
    classes = client.gather([client.submit(keys.classes_below, future, pure=False) for future in futures])
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


def _check(facts: Sequence[keys.Facts], where: str) -> str:
    """Return the keys' dtype, or raise for what makes metrics impossible."""
    rows = sum(fact.rows for fact in facts)
    unpaired = next((fact for fact in facts if fact.labels_missing), None)
    if unpaired is not None:
        raise ValueError(f"{unpaired.rows} scores came with {unpaired.rows - unpaired.labels_missing} labels")
    if not rows:
        raise TipcastError("D014", where, "no rows to evaluate", "take a longer period or a weaker filter")
    for code, bad, what, fix in (
        ("D030", sum(f.not_numbers for f in facts), "scores are NaN", "check the model and its input"),
        ("D030", sum(f.outside for f in facts), "scores are outside 0..1", "let the model return probabilities"),
        ("D031", sum(f.odd_labels for f in facts), "labels are neither 0 nor 1", "check the target"),
    ):
        if bad:
            raise TipcastError(code, where, f"{bad} of {rows} {what}", fix)
    dtypes = {fact.dtype for fact in facts if fact.rows}
    if len(dtypes) != 1:
        raise ValueError(f"scores are of several dtypes (keys {sorted(dtypes)})")
    return dtypes.pop()
