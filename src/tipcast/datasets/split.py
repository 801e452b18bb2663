"""Splitting rows: by time, where validation is the end of the training period and test comes after
it, or at random.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import ModuleType
from typing import Any

import numpy as np

from tipcast.compute.base import Array, module_of
from tipcast.config.errors import TipcastError
from tipcast.datasets.parts import Period

OTHER_SIDE = "other_side"
"""Why a row is not used here: by its time it belongs to the other side of the split."""
MINUTE = 60_000_000
SIDES = ("test", "validation", "train")
BLOCK = 512
"""Rows of a class that are drawn together: a part draws at most two such beyond its own
rows.
"""
LARGEST = np.uint64(2**64 - 1)


def of_months(first: str, last: str | None = None) -> Period:
    """Return the period of a calendar month, ``YYYY-MM``, or that from one to another."""
    start = np.datetime64(first, "M")
    stop = np.datetime64(last or first, "M") + 1
    return int(start.astype("datetime64[us]").astype(int)), int(
        stop.astype("datetime64[us]").astype(int)
    )


def cutoff(trained: Iterable[Period], test: Period, validation: float) -> int | None:
    """Return where validation begins: microseconds since 1970, a whole minute, or None where
    validation is 0.

    It is a share of the time that the training files' periods cover, at its end; they may overlap,
    and the time of gaps between them does not count. D018 overlapping periods, D019 test before
    train.
    """
    spans = _joined(trained)
    _check_order((spans[0][0], spans[-1][1]), test)
    if validation == 0:
        return None

    left = int(sum(stop - start for start, stop in spans) * validation)
    while left > spans[-1][1] - spans[-1][0]:
        start, stop = spans.pop()
        left -= stop - start

    begins = spans[-1][1] - left
    return begins - begins % MINUTE


def _joined(periods: Iterable[Period]) -> list[Period]:
    """Return periods in time order, those that overlap or touch as one."""
    spans: list[Period] = []
    for start, stop in sorted(set(periods)):
        if spans and start <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], stop)
        else:
            spans.append((start, stop))

    return spans


def _check_order(train: Period, test: Period) -> None:
    """Refuse a test period that does not come after the training period; D018 D019."""
    where = f"data.test {describe(test)}"
    if test[1] <= train[0]:
        what = f"lies before data.train {describe(train)}"
        fix = "test on a period after the training period"
        raise TipcastError("D019", where, what, fix)
    if test[0] < train[1]:
        what = f"overlaps data.train {describe(train)}"
        fix = "test on a period that starts when training ends, or later"
        raise TipcastError("D018", where, what, fix)


def overlap(one: Period, other: Period) -> bool:
    """Return whether two periods have a moment in common."""
    return one[0] < other[1] and other[0] < one[1]


def describe(period: Period) -> str:
    """Return a period as ``2019-01-01..2019-03-31``, both days included."""
    first, last = np.array([period[0], period[1] - 1], "datetime64[us]").astype("datetime64[D]")
    return f"{first}..{last}"


def random_bits(xp: ModuleType, key: int, first: int, stop: int) -> Array:
    """Return (stop - first,) uint64 by SplitMix64 (Steele, Lea and Flood, 2014), of integers: the
    same everywhere.
    """
    z = xp.arange(first, stop, dtype=xp.uint64)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    z ^= z >> np.uint64(31)
    return z


def rows_by_class(target: Array, classes: int = 0) -> tuple[int, ...]:
    """Return how many rows there are of each class, of at least so many; ``target`` is (rows,)
    integers.
    """
    return (
        tuple(module_of(target).bincount(target, minlength=classes).tolist())
        if len(target)
        else (0,) * classes
    )


def ends_of(strata: Sequence[Sequence[int]]) -> Array:
    """Return (1 + parts, classes) rows up to each part's end, from 0 on; ``strata`` are
    those in each.
    """
    every = np.array([*zip_longest(*strata, fillvalue=0)], np.int64).reshape(-1, len(strata))
    return np.pad(np.cumsum(every, axis=1), ((0, 0), (1, 0))).T


@dataclass(frozen=True)
class Draw:
    """A seeded split with exact shares of each class, the same whatever files hold the rows, on
    every device.

    A row is drawn by its number among the rows of its class: of each ``BLOCK`` of them those with
    the smallest random numbers are tested on, and the next ones validated on. How many these are is
    rounded of all rows up to there.
    """

    seed: int
    test: float
    """Share of each class's rows."""
    validation: float = 0.0
    """Share of what remains of them."""
    splits: tuple[str, ...] = SIDES
    """Those of ``SIDES`` that are wanted."""

    def places(
        self, target: Array | None, answered: Array | None, rows: int, xp: ModuleType
    ) -> Any:
        """Return each row's place (rows,) among a part's rows sorted by class, and how many
        rows each class has.

        ``target`` None: there is one class. Rows that are not ``answered`` are of none, their
        places below 0.
        """
        # no int8 of a task's function is too narrow for it
        most = np.int32(np.iinfo(np.int16).max - 1)
        label = xp.zeros(rows, xp.int8) if target is None else xp.minimum(target, most)
        label = (label if answered is None else xp.where(answered, label, -1)).astype(xp.int16)
        place = xp.empty(rows, xp.int32)
        place[xp.argsort(label, kind="stable")] = (
            xp.arange(rows, dtype=xp.int32) - (label < 0).sum()
        )

        return place, rows_by_class(label + 1)[1:]

    def sides(self, classes: Sequence[str], ends: Array, number: int, xp: ModuleType) -> Array:
        """Return (places,) int8 indices of ``SIDES`` for the rows of the part of a number, see
        ``ends_of``.
        """
        sides = [xp.empty(0, xp.int8)]
        for name, rows in zip_longest(classes, ends[[number, number + 1, -1]].T.tolist()):
            if rows and rows[0] < rows[1]:
                sides.append(self._of_class(name, rows[0], rows[1], rows[2], xp))

        return xp.concatenate(sides)

    def _of_class(self, name: object, start: int, stop: int, total: int, xp: ModuleType) -> Array:
        key = hashlib.sha256(f"{self.seed} {name}".encode()).digest()[:8]
        edges = np.arange(start // BLOCK, -(-stop // BLOCK) + 1) * BLOCK
        first = int(edges[0])
        last = int(edges[-1])
        drawn = random_bits(xp, int.from_bytes(key, "little"), first, last)
        drawn[total - first :] = LARGEST  # there are no such rows
        drawn = drawn.reshape(-1, BLOCK)
        edges = edges.clip(max=total)
        tested = np.rint(edges * self.test)
        validated = tested + np.rint((edges - tested) * self.validation)
        ordered = xp.concatenate(
            [xp.sort(drawn, axis=1), xp.full((len(drawn), 1), LARGEST)], axis=1
        )
        side = xp.zeros(drawn.shape, xp.int8)
        for border in (tested, validated):
            place = xp.asarray(np.diff(border).astype(np.int64))
            side += drawn >= xp.take_along_axis(ordered, place[:, None], 1)

        return side.ravel()[start - first : stop - first]
