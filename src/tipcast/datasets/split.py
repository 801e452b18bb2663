"""Splitting rows: by time, where validation is the end of the training period and test comes after it, or at random."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from tipcast.compute.base import Array
from tipcast.config.errors import TipcastError
from tipcast.datasets.base import Fragment, Period

OTHER_SIDE = "other_side"
"""Why a row is not used here: by its time it belongs to the other side of the split."""
MINUTE = 60_000_000


def of_months(first: str, last: str | None = None) -> Period:
    """Return the period of a calendar month, ``YYYY-MM``, or that from one to another."""
    start, stop = np.datetime64(first, "M"), np.datetime64(last or first, "M") + 1
    return int(start.astype("datetime64[us]").astype(int)), int(stop.astype("datetime64[us]").astype(int))


def cutoff(trained: Iterable[Period], test: Period, validation: float) -> int | None:
    """Return where validation begins: microseconds since 1970, a whole minute, or None where validation is 0.

    It is a share of the time that the training files' periods cover, at its end; they may overlap, and the time of gaps
    between them does not count. D018 overlapping periods, D019 test before train.
    """
    spans: list[Period] = []  # those that overlap or touch are joined
    for start, stop in sorted(set(trained)):
        if spans and start <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], stop)
        else:
            spans.append((start, stop))
    train = spans[0][0], spans[-1][1]
    if test[1] <= train[0]:
        what = f"lies before data.train {describe(train)}"
        raise TipcastError("D019", f"data.test {describe(test)}", what, "test on a period after the training period")
    if test[0] < train[1]:
        what = f"overlaps data.train {describe(train)}"
        fix = "test on a period that starts when training ends, or later"
        raise TipcastError("D018", f"data.test {describe(test)}", what, fix)
    if validation == 0:
        return None
    left = int(sum(stop - start for start, stop in spans) * validation)
    while left > spans[-1][1] - spans[-1][0]:
        start, stop = spans.pop()
        left -= stop - start
    begins = spans[-1][1] - left
    return begins - begins % MINUTE


def uneven(train: int, held_out: int, validation: float) -> str | None:
    """Return a line to say where validation has less than half or more than twice its share of the rows, else None."""
    share = held_out / max(train + held_out, 1)
    if validation == 0 or validation / 2 <= share <= validation * 2:
        return None
    return f"validation is {share:.0%} of the training rows: task.validation={validation:g} is a share of their time"


def overlap(one: Period, other: Period) -> bool:
    """Return whether two periods have a moment in common."""
    return one[0] < other[1] and other[0] < one[1]


def describe(period: Period) -> str:
    """Return a period as ``2019-01-01..2019-03-31``, both days included."""
    first, last = np.array([period[0], period[1] - 1], "datetime64[us]").astype("datetime64[D]")
    return f"{first}..{last}"


@dataclass(frozen=True)
class Draw:
    """A seeded random split: the same rows fall into the same part however fragments are cut, on every device."""

    seed: int
    shares: tuple[tuple[float, float], ...]
    """Of each part: the interval within 0 to 1 that a row's random number must lie in; some rows may lie in none."""

    def sides(self, fragment: Fragment, rows: int, xp: ModuleType) -> Array:
        """Return each row's part, (rows,) int8, -1 for rows of none.

        A row's number is drawn by its place in its file (Philox, a counter-based generator: Salmon et al. 2011), or in
        its block where the places of rows are not known.
        """
        first = fragment.options.get("first")
        named = f"{self.seed} {fragment.digest} {fragment.part if first is None else ''}"
        key = np.frombuffer(hashlib.sha256(named.encode()).digest()[:16], np.uint64)
        bits = np.random.Philox(key=key)
        skipped = (first or 0) % 4  # one step of the counter makes four numbers
        bits.advance((first or 0) // 4)
        drawn = bits.random_raw(rows + skipped)[skipped:] * 2.0**-64
        side = np.full(rows, -1, dtype=np.int8)
        for part, (low, high) in enumerate(self.shares):
            side[(drawn >= low) & (drawn < high)] = part
        return xp.asarray(side)


def held_out(share: float, seed: int) -> Draw | None:
    """Return the draw of the test rows where they are a share of the training rows; None where they are their own."""
    return Draw(seed, ((1 - share, 1.0),)) if share else None
