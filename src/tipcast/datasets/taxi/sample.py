"""Synthetic trips in the TLC's columns of 2019 and later: any number of rows, the same for the same
seed.
"""

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np

from tipcast.compute.base import Array
from tipcast.datasets.parts import Period
from tipcast.datasets.taxi import schema
from tipcast.datasets.taxi.features import AIRPORTS, EPOCH_HOUR, HOURS_OF_WEEK, LAST_ZONE

# rows simulated at once, so that they stay in a core's cache; part of what a seed means
CHUNK = 32_768
HOUR = 3_600_000_000
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
PATH = Path(__file__).with_name("sample_profile.json")
OFFSET = 0.4  # miles that a trip within one zone takes; positions of zones are fitted with it
REACH = 1.2
ANYWHERE = 0.02
"""Miles over which the weight of a drop-off falls by e, and what is left at any distance; the
margins come on top.
"""
FAR = 5.0  # miles from which trips spread less around what is usual for their zones
# upper ends of the fare bins in half dollars
EDGES = np.array([5, 7.5, 10, 12.5, 15, 20, 30, 50, 53, 80]) * 2
UNKNOWN = 7  # code of a missing passenger count
EWR, JFK, LAGUARDIA = AIRPORTS
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


def alias(shares: Array, word: type[np.unsignedinteger[Any]]) -> Callable[[Array], Array]:
    """Return a function that draws outcomes in proportion to (n,) shares from random words, by
    Walker's alias method.

    A word's high bits choose a cell, the others decide between it and the cell's alias. No loop
    builds the table: rich cells' excess meets poor cells' lack, both running.
    """
    bits = (len(shares) - 1).bit_length()
    weight = np.zeros(1 << bits)
    weight[: len(shares)] = shares
    weight *= len(weight) / weight.sum()
    poor = np.flatnonzero(weight < 1)
    rich = np.flatnonzero(weight >= 1)
    lack = np.append(np.cumsum(1 - weight[poor]), np.inf)
    excess = np.cumsum(weight[rich] - 1)
    other = np.arange(len(weight))
    giver = np.searchsorted(excess, np.append(0, lack)[: len(poor)], side="right")
    other[poor] = rich[np.minimum(giver, len(rich) - 1)]
    other[rich[:-1]] = rich[1:]
    over = lack[np.searchsorted(lack, excess)] - excess
    weight[rich] = 1 - np.where(np.isfinite(over), over, 0)
    shift = 8 * word().itemsize - bits
    keep = np.round(weight.clip(0, 1) * (1 << shift)).astype(word)

    def draw(words: Array) -> Array:
        cell = (words >> shift).astype(np.intp)
        return np.where((words & ((1 << shift) - 1)) < keep[cell], cell, other[cell])

    return draw


