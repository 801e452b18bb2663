"""Periods of time: calendar months, and a split where validation is the end of the training period
and test comes after it.
"""

from collections.abc import Iterable

import numpy as np

from tipcast.config.errors import TipcastError
from tipcast.datasets.parts import Period

OTHER_SIDE = "other_side"
"""Why a row is not used here: by its time it belongs to the other side of the split."""
MINUTE = 60_000_000


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
    and the time of gaps between them does not count.

    Raises D018 for overlapping periods, D019 for a test before the training.
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
    """Refuse a test period that does not come after the training period. Raises D018 or D019."""
    where = f"data.test {describe(test)}"
    if test[1] <= train[0]:
        what = f"is before data.train {describe(train)}"
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
