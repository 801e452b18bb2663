"""Synthetic trips in the TLC's columns of 2019 and later: any number of rows, the same for the same
seed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tipcast.compute.base import Array
from tipcast.datasets.parts import Period
from tipcast.datasets.taxi import schema
from tipcast.datasets.taxi.features import LAST_ZONE
from tipcast.datasets.taxi.sample_tables import Hours, Tables, Tips, hours_of, tables_of

# rows simulated at once, so that they stay in a core's cache; part of what a seed means
CHUNK = 32_768
STREAMS = (4, 2, 1, 4, 4)
"""16-bit words per row of the independent random streams for time, pair of zones, passengers, ride
and payment.
"""
# cents
IMPROVEMENT = 30
MTA = 50
NEWARK = 1750
FLAT = 5200
TOLL = 612
NEW_YEAR_2009 = 1_230_768_000  # meters with a lost clock say that it is shortly before
FLAGS = np.array(["N", "Y", None], dtype=object)
NEGOTIATED, ZERO_FARE, ZERO_MILES, DAY_LONG, STORED = range(5)  # what is special of a few trips
UNKNOWN = 7  # code of a missing passenger count
PAYMENT = np.array([1.0] * 12 + [2, 3, 4, 2, 3, 4, np.nan, np.nan])
"""Payment type of each of the twenty kinds of ending, of which the first five and the next to last
have a high tip.

0-2 buttons of 20, 25, 30 %, 3 whole dollars above 20 % of the fare, 4 another tip above; by card 5
no tip, 6-8 buttons of 10, 15, 18 %, 9 whole dollars not above, 10 exactly 20 %, 11 another tip
below; 12-14 cash, no charge, dispute; 15-17 the same with a negative fare; 18 and 19 are for rows
whose payment type is missing.
"""
# button pressed, in percent of all that is due before the tip
PERCENT = np.array([20, 25, 30, 0, 0, 0, 10, 15, 18] + [0] * 9 + [20, 0], np.int32)
WHOLE_UP = 3
ABOVE = 4
WHOLE_DOWN = 9
TIE = 10
BELOW = 11
NEGATIVE = 15
NULL_HIGH = 18
NULL_LOW = 19


def column_names(colour: str) -> dict[str, str]:
    """Return the TLC's name -> the canonical one of all columns of a colour's trips."""
    lacking = (
        "ehail_fee",
        "cbd_congestion_fee",
        "trip_type" if colour == "yellow" else "airport_fee",
    )
    canonical = (name for name in (*schema.COLUMNS, "store_and_fwd_flag") if name not in lacking)
    return {schema.tlc_name(name, colour): name for name in canonical}


def sample_block(
    period: Period,
    block: int,
    seed: int,
    rows: int,
    colour: str,
    columns: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Make one block of synthetic trips, whose every value block, seed, period and colour decide;
    see docs/sample.md.

    The period is in microseconds of New York wall-clock time, whole hours, a few strays lie
    outside; ``columns`` are TLC names, all by default, and hold the same whichever are asked for.
    Returns name -> (rows,) array: timestamps int64 microseconds, ids int64, amounts float64, the
    flag object.
    """
    canonical = column_names(colour)
    names = list(canonical) if columns is None else columns
    key = [seed, period[0] % 2**64, period[1] % 2**64, block, schema.COLOURS.index(colour)]
    streams = [
        np.random.SFC64(np.random.SeedSequence(key, spawn_key=(i,))) for i in range(len(STREAMS))
    ]
    hours = hours_of(*period, colour)
    made: dict[str, Any] = {}

    for start in range(0, max(rows, 1), CHUNK):
        trips = _simulate(min(CHUNK, rows - start), tables_of(colour), hours, streams)
        for name in names:
            values = trips[canonical[name]]()
            made.setdefault(name, np.empty(rows, values.dtype))[start : start + CHUNK] = values

    return made


@dataclass(frozen=True)
class _Words:
    """Random 16-bit words of a chunk, (words, rows) of each stream, see ``STREAMS``."""

    time: Array
    pair: Array
    people: Array
    ride: Array
    payment: Array


@dataclass(frozen=True)
class _Rides:
    """When trips begin, who rides, where, how far and how long; (rows,) each."""

    pickup: Array
    """Seconds since 1970."""
    week_hour: Array
    people: Array
    """Passengers, ``UNKNOWN`` too."""
    unknown: Array
    """Whether nobody wrote down the passengers, nor how the trip was paid."""
    vendor_1: Array
    """Whether the trip is vendor 1's."""
    special: Array
    """``NEGOTIATED`` to ``STORED``, or 5."""
    cell: Array
    """Pair of zones, see ``sample_tables.Routes``."""
    flat: Array
    newark: Array
    miles: Array
    """Hundredths of a mile."""
    seconds: Array