@lru_cache(maxsize=64)
def slots(start: int, stop: int, colour: str) -> SimpleNamespace:
    """Return the whole hours of a period in microseconds since 1970, and how to draw them by the
    trips they see.
    """
    hours = np.arange(start // HOUR, stop // HOUR)
    week_hour = (hours + EPOCH_HOUR) % HOURS_OF_WEEK
    draw = alias(tables(colour).week[week_hour] * 3600, np.uint32)
    return SimpleNamespace(
        draw=draw, week_hour=week_hour.astype(np.uint8), first=hours * 3600, stop=stop // 1_000_000
    )


def _pair_shares(made: dict[str, Any], miles: Array) -> Array:
    """Fit (265, 265) shares to both margins, the share within one zone and the commonest pairs;
    near zones first.
    """
    pu, do = (np.array(made[side], float) / sum(made[side]) for side in ("pu", "do"))
    table = (np.exp(-miles / REACH) + ANYWHERE) * np.outer(pu, do)
    rows, columns, hundred_thousandths = np.array(made["pairs"]).T
    same = np.arange(LAST_ZONE)

    for _ in range(30):
        table *= np.divide(pu, table.sum(1))[:, None]
        table *= np.divide(do, table.sum(0))[None]
        table[same, same] *= made["same_zone"] / table[same, same].sum()
        table[rows - 1, columns - 1] = hundred_thousandths / 1e5
        table /= table.sum()

    return table


@lru_cache(maxsize=2)
def tables(colour: str) -> SimpleNamespace:
    """Return the tables of ``yellow`` or ``green``; a cell is ``265 * (pick-up zone - 1) + drop-off
    zone - 1``.
    """
    shipped = json.loads(PATH.read_text(encoding="utf-8"))
    made = shipped[colour]
    logit = shipped[colour]["logit"]
    pace = shipped["pace"]
    x, y = (np.array(shipped[axis], float) / 100 for axis in "xy")
    line = np.hypot(x[:, None] - x, y[:, None] - y) + OFFSET
    line[-1, :-1] += 6  # zone 265 lies outside the city
    line[:-1, -1] += 6
    miles = line.ravel()
    zone = np.arange(1, LAST_ZONE + 1)
    pu = np.repeat(zone, LAST_ZONE)
    do = np.tile(zone, LAST_ZONE)
    south = np.isin(zone, shipped["south"])
    manhattan = south | np.isin(zone, shipped["north"])
    laguardia, jfk = ((pu == airport) | (do == airport) for airport in (LAGUARDIA, JFK))
    normal = np.array([NormalDist().inv_cdf((i + 0.5) / 4096) for i in range(4096)])
    hour = np.arange(HOURS_OF_WEEK) % 24
    workday = np.arange(HOURS_OF_WEEK) < 120
    ends = (
        np.cumsum([0.005, made["zero_fare"], made["zero_miles"], made["day_long"], 0.0053]) * 65536
    )
    endings = [np.cumsum(row) / sum(row) for row in made["endings"]]
    middles = (np.arange(8192) + 0.5) / 8192
    steps = np.arange(-2048, 2048) / 100
    distances = np.log(np.arange(8192) / 100 + 0.005)

    return SimpleNamespace(
        pair=alias(_pair_shares(made, line).ravel(), np.uint32),
        people=alias(np.array(made["passengers"]), np.uint16),
        # by cell: hundredths of a mile, whether the fare is flat or has Newark's surcharge, cents,
        # chance of a toll in 256ths, and 4096 from five miles on: where in `spread` and `hold_up`
        # to look
        miles=(miles * 100).astype(np.float32),
        flat=((pu == JFK) & manhattan[do - 1]) | ((do == JFK) & manhattan[pu - 1]),
        newark=do == EWR,
        congested=np.where(
            south[pu - 1] | south[do - 1], 250 if colour == "yellow" else 275, 0
        ).astype(np.int32),
        toll=np.select([laguardia, jfk, miles > 8], [170, 133, 128], 1).astype(np.uint8),
        far=np.where(miles < FAR, 0, 4096).astype(np.uint16),
        # factors on miles
        spread=np.exp(np.outer(shipped["spread"], normal)).ravel().astype(np.float32),
        # factors on seconds
        hold_up=np.exp(np.outer(pace["sigma"], normal)).ravel().astype(np.float32),
        # seconds relative to one mile, by hundredths of a mile
        times=np.exp(np.interp(distances, np.log(pace["miles"]), np.log(pace["times"]))).astype(
            np.float32
        ),
        # by hour of the week: seconds at one mile, surcharge in cents, share of trips
        pace=np.array(pace["seconds_at_one_mile"], np.float32)[hour],
        rush=np.where(
            (hour >= 20) | (hour < 6), 50, np.where(workday & (hour >= 16), 100, 0)
        ).astype(np.int32),
        week=np.array(made["hour_of_week"], float) / sum(made["hour_of_week"]),
        # log-odds in hundredths, by half dollars the last; chance of a high tip in 65536ths by
        # their sum + 2048
        hour_logit=np.array(logit["hour"], np.int16),
        cell_logit=(logit["base"] + np.add.outer(logit["pu"], logit["do"]).ravel()).astype(
            np.int16
        ),
        people_logit=np.array(logit["passengers"], np.int16),
        fare_logit=np.array(logit["fare"], np.int16)[
            np.searchsorted(EDGES, np.arange(512), side="left")
        ],
        chance=np.round(65535 / (1 + np.exp(-steps))).astype(np.uint16),
        # (25, 8192) kind of ending: row 0 when the tip is high, 1 + hour of the day otherwise
        ending=np.stack([np.searchsorted(end, middles, side="right") for end in endings]).astype(
            np.uint8
        ),
        # by 16-bit word: NEGOTIATED to STORED, or 5
        special=np.searchsorted(ends.round(), np.arange(65536), side="right").astype(np.uint8),
        stray=max(round(made["stray"] * 65536), 1),
        vendor_1=round(made["vendor_1"] * 65536),
    )


def _simulate(
    rows: int, tables: SimpleNamespace, slots: SimpleNamespace, streams: Sequence[np.random.SFC64]
) -> dict[str, Callable[[], Array]]:
    """Simulate a chunk of trips: canonical name -> function that returns the column, (rows,). Money
    is in cents.
    """
    time, pair, crowd, ride, pay = (
        bits.random_raw(-(-count * rows // 4)).view(np.uint16)[: count * rows].reshape(count, rows)
        for bits, count in zip(streams, STREAMS, strict=True)
    )
    # when
    slot = slots.draw(time[:2].reshape(-1).view(np.uint32))
    week_hour = slots.week_hour[slot]
    pickup = slots.first[slot] + ((time[2].astype(np.int32) * 3600) >> 16)
    lost = np.flatnonzero(time[3] < tables.stray)
    off = time[2][lost].astype(np.int64) // 16
    pickup[lost] = np.choose(
        time[0][lost] % 3, [NEW_YEAR_2009 - 1 - off, slots.first[0] - 1 - off, slots.stop + off]
    )

    # who, where, how far and how long
    people = tables.people(crowd[0]).astype(np.uint8)
    unknown = people == UNKNOWN
    vendor_1 = ride[3] < tables.vendor_1
    special = tables.special[ride[2]]
    cell = tables.pair(pair.reshape(-1).view(np.uint32))
    flat = tables.flat[cell]
    newark = tables.newark[cell]
    far = tables.far[cell]
    miles = np.minimum(tables.miles[cell] * tables.spread[far + (ride[0] >> 4)], 8191).astype(
        np.int32
    )
    seconds = (
        tables.pace[week_hour] * tables.times[miles] * tables.hold_up[far + (ride[1] >> 4)]
    ).astype(np.int32)

    # half dollars by distance when fast and by time when slow, as fitted to real fares
    jitter = (ride[0] & 15).astype(np.float32) * np.float32(0.275)
    half = miles * np.float32(0.0374) + seconds * np.float32(0.01206) + jitter
    fare = np.maximum(half + np.float32(2.6), 5).astype(np.int32) * 50
    fare[flat] = FLAT
    fare[newark] += NEWARK
    odd = np.flatnonzero(special <= ZERO_FARE)
    fare[odd] = np.where(special[odd] == NEGOTIATED, fare[odd] + ride[3][odd] % 997, 0)
    rush = tables.rush[week_hour]
    rush = np.where((rush == 100) & flat, 450, rush)
    congested = tables.congested[cell]
    toll = np.where((pay[3] >> 8) < tables.toll[cell], np.int32(TOLL), np.int32(0))
    due = fare + rush + congested + toll + np.int32(IMPROVEMENT + MTA)

    # whether the tip is high, and then how the ride ended
    odds = tables.cell_logit[cell] + tables.hour_logit[week_hour] + tables.people_logit[people]
    odds += tables.fare_logit[np.minimum((fare + 49) // 50, 511)]
    high = (pay[0] < tables.chance[odds.clip(-2048, 2047) + 2048]) & (fare > 0)
    ending = np.where(high, 0, week_hour % 24 + 1).astype(np.intp)
    kind = tables.ending.ravel()[ending * 8192 + (pay[1] >> 3)]
    kind[unknown] = np.where(high[unknown], NULL_HIGH, NULL_LOW)
    tip = _tip(kind, fare, due, pay[2])
    # of a dollar, which refunds pay back
    cents = np.where((kind >= NEGATIVE) & (kind < NULL_HIGH), -100.0, 100.0)

    def dropoff() -> Array:
        took = np.where(special == DAY_LONG, 86_399 - ride[3].astype(np.int32) % 600, seconds)
        return (pickup + took) * 1_000_000

    def distance() -> Array:
        shown = np.where(vendor_1, (miles + 5) // 10 * 10, miles)  # vendor 1 gives tenths
        return np.where(special == ZERO_MILES, 0, shown) / 100.0

    return {
        "VendorID": lambda: np.where(vendor_1, 1, 2),
        "pickup": lambda: pickup * 1_000_000,
        "dropoff": dropoff,
        "passenger_count": lambda: np.where(unknown, np.nan, people),
        "trip_distance": distance,
        "RatecodeID": lambda: np.where(
            unknown, np.nan, np.select([special <= ZERO_FARE, newark, flat], [5, 3, 2], 1)
        ),
        "store_and_fwd_flag": lambda: FLAGS[np.where(unknown, 2, special == STORED)],
        "PULocationID": lambda: cell // LAST_ZONE + 1,
        "DOLocationID": lambda: cell - cell // LAST_ZONE * LAST_ZONE + 1,
        "payment_type": lambda: PAYMENT[kind],
        "fare_amount": lambda: fare / cents,
        # vendor 1 counts the congestion surcharge here as well
        "extra": lambda: (rush + np.where(vendor_1, congested, np.int32(0))) / cents,
        "mta_tax": lambda: MTA / cents,
        "tip_amount": lambda: tip / 100.0,
        "tolls_amount": lambda: toll / cents,
        "improvement_surcharge": lambda: IMPROVEMENT / cents,
        "total_amount": lambda: (due + tip) / cents,
        "congestion_surcharge": lambda: np.where(unknown, np.nan, congested / cents),
        "airport_fee": lambda: np.full(rows, np.nan),
        "trip_type": lambda: np.where(unknown, np.nan, np.where(special <= ZERO_FARE, 2, 1)),
    }


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
    key = [seed, period[0] % 2**64, period[1] % 2**64, block, schema.COLOURS.index(colour)]
    streams = [
        np.random.SFC64(np.random.SeedSequence(key, spawn_key=(i,))) for i in range(len(STREAMS))
    ]
    made: dict[str, Any] = {}

    for start in range(0, max(rows, 1), CHUNK):
        trips = _simulate(min(CHUNK, rows - start), tables(colour), slots(*period, colour), streams)
        for name in canonical if columns is None else columns:
            values = trips[canonical[name]]()
            made.setdefault(name, np.empty(rows, values.dtype))[start : start + CHUNK] = values

    return made
