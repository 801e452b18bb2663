"""Rules: which trips can be used and why the others cannot, and when so many cannot that the file is refused."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from types import ModuleType

from tipcast.compute.base import Array
from tipcast.config.errors import TipcastError
from tipcast.config.schema import Limits
from tipcast.datasets import address
from tipcast.datasets.base import OUTSIDE_PERIOD, Counts, Period
from tipcast.datasets.taxi.features import ABSURD, LAST_ZONE, NULL_TIME
from tipcast.datasets.taxi.schema import ZONES

PICKUP_MISSING = "pickup_missing"
FARE_MISSING = "fare_missing"
FARE_NOT_POSITIVE = "fare_not_positive"
NON_FINITE = "non_finite"
TIP_MISSING = "tip_missing"
ZONE_MISSING = "zone_missing"
BAD_ZONE = "bad_zone"
REASONS = (
    PICKUP_MISSING,
    OUTSIDE_PERIOD,
    FARE_MISSING,
    FARE_NOT_POSITIVE,
    NON_FINITE,
    TIP_MISSING,
    ZONE_MISSING,
    BAD_ZONE,
)
"""Why a row is dropped, in the order in which the first one counts."""

MISSING_PASSENGERS = "missing_passengers"
"""Count of rows read without a number of passengers, which are kept."""

SMALLEST_FARE = 5e-324
"""The smallest number above 0."""


def clean(columns: Mapping[str, Array], period: Period, xp: ModuleType) -> tuple[Array | None, dict[str, int]]:
    """Find the rows that can be used.

    A fare must be positive, fare and tip known, fare, tip and passengers at most 1e6 in size, zones 1 to 265, the
    pickup inside the period. Missing passengers are kept. Columns that are not there are not looked at.

    Parameters
    ----------
    columns
        Canonical name -> (rows,) array; ``pickup`` int64 microseconds with the smallest int64 for null.
    period
        Start and stop in microseconds.
    xp
        The arrays' module.

    Returns
    -------
    tuple
        (rows,) bool mask of the rows to keep, or None where that is all of them; and reason -> rows dropped, each row
        under its first reason of ``REASONS``, reasons without rows absent.

    """
    keep: Array | None = None
    for name in ("pickup", "fare_amount", "tip_amount", "passenger_count", *ZONES):
        if name in columns and (good := _good(name, columns[name], period)) is not None:
            keep = good if keep is None else xp.logical_and(keep, good, out=keep)
    if keep is None:
        return None, {}
    at = xp.flatnonzero(~keep)
    if len(at) == 0:
        return None, {}
    return keep, _reasons({name: values[at] for name, values in columns.items()}, period, xp)


def _good(name: str, values: Array, period: Period) -> Array | None:
    """Return a column's mask of good rows, None where its extremes (which NaN spoils) show that all are good."""
    if not len(values):
        return None
    low, high = (1, LAST_ZONE) if name in ZONES else (-ABSURD, ABSURD)
    if name == "pickup":
        low, high = period[0], period[1] - 1
    elif name == "fare_amount":
        low = SMALLEST_FARE
    if values.min() >= low and values.max() <= high:
        return None
    good = values >= low
    good &= values <= high
    if name == "passenger_count":
        good |= values != values  # NaN
    return good


def _reasons(columns: Mapping[str, Array], period: Period, xp: ModuleType) -> dict[str, int]:
    """Count rows that are all bad by their first reason."""
    pickup = columns["pickup"]
    rest = xp.ones(len(pickup), dtype=bool)
    nothing = ~rest
    fare, tip, passengers = (columns.get(name) for name in ("fare_amount", "tip_amount", "passenger_count"))
    zones = [columns[name] for name in ZONES if name in columns]

    def any_of(*masks: Array) -> Array:
        return functools.reduce(operator.or_, masks, nothing)

    found = {
        PICKUP_MISSING: pickup == NULL_TIME,
        OUTSIDE_PERIOD: (pickup < period[0]) | (pickup >= period[1]),
        FARE_MISSING: nothing if fare is None else fare != fare,
        FARE_NOT_POSITIVE: nothing if fare is None else (fare <= 0) & (fare >= -ABSURD),
        NON_FINITE: any_of(*(abs(values) > ABSURD for values in (fare, tip, passengers) if values is not None)),
        TIP_MISSING: nothing if tip is None else tip != tip,
        ZONE_MISSING: any_of(*(values != values for values in zones)),
        BAD_ZONE: any_of(*((values < 1) | (values > LAST_ZONE) for values in zones)),
    }
    dropped = {}
    for reason in REASONS:
        rows = int((found[reason] & rest).sum())
        if rows:
            dropped[reason] = rows
            rest &= ~found[reason]
    return dropped


def missing_passengers(columns: Mapping[str, Array]) -> int:
    """Return in how many rows the number of passengers is missing."""
    values = columns.get("passenger_count")
    return 0 if values is None or values.dtype.kind != "f" else int((values != values).sum())


def check_file(uri: str, names: Mapping[str, str], counts: Counts, limits: Limits) -> None:
    """Refuse a file of which too much had to be dropped.

    Parameters
    ----------
    uri
        Its address.
    names
        Canonical name -> the file's own.
    counts
        What was read of it.
    limits
        Shares of its rows.

    Raises
    ------
    TipcastError
        D009 no rows, D010 pickup times, D011 infinite or absurd numbers, D012 missing values, D013 zones.

    """
    where = address.shown(uri)
    if counts.rows_read == 0:
        raise TipcastError("D009", where, "has no rows", "remove it")
    zones = " or ".join(repr(names[name]) for name in ZONES if name in names)
    pickup, fare, tip, passengers = (
        repr(names.get(name, name)) for name in ("pickup", "fare_amount", "tip_amount", "passenger_count")
    )
    for reason, code, share, limit, fault in (
        (PICKUP_MISSING, "D010", limits.missing, "missing", f"column {pickup} is empty"),
        (OUTSIDE_PERIOD, "D010", limits.stray, "stray", f"column {pickup} lies outside the file's period"),
        (FARE_MISSING, "D012", limits.missing, "missing", f"column {fare} is empty"),
        (
            NON_FINITE,
            "D011",
            limits.non_finite,
            "non_finite",
            f"column {fare}, {tip} or {passengers} is infinite or beyond 1e6",
        ),
        (TIP_MISSING, "D012", limits.missing, "missing", f"column {tip} is empty"),
        (ZONE_MISSING, "D012", limits.missing, "missing", f"column {zones} is empty"),
        (BAD_ZONE, "D013", limits.bad_zone, "bad_zone", f"column {zones} is no taxi zone (1 to {LAST_ZONE})"),
    ):
        rows = counts.dropped.get(reason, 0)
        if rows > share * counts.rows_read:
            raise TipcastError(
                code, where, f"{fault} in {_of(rows, counts)}", f"mend the file, or raise data.limits.{limit}"
            )
    if counts.extra.get(MISSING_PASSENGERS, 0) > limits.missing_passengers * counts.rows_read:
        what = f"column {passengers} is empty in {_of(counts.extra[MISSING_PASSENGERS], counts)}"
        raise TipcastError(
            "D012", where, what, "leave it out of task.features, or raise data.limits.missing_passengers"
        )


def _of(rows: int, counts: Counts) -> str:
    return f"{rows} of {counts.rows_read} rows"
