"""Features of raw trips; this file travels inside saved models and imports nothing but NumPy."""

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

_OF_TIME: dict[str, Callable[[Any, Any, Any], Any]] = {
    "pickup_weekday": lambda minute, hour, week: week // 24,
    # NumPy takes % several times slower
    "pickup_hour": lambda minute, hour, week: week - week // 24 * 24,
    "pickup_week_hour": lambda minute, hour, week: week,
    "pickup_minute": lambda minute, hour, week: minute - hour * 60,
}
BASE_FEATURES = (*_OF_TIME, "passenger_count", "PULocationID", "DOLocationID")
"""Monday is weekday 0; the week hour is weekday x 24 + hour."""

MISSING = -1.0
"""What stands for a missing value."""

AIRPORTS = (1, 132, 138)
"""Taxi zones of Newark, JFK and LaGuardia."""

NULL_TIME = np.iinfo(np.int64).min
FIRST_PICKUP, LAST_PICKUP = (
    int(np.datetime64(day, "us").astype(np.int64)) for day in ("2009-01-01", "2050-01-01")
)
"""Times before the first, and from the last on, are clocks gone wrong."""
LAST_ZONE = 265
NOT_FINITE = "non_finite"
ABSURD = 1e6
"""No fare, tip, distance or number of passengers is larger."""
MINUTE = 60_000_000
HOURS_OF_WEEK = 168
EPOCH_HOUR = 72
"""1970-01-01 was a Thursday: hour 72 of its week."""

SPARSE = ("VendorID", "RatecodeID", "trip_type")
"""Features as they are in a file, missing in all rows of one that has no such column, as yellow
trips no trip_type.
"""
_OF_ZONE = {"pickup_airport": "PULocationID", "dropoff_airport": "DOLocationID"}
_SOURCES = {
    **dict.fromkeys(_OF_TIME, ("pickup",)),
    **{name: (name,) for name in (*BASE_FEATURES[len(_OF_TIME) :], "trip_distance")},
    **{name: (zone,) for name, zone in _OF_ZONE.items()},
    "zone_pair": tuple(_OF_ZONE.values()),
    **{name: (name,) for name in SPARSE},
}
"""Feature -> canonical raw columns that it is made of."""
FEATURES = tuple(_SOURCES)
"""All features there are."""

_POSSIBLE = {
    "pickup": (FIRST_PICKUP, LAST_PICKUP - 1, "pickup_impossible"),
    **dict.fromkeys(_OF_ZONE.values(), (1, LAST_ZONE, "bad_zone")),
}
"""Column -> least and largest value, and why a trip with another one gets no score."""

_ZONES = np.arange(1, LAST_ZONE + 1).astype(str)
_RANKS = [np.argsort(np.argsort(np.char.add(_ZONES, end))) for end in ("_", "")]
"""Of zones as the first and as the second half of a pair, in the order of texts as 43_151."""


def needed_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Return the canonical raw columns that features are made of; KeyError for a name that is no
    feature.
    """
    return tuple(dict.fromkeys(column for name in names for column in _SOURCES[name]))


def _pairs(first: Any, second: Any, xp: ModuleType) -> Any:
    """Return the numbers of pairs of zones, in the order of their texts; missing where one is no
    zone.
    """
    are_zones = (first >= 1) & (first <= LAST_ZONE) & (second >= 1) & (second <= LAST_ZONE)
    ranks = [
        xp.asarray(rank)[xp.where(are_zones, zone, 1).astype(np.int64) - 1]
        for zone, rank in zip((first, second), _RANKS, strict=True)
    ]
    return xp.where(are_zones, ranks[0] * LAST_ZONE + ranks[1], MISSING)


def compute(columns: Mapping[str, Any], names: Sequence[str], xp: ModuleType = np) -> Any:
    """Make features: (rows, features) float32, each column contiguous, missing values -1.

    ``columns`` are canonical name -> (rows,) array of numbers with NaN for null, ``pickup`` int64
    microseconds of wall-clock time since 1970 with the smallest int64 for null, those of ``SPARSE``
    where a file has them; ``xp`` is the arrays' module, numpy or cupy.
    """
    # Column by column: a DataFrame takes each without a copy.
    matrix = xp.empty((len(next(iter(columns.values()))), len(names)), dtype=np.float32, order="F")
    if "pickup" in needed_columns(names):
        minute = (columns["pickup"] // MINUTE).astype(np.int32)
        hour = minute // 60
        week = hour + EPOCH_HOUR
        week -= week // HOURS_OF_WEEK * HOURS_OF_WEEK
        null = (
            columns["pickup"] == NULL_TIME
            if len(week) and columns["pickup"].min() == NULL_TIME
            else None
        )

    for at, name in enumerate(names):
        column = matrix[:, at]
        if name in _OF_TIME:
            column[...] = _OF_TIME[name](minute, hour, week)
            if null is not None:
                column[null] = MISSING
        elif name == "zone_pair":
            column[...] = _pairs(columns["PULocationID"], columns["DOLocationID"], xp)
        elif name in SPARSE and name not in columns:
            column[...] = MISSING
        else:
            values = columns[_OF_ZONE.get(name, name)]
            if name in _OF_ZONE:
                column[...] = (
                    (values == AIRPORTS[0]) | (values == AIRPORTS[1]) | (values == AIRPORTS[2])
                )
            else:
                column[...] = values
            if values.dtype.kind == "f":
                column[values != values] = MISSING

    return matrix


def impossible(
    columns: Mapping[str, Any], needed: Sequence[str], xp: ModuleType = np
) -> tuple[Any | None, dict[str, int]]:
    """Find rows with a value that cannot be, so that no score would mean anything; what is missing
    is no such value.

    A pickup before 2009 or from 2050 on, a zone outside 1 to 265, a number that is infinite or
    beyond 1e6.

    Returns (rows,) bool, None where there are none; and reason -> rows, each under its first
    reason. Columns that are not there are passed over.
    """
    bad: Any | None = None
    counts: dict[str, int] = {}
    for name in (name for name in needed if name in columns):
        values = columns[name]
        low, high, reason = _POSSIBLE.get(name, (-ABSURD, ABSURD, NOT_FINITE))
        wrong = (values < low) | (values > high)  # NaN is neither
        if name == "pickup":
            wrong &= values != NULL_TIME
        if bad is not None:
            wrong &= ~bad
        if rows := int(xp.count_nonzero(wrong)):
            counts[reason] = counts.get(reason, 0) + rows
            bad = wrong if bad is None else bad | wrong

    return bad, counts
