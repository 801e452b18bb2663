"""Features of raw trips; this file travels inside saved models and imports nothing but NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

BASE_FEATURES = (
    "pickup_weekday",
    "pickup_hour",
    "pickup_week_hour",
    "pickup_minute",
    "passenger_count",
    "PULocationID",
    "DOLocationID",
)
"""Monday is weekday 0; the week hour is weekday x 24 + hour."""

MISSING = -1.0
"""What stands for a missing value."""

AIRPORTS = (1, 132, 138)
"""Taxi zones of Newark, JFK and LaGuardia."""

NULL_TIME = np.iinfo(np.int64).min
FIRST_PICKUP, LAST_PICKUP = (int(np.datetime64(day, "us").astype(np.int64)) for day in ("2009-01-01", "2050-01-01"))
"""Times before the first, and from the last on, are clocks gone wrong."""
LAST_ZONE = 265
ABSURD = 1e6
"""No fare, tip, distance or number of passengers is larger."""
BAD_TIME, BAD_ZONE, NOT_FINITE = "pickup_impossible", "bad_zone", "non_finite"
"""Why a trip gets no score."""
MINUTE = 60_000_000
HOURS_OF_WEEK = 168
EPOCH_HOUR = 72
"""1970-01-01 was a Thursday: hour 72 of its week."""

_FROM_TIME: dict[str, Callable[[Any, Any, Any], Any]] = {
    "pickup_weekday": lambda minute, hour, week: week // 24,
    "pickup_hour": lambda minute, hour, week: _remainder(week, 24),
    "pickup_week_hour": lambda minute, hour, week: week,
    "pickup_minute": lambda minute, hour, week: minute - hour * 60,
}
_FROM_ZONE = {"pickup_airport": "PULocationID", "dropoff_airport": "DOLocationID"}
_FROM_PAIR = "zone_pair"
_AS_IS = ("passenger_count", "PULocationID", "DOLocationID", "trip_distance")
SPARSE = ("VendorID", "RatecodeID", "trip_type")
"""Features as they are in a file, missing in all rows of one that has no such column, as yellow trips no trip_type."""

FEATURES = (*_FROM_TIME, *_AS_IS, *_FROM_ZONE, _FROM_PAIR, *SPARSE)
"""All features there are."""

_ZONES = np.arange(1, LAST_ZONE + 1).astype(str)
_RANKS = [np.argsort(np.argsort(np.char.add(_ZONES, end))) for end in ("_", "")]
"""Of zones as the first and as the second half of a pair, in the order of texts as 43_151."""


def _remainder(values: Any, divisor: int) -> Any:
    """Return ``values % divisor``; NumPy divides by a constant several times faster than it takes remainders."""
    return values - values // divisor * divisor


def needed_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Return the canonical raw columns that features are made of; KeyError for a name that is no feature."""
    if strangers := [name for name in names if name not in FEATURES]:
        raise KeyError(strangers[0])
    sources = {**dict.fromkeys(_FROM_TIME, ("pickup",)), _FROM_PAIR: ("PULocationID", "DOLocationID")}
    columns = (sources.get(name, (_FROM_ZONE.get(name, name),)) for name in names)
    return tuple(dict.fromkeys(column for several in columns for column in several))


def _pairs(first: Any, second: Any, xp: ModuleType) -> Any:
    """Return the numbers of pairs of zones, in the order of their texts; missing where one is no zone."""
    known = (first >= 1) & (first <= LAST_ZONE) & (second >= 1) & (second <= LAST_ZONE)
    ranks = [
        xp.asarray(rank)[xp.where(known, zone, 1).astype(np.int64) - 1]
        for zone, rank in zip((first, second), _RANKS, strict=True)
    ]
    return xp.where(known, ranks[0] * LAST_ZONE + ranks[1], MISSING)


def compute(columns: Mapping[str, Any], names: Sequence[str], xp: ModuleType = np) -> Any:
    """Make features: (rows, features) float32, each column contiguous, missing values -1.

    ``columns`` are canonical name -> (rows,) array of numbers with NaN for null, ``pickup`` int64 microseconds of
    wall-clock time since 1970 with the smallest int64 for null, those of ``SPARSE`` where a file has them; ``xp`` is
    the arrays' module, numpy or cupy.
    """
    rows = len(next(iter(columns.values())))
    matrix = xp.empty((rows, len(names)), dtype=np.float32, order="F")
    if any(name in _FROM_TIME for name in names):
        pickup = columns["pickup"]
        null = pickup == NULL_TIME if rows and pickup.min() == NULL_TIME else None
        minute = (pickup // MINUTE).astype(np.int32)
        hour = minute // 60
        week = _remainder(hour + EPOCH_HOUR, HOURS_OF_WEEK)
    for at, name in enumerate(names):
        column = matrix[:, at]
        if name in _FROM_TIME:
            column[...] = _FROM_TIME[name](minute, hour, week)
            if null is not None:
                column[null] = MISSING
            continue
        if name in SPARSE and name not in columns:
            column[...] = MISSING
            continue
        if name == _FROM_PAIR:
            column[...] = _pairs(columns["PULocationID"], columns["DOLocationID"], xp)
            continue
        values = columns[_FROM_ZONE.get(name, name)]
        if name in _FROM_ZONE:
            column[...] = (values == AIRPORTS[0]) | (values == AIRPORTS[1]) | (values == AIRPORTS[2])
        else:
            column[...] = values
        if values.dtype.kind == "f":
            column[values != values] = MISSING
    return matrix


def impossible(
    columns: Mapping[str, Any], needed: Sequence[str], xp: ModuleType = np
) -> tuple[Any | None, dict[str, int]]:
    """Find rows with a value that cannot be, so that no score would mean anything; what is missing is no such value.

    A pickup before 2009 or from 2050 on, a zone outside 1 to 265, a number that is infinite or beyond 1e6.

    Returns (rows,) bool, None where there are none; and reason -> rows, each under its first reason. Columns that are
    not there are passed over.
    """
    bad: Any | None = None
    counts: dict[str, int] = {}
    for name in (name for name in needed if name in columns):
        values = columns[name]
        if name == "pickup":
            found, reason = ((values < FIRST_PICKUP) | (values >= LAST_PICKUP)) & (values != NULL_TIME), BAD_TIME
        elif name in _FROM_ZONE.values():
            found, reason = (values < 1) | (values > LAST_ZONE), BAD_ZONE
        else:
            found, reason = abs(values) > ABSURD, NOT_FINITE
        if bad is not None:
            found &= ~bad
        rows = int(xp.count_nonzero(found))
        if rows:
            counts[reason] = counts.get(reason, 0) + rows
            bad = found if bad is None else bad | found
    return bad, counts