@dataclass(frozen=True)
class _Charges:
    """What trips cost, in cents; (rows,) each."""

    fare: Array
    rush: Array
    congested: Array
    toll: Array
    due: Array
    """Before the tip."""


@dataclass(frozen=True)
class _Payments:
    """How trips are paid; (rows,) each."""

    kind: Array
    """How the ride ended, see ``PAYMENT``."""
    tip: Array
    """Tip in cents."""
    cents: Array
    """Cents of a dollar, which refunds pay back."""


def _simulate(
    rows: int, tables: Tables, hours: Hours, streams: Sequence[np.random.SFC64]
) -> dict[str, Callable[[], Array]]:
    """Simulate a chunk of trips: canonical name -> function that returns the column, (rows,)."""
    words = _draw_words(rows, streams)
    rides = _draw_rides(words, tables, hours)
    charges = _charge_rides(words, rides, tables)
    payments = _pay_rides(words, rides, charges, tables.tips)

    return _columns_of_rides(words, rides) | _columns_of_money(rides, charges, payments)


def _draw_words(rows: int, streams: Sequence[np.random.SFC64]) -> _Words:
    """Draw all words of a chunk, before any of them is used."""
    return _Words(
        *(
            bits.random_raw(-(-count * rows // 4))
            .view(np.uint16)[: count * rows]
            .reshape(count, rows)
            for bits, count in zip(streams, STREAMS, strict=True)
        )
    )


def _draw_rides(words: _Words, tables: Tables, hours: Hours) -> _Rides:
    hour = hours.draw(words.time[:2].reshape(-1).view(np.uint32))
    week_hour = hours.week_hour[hour]
    cell = tables.routes.draw(words.pair.reshape(-1).view(np.uint32))
    people = tables.people(words.people[0]).astype(np.uint8)

    far = tables.routes.far[cell]
    spread = tables.traffic.spread[far + (words.ride[0] >> 4)]
    miles = np.minimum(tables.routes.miles[cell] * spread, 8191).astype(np.int32)
    hold_up = tables.traffic.hold_up[far + (words.ride[1] >> 4)]
    seconds = tables.traffic.pace[week_hour] * tables.traffic.times[miles] * hold_up

    return _Rides(
        pickup=_draw_pickups(words.time, hour, tables.stray, hours),
        week_hour=week_hour,
        people=people,
        unknown=people == UNKNOWN,
        vendor_1=words.ride[3] < tables.vendor_1,
        special=tables.special[words.ride[2]],
        cell=cell,
        flat=tables.routes.flat[cell],
        newark=tables.routes.newark[cell],
        miles=miles,
        seconds=seconds.astype(np.int32),
    )


def _draw_pickups(time: Array, hour: Array, stray: int, hours: Hours) -> Array:
    """Return seconds since 1970 by words for the time; a few lie outside the period."""
    pickup = hours.first[hour] + ((time[2].astype(np.int32) * 3600) >> 16)
    lost = np.flatnonzero(time[3] < stray)
    off = time[2][lost].astype(np.int64) // 16
    pickup[lost] = np.choose(
        time[0][lost] % 3, [NEW_YEAR_2009 - 1 - off, hours.first[0] - 1 - off, hours.stop + off]
    )

    return pickup


def _charge_rides(words: _Words, rides: _Rides, tables: Tables) -> _Charges:
    rush = tables.rush[rides.week_hour]
    rush = np.where((rush == 100) & rides.flat, 450, rush)
    congested = tables.routes.congested[rides.cell]
    is_tolled = (words.payment[3] >> 8) < tables.routes.toll[rides.cell]
    toll = np.where(is_tolled, np.int32(TOLL), np.int32(0))

    fare = _meter_fares(words.ride, rides)
    due = fare + rush + congested + toll + np.int32(IMPROVEMENT + MTA)
    return _Charges(fare, rush, congested, toll, due)


def _meter_fares(words: Array, rides: _Rides) -> Array:
    """Return cents: half dollars by distance when fast and by time when slow, as fitted to real
    fares.
    """
    jitter = (words[0] & 15).astype(np.float32) * np.float32(0.275)
    half = rides.miles * np.float32(0.0374) + rides.seconds * np.float32(0.01206) + jitter
    fare = np.maximum(half + np.float32(2.6), 5).astype(np.int32) * 50
    fare[rides.flat] = FLAT
    fare[rides.newark] += NEWARK

    odd = np.flatnonzero(rides.special <= ZERO_FARE)
    negotiated = rides.special[odd] == NEGOTIATED
    fare[odd] = np.where(negotiated, fare[odd] + words[3][odd] % 997, 0)
    return fare


def _pay_rides(words: _Words, rides: _Rides, charges: _Charges, tips: Tips) -> _Payments:
    """Decide whether the tip is high, and then how the ride ended."""
    fare = charges.fare
    odds = tips.cell[rides.cell] + tips.hour[rides.week_hour] + tips.people[rides.people]
    odds += tips.fare[np.minimum((fare + 49) // 50, 511)]
    chance = tips.chance[odds.clip(-2048, 2047) + 2048]
    high = (words.payment[0] < chance) & (fare > 0)

    ending = np.where(high, 0, rides.week_hour % 24 + 1).astype(np.intp)
    kind = tips.ending.ravel()[ending * 8192 + (words.payment[1] >> 3)]
    kind[rides.unknown] = np.where(high[rides.unknown], NULL_HIGH, NULL_LOW)

    tip = _tip(kind, fare, charges.due, words.payment[2])
    cents = np.where((kind >= NEGATIVE) & (kind < NULL_HIGH), -100.0, 100.0)
    return _Payments(kind, tip, cents)


def _tip(kind: Array, fare: Array, due: Array, dice: Array) -> Array:
    """Return cents by how rides ended."""
    tip = (PERCENT[kind] * due + 50) // 100
    fifth = fare // 5

    at = np.flatnonzero(kind == WHOLE_UP)
    tip[at] = (fifth[at] // 100 + 1) * 100
    at = np.flatnonzero(kind == ABOVE)
    tip[at] = fifth[at] + 1 + fare[at] * (dice[at] >> 8) // 1024
    at = np.flatnonzero(kind == WHOLE_DOWN)
    tip[at] = fifth[at] // 100 * 100
    at = np.flatnonzero(kind == TIE)
    tip[at] = fifth[at]

    # a small button on a short ride would be a high tip after all
    pressed = (kind >= 6) & (kind <= 8) & (tip >= fifth)
    below = (kind == BELOW) | ((kind == WHOLE_DOWN) & (fare < 500))
    at = np.flatnonzero(pressed | below)
    tip[at] = fifth[at] * (80 + (dice[at] >> 9)) // 1280 * 5

    return tip


def _columns_of_rides(words: _Words, rides: _Rides) -> dict[str, Callable[[], Array]]:
    unknown = rides.unknown
    special = rides.special
    cell = rides.cell

    def dropoff() -> Array:
        day = 86_399 - words.ride[3].astype(np.int32) % 600
        return (rides.pickup + np.where(special == DAY_LONG, day, rides.seconds)) * 1_000_000

    def distance() -> Array:
        # vendor 1 gives tenths
        shown = np.where(rides.vendor_1, (rides.miles + 5) // 10 * 10, rides.miles)
        return np.where(special == ZERO_MILES, 0, shown) / 100.0

    def rate() -> Array:
        code = np.select([special <= ZERO_FARE, rides.newark, rides.flat], [5, 3, 2], 1)
        return np.where(unknown, np.nan, code)

    return {
        "VendorID": lambda: np.where(rides.vendor_1, 1, 2),
        "pickup": lambda: rides.pickup * 1_000_000,
        "dropoff": dropoff,
        "passenger_count": lambda: np.where(unknown, np.nan, rides.people),
        "trip_distance": distance,
        "RatecodeID": rate,
        "store_and_fwd_flag": lambda: FLAGS[np.where(unknown, 2, special == STORED)],
        "PULocationID": lambda: cell // LAST_ZONE + 1,
        "DOLocationID": lambda: cell - cell // LAST_ZONE * LAST_ZONE + 1,
        "trip_type": lambda: np.where(unknown, np.nan, np.where(special <= ZERO_FARE, 2, 1)),
    }


def _columns_of_money(
    rides: _Rides, charges: _Charges, payments: _Payments
) -> dict[str, Callable[[], Array]]:
    """Return columns in dollars."""
    cents = payments.cents
    congested = charges.congested

    def extra() -> Array:
        # vendor 1 counts the congestion surcharge here as well
        return (charges.rush + np.where(rides.vendor_1, congested, np.int32(0))) / cents

    return {
        "payment_type": lambda: PAYMENT[payments.kind],
        "fare_amount": lambda: charges.fare / cents,
        "extra": extra,
        "mta_tax": lambda: MTA / cents,
        "tip_amount": lambda: payments.tip / 100.0,
        "tolls_amount": lambda: charges.toll / cents,
        "improvement_surcharge": lambda: IMPROVEMENT / cents,
        "total_amount": lambda: (charges.due + payments.tip) / cents,
        "congestion_surcharge": lambda: np.where(rides.unknown, np.nan, congested / cents),
        "airport_fee": lambda: np.full(len(cents), np.nan),
    }
