"""Splitting by time: validation is the end of the training period, and the test period comes after it."""

from __future__ import annotations

import datetime

from tipcast.config.errors import TipcastError
from tipcast.data.fragments import Period

MINUTE = 60_000_000


def cutoff(train: Period, test: Period, validation: float) -> int | None:
    """Return where validation begins.

    Parameters
    ----------
    train, test
        Periods in microseconds since 1970.
    validation
        Share of the training period's time, at its end.

    Returns
    -------
    int or None
        Microseconds since 1970, a whole minute; None where validation is 0.

    Raises
    ------
    TipcastError
        D018 overlapping periods, D019 test before train, C003 a share outside [0, 1).

    """
    if not 0 <= validation < 1:
        raise TipcastError("C003", "task.validation", f"{validation} is no share", "use 0 (none) to below 1")
    if test[1] <= train[0]:
        raise TipcastError(
            "D019",
            f"data.test {describe(test)}",
            f"lies before data.train {describe(train)}",
            "test on a period after the training period",
        )
    if test[0] < train[1]:
        raise TipcastError(
            "D018",
            f"data.test {describe(test)}",
            f"overlaps data.train {describe(train)}",
            "test on a period that starts when training ends, or later",
        )
    if validation == 0:
        return None
    start = train[1] - int((train[1] - train[0]) * validation)
    return start - start % MINUTE


def describe(period: Period) -> str:
    """Return a period as ``2019-01-01..2019-03-31``, both days included."""
    start, stop = (datetime.datetime.fromtimestamp(value / 1e6, datetime.UTC) for value in (period[0], period[1] - 1))
    return f"{start:%Y-%m-%d}..{stop:%Y-%m-%d}"
