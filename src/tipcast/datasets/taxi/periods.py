"""Periods: months as users and file names write them, and the months that a file's own pickup times fall in."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from tipcast.config.errors import TipcastError
from tipcast.datasets.base import Period
from tipcast.datasets.taxi.features import FIRST_PICKUP, LAST_PICKUP

DAY = 86_400_000_000
"""Microseconds."""
_EPOCH = datetime.date(1970, 1, 1)
EARLIEST, LATEST = (_EPOCH + datetime.timedelta(microseconds=each) for each in (FIRST_PICKUP, LAST_PICKUP))
"""Pickup times outside are clocks gone wrong; they say nothing of a file's period."""
SHARE = 0.01
"""A month with a smaller share of a file's rows is not what the file is about."""
_MONTH = re.compile(r"(?<!\d)(20\d\d)-(0[1-9]|1[0-2])(?!\d)")


def start_of(day: datetime.date) -> int:
    """Return midnight of a day in microseconds since 1970."""
    return (day - _EPOCH).days * DAY


def month_period(year: int, month: int) -> Period:
    """Return the period of a calendar month."""
    following = datetime.date(year + month // 12, month % 12 + 1, 1)
    return start_of(datetime.date(year, month, 1)), start_of(following)


def parse_months(wanted: Any, key: str) -> list[str]:
    """Read months like ``2019-01``, ranges like ``2019-01..2019-03`` or a list of them.

    Parameters
    ----------
    wanted
        What the configuration holds.
    key
        Its name there, for messages.

    Returns
    -------
    list of str
        ``YYYY-MM``, sorted, each once.

    Raises
    ------
    TipcastError
        C003 anything else.

    """
    items = [wanted] if isinstance(wanted, str) else list(wanted) if isinstance(wanted, Iterable) else [str(wanted)]
    found: set[str] = set()
    for item in items:
        first, dots, last = str(item).strip().partition("..")
        ends = [_MONTH.fullmatch(text.strip()) for text in (first, last if dots else first)]
        if not (ends[0] and ends[1]):
            raise TipcastError(
                "C003", key, f"{str(item)!r} is no month", "write months as 2019-01, 2019-01..2019-03 or a list of them"
            )
        start, stop = (int(match[1]) * 12 + int(match[2]) - 1 for match in ends if match)
        if stop < start:
            raise TipcastError("C003", key, f"{str(item)!r} ends before it starts", "write the earlier month first")
        found.update(f"{month // 12}-{month % 12 + 1:02d}" for month in range(start, stop + 1))
    if not found:
        raise TipcastError("C003", key, "names no month", "write months as 2019-01, 2019-01..2019-03 or a list of them")
    return sorted(found)


def period_of(month: str) -> Period:
    """Return the period of a month written ``YYYY-MM``."""
    return month_period(int(month[:4]), int(month[5:7]))


def period_in_name(name: str) -> Period | None:
    """Return the period from the first to the last ``YYYY-MM`` in a file's name, or None."""
    months = sorted(month_period(int(year), int(month)) for year, month in _MONTH.findall(name))
    return (months[0][0], months[-1][1]) if months else None


class DayCounts:
    """Rows per day of pickup, from which a file's period is inferred."""

    def __init__(self) -> None:
        self._days: npt.NDArray[np.int64] = np.zeros((LATEST - EARLIEST).days, np.int64)
        self.rows = 0
        """Rows seen, with those outside all days."""

    def add(self, pickup: npt.NDArray[np.int64]) -> None:
        """Count (rows,) int64 microseconds."""
        self.rows += len(pickup)
        low, high = start_of(EARLIEST), start_of(LATEST)
        sane = (
            pickup
            if len(pickup) and pickup.min() >= low and pickup.max() < high
            else pickup[(pickup >= low) & (pickup < high)]
        )
        self._days += np.bincount((sane - low) // DAY, minlength=len(self._days))

    def add_range(self, first: int, last: int, rows: int) -> bool:
        """Count rows known to lie from ``first`` to ``last``; False where these are not in one month."""
        if not start_of(EARLIEST) <= first <= last < start_of(LATEST):
            return False
        day = _EPOCH + datetime.timedelta(days=first // DAY)
        if last >= month_period(day.year, day.month)[1]:
            return False
        self.rows += rows
        self._days[first // DAY - start_of(EARLIEST) // DAY] += rows
        return True

    def period(self, where: str) -> Period:
        """Return the period from the first to the last month with at least 1 % of the rows.

        Raises
        ------
        TipcastError
            D010 no such month.

        """
        starts = [
            (datetime.date(year, month, 1) - EARLIEST).days
            for year in range(EARLIEST.year, LATEST.year)
            for month in range(1, 13)
        ]
        months = np.flatnonzero(np.add.reduceat(self._days, starts) > max(SHARE * self.rows, 1) - 1e-9)
        if not len(months):
            between = f"between {EARLIEST.year} and {LATEST.year - 1}"
            what = f"{int(self._days.sum())} of {self.rows} pickup times lie {between}, too few for a month"
            raise TipcastError("D010", where, what, "check the pickup column")
        first, last = int(months[0]), int(months[-1])
        return (
            month_period(EARLIEST.year + first // 12, first % 12 + 1)[0],
            month_period(EARLIEST.year + last // 12, last % 12 + 1)[1],
        )
