"""CSV parsed on a device: plain cells by array operations; a block that holds anything else is declined.

What is taken is a subset of what the CPU's parser takes, and gives the same bits: a decimal of at most 15 digits is an
exact integer over an exact power of ten, so one division rounds it to the nearest double (Clinger 1990, How to Read
Floating Point Numbers Accurately). Everything runs on the array module that is passed, NumPy as well as CuPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np

from tipcast.backends.base import Array
from tipcast.backends.cpu import NULL_TIME

DIGITS = 15
"""Decimal digits that a double holds exactly."""
TENS = np.array([float(10**power) for power in range(DIGITS + 1)])
YEARS = (1900, 2100)
"""First year that is taken, and first that is not."""
_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_MARKS = {4: b"-", 7: b"-", 10: b" T", 13: b":", 16: b":"}
"""Position in ``2019-02-01 18:30:00`` -> what may stand there; digits elsewhere."""
_LENGTH = 19
_NEWLINE, _RETURN, _COMMA, _POINT, _MINUS, _ZERO = (np.uint8(code) for code in b"\n\r,.-0")


def parse(
    block: bytes, header: Sequence[str], columns: Sequence[str], timestamps: Sequence[str], xp: ModuleType
) -> dict[str, Array] | None:
    """Parse columns of CSV rows without their header line.

    Parameters
    ----------
    block
        Whole lines.
    header
        Names of all columns, each once.
    columns
        Those wanted.
    timestamps
        Those of the wanted ones that hold times; the others hold numbers.
    xp
        The array module: numpy or cupy.

    Returns
    -------
    dict or None
        Name -> (rows,) array, int64 microseconds or float64, see ``base.Frames``; None where a line has another number
        of fields, a cell is quoted, or a wanted cell is neither empty, nor a plain decimal of at most 15 digits, nor a
        time like ``2019-02-01 18:30:00``.

    """
    if not block or b'"' in block:
        return None
    raw = xp.asarray(np.frombuffer(block if block.endswith(b"\n") else block + b"\n", dtype=np.uint8))
    fields = _fields(raw, len(header), xp)
    if fields is None:
        return None
    starts, stops = fields
    found: dict[str, Array] = {}
    for name in columns:
        at = header.index(name)
        read = _times if name in timestamps else _numbers
        values = read(raw, starts[:, at], stops[:, at], xp)
        if values is None:
            return None
        found[name] = values
    return found


def _fields(raw: Array, width: int, xp: ModuleType) -> tuple[Array, Array] | None:
    """Return where each field begins and ends, both (rows, width); None where a line has another number of them."""
    ends = xp.flatnonzero(raw == _NEWLINE)
    stops = xp.flatnonzero((raw == _COMMA) | (raw == _NEWLINE))
    if len(stops) != len(ends) * width:
        return None
    stops = stops.reshape(len(ends), width)
    if bool((stops[:, -1] != ends).any()):
        return None
    starts = xp.empty_like(stops)
    starts[0, 0] = 0
    starts[1:, 0] = ends[:-1] + 1
    starts[:, 1:] = stops[:, :-1] + 1
    returns = int(xp.count_nonzero(raw == _RETURN))
    if returns:
        closed = (raw[xp.maximum(ends - 1, 0)] == _RETURN) & (ends > 0)
        if int(xp.count_nonzero(closed)) != returns:
            return None  # a carriage return alone ends a line too
        stops[:, -1] = ends - closed
    return starts, stops


def _numbers(raw: Array, start: Array, stop: Array, xp: ModuleType) -> Array | None:
    """Return plain decimals as (rows,) float64 with NaN for empty cells; None where one is something else."""
    length = stop - start
    longest = int(length.max())
    if longest > DIGITS + 2:  # a sign and a point
        return None
    last = len(raw) - 1
    empty = length == 0
    negative = (raw[start] == _MINUS) & ~empty
    at = start + negative
    mantissa = xp.zeros(len(start), dtype=np.int64)
    digits, decimals = (xp.zeros(len(start), dtype=np.int64) for _ in range(2))
    point, odd = (xp.zeros(len(start), dtype=bool) for _ in range(2))
    for step in range(longest):
        inside = at + step < stop
        character = raw[xp.minimum(at + step, last)]
        digit = character - _ZERO
        is_digit = inside & (digit < 10)
        is_point = inside & (character == _POINT)
        odd |= inside & ~is_digit & ~is_point
        odd |= is_point & (point | (digits == 0))
        mantissa = xp.where(is_digit, mantissa * 10 + digit, mantissa)
        digits += is_digit
        decimals += is_digit & point
        point |= is_point
    odd |= ~empty & (digits == 0)
    odd |= point & (decimals == 0)
    odd |= digits > DIGITS
    if bool(odd.any()):
        return None
    values = mantissa.astype(np.float64) / xp.asarray(TENS)[decimals]
    values = xp.where(negative, -values, values)
    values[empty] = np.nan
    return values


def _times(raw: Array, start: Array, stop: Array, xp: ModuleType) -> Array | None:
    """Return times as (rows,) int64 microseconds since 1970, NULL_TIME for empty cells; None where one is odd."""
    length = stop - start
    empty = length == 0
    last = len(raw) - 1
    odd = length != _LENGTH
    cells = [raw[xp.minimum(start + at, last)] for at in range(_LENGTH)]
    for at, marks in _MARKS.items():
        marked = cells[at] == marks[0]
        for mark in marks[1:]:
            marked |= cells[at] == mark
        odd |= ~marked
    numbers = [(cell - _ZERO).astype(np.int64) for cell in cells]
    for at in range(_LENGTH):
        if at not in _MARKS:
            odd |= numbers[at] > 9

    def number(first: int, end: int) -> Array:
        value = numbers[first]
        for at in range(first + 1, end):
            value = value * 10 + numbers[at]
        return value

    year, month, day = number(0, 4), number(5, 7), number(8, 10)
    hour, minute, second = number(11, 13), number(14, 16), number(17, 19)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    odd |= (year < YEARS[0]) | (year >= YEARS[1]) | (month < 1) | (month > 12) | (day < 1)
    longest = xp.asarray(_DAYS)[xp.clip(month, 0, 12)] + (leap & (month == 2))
    odd |= (day > longest) | (hour > 23) | (minute > 59) | (second > 59)
    if bool((odd & ~empty).any()):
        return None
    values = (((_day_of(year, month, day) * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000
    values[empty] = NULL_TIME
    return values


def _day_of(year: Array, month: Array, day: Array) -> Array:
    """Return days since 1970 of the Gregorian calendar (Hinnant 2013, chrono-Compatible Low-Level Date Algorithms)."""
    march = (month + 9) % 12  # the year begins in March, so that a leap day is its last
    year = year - (month <= 2)
    days = (153 * march + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + days - 719_468
