"""Synthetic trips in the TLC's columns of 2019 and later: any number of rows, the same for the same seed."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np

from tipcast.compute.base import Array
from tipcast.config.schema import SampleData
from tipcast.datasets.base import FileScan, Fragment, Listing, Period, ScanRequest, check_blocks
from tipcast.datasets.listing import gather
from tipcast.datasets.split import of_months
from tipcast.datasets.taxi.files import parse_months
from tipcast.datasets.taxi.schema import COLOURS, check_colour, map_columns, tlc_name

VERSION = 1
"""Of what a seed means: raise it with any change to the trips, and their digests change with it."""
CHUNK = 32_768
"""Rows simulated at once, so that they stay in a core's cache; part of what a seed means."""
STREAMS = {"time": 4, "pair": 2, "people": 1, "ride": 4, "pay": 4}
"""Independent random streams with 16-bit words per row."""
IMPROVEMENT, MTA, NEWARK, FLAT, TOLL = 30, 50, 1750, 5200, 612
"""Cents."""
NEW_YEAR_2009 = 1_230_768_000
"""Seconds: meters with a lost clock say that it is shortly before."""
FLAGS = np.array(["N", "Y", None], dtype=object)
COLUMNS = (
    *("VendorID", "pickup", "dropoff", "passenger_count", "trip_distance", "RatecodeID", "store_and_fwd_flag"),
    *("PULocationID", "DOLocationID", "payment_type", "fare_amount", "extra", "mta_tax", "tip_amount", "tolls_amount"),
    *("improvement_surcharge", "total_amount", "congestion_surcharge", "airport_fee", "trip_type"),
)
"""Canonical names in the TLC's order."""
OF_ONE_COLOUR = {"airport_fee": "yellow", "trip_type": "green"}
NEGOTIATED, ZERO_FARE, ZERO_MILES, DAY_LONG, STORED = range(5)
"""What is special of a few trips."""
PATH = Path(__file__).with_name("sample_profile.json")
ZONES = 265
OFFSET = 0.4
"""Miles that a trip within one zone takes; positions of zones are fitted with it."""
REACH, ANYWHERE = 1.2, 0.02
"""Miles over which the weight of a drop-off falls by e, and what is left at any distance; the margins come on top."""
FAR = 5.0
"""Miles from which trips spread less around what is usual for their zones."""
NULL = 7
"""Code of a missing passenger count."""
EDGES = np.array([5, 7.5, 10, 12.5, 15, 20, 30, 50, 53, 80]) * 2
"""Upper ends of the fare bins in half dollars."""
JFK, EWR, LAGUARDIA = 132, 1, 138
PAYMENT = np.array([1.0] * 12 + [2, 3, 4, 2, 3, 4, np.nan, np.nan])
"""Payment type of each of the twenty kinds of ending, of which the first five and the next to last have a high tip.

0-2 buttons of 20, 25, 30 %, 3 whole dollars above 20 % of the fare, 4 another tip above; by card 5 no tip,
6-8 buttons of 10, 15, 18 %, 9 whole dollars not above, 10 exactly 20 %, 11 another tip below; 12-14 cash, no
charge, dispute; 15-17 the same with a negative fare; 18 and 19 are for rows whose payment type is missing.
"""
PERCENT = np.array([20, 25, 30, 0, 0, 0, 10, 15, 18] + [0] * 9 + [20, 0], np.int32)
"""Button pressed, in percent of all that is due before the tip."""
WHOLE_UP, ABOVE, WHOLE_DOWN, TIE, BELOW, NEGATIVE, NULL_HIGH, NULL_LOW = 3, 4, 9, 10, 11, 15, 18, 19


class Alias:
    """Walker's alias method: a word's high bits choose a cell, the others decide between it and the cell's alias."""

    def __init__(self, shares: Array, word: type[np.unsignedinteger[Any]]) -> None:
        """Build the table of (n,) weights without a loop: rich cells' excess meets poor cells' lack, both running."""
        bits = max(int(np.ceil(np.log2(len(shares)))), 1)
        weight = np.zeros(1 << bits)
        weight[: len(shares)] = shares
        weight *= len(weight) / weight.sum()
        poor, rich = np.flatnonzero(weight < 1), np.flatnonzero(weight >= 1)
        lack, excess = np.append(np.cumsum(1 - weight[poor]), np.inf), np.cumsum(weight[rich] - 1)
        self.alias = np.arange(len(weight))
        giver = np.searchsorted(excess, np.append(0, lack)[: len(poor)], side="right")
        self.alias[poor] = rich[np.minimum(giver, len(rich) - 1)]
        self.alias[rich[:-1]] = rich[1:]
        over = lack[np.searchsorted(lack, excess)] - excess
        weight[rich] = 1 - np.where(np.isfinite(over), over, 0)
        self.shift = 8 * word().itemsize - bits
        self.keep = np.round(weight.clip(0, 1) * (1 << self.shift)).astype(word)

    def draw(self, words: Array) -> Array:
        """Map (n,) random words to (n,) outcomes."""
        cell = (words >> words.dtype.type(self.shift)).astype(np.intp)
        low = words & words.dtype.type((1 << self.shift) - 1)
        return np.where(low < self.keep[cell], cell, self.alias[cell])


@lru_cache(maxsize=64)
def slots(start: int, stop: int, colour: str) -> SimpleNamespace:
    """List the hours of a period in microseconds since 1970, with their chances by how many trips they see.

    First seconds since 1970 of those that lie in the period, seconds of them in it, and hours of the week, of which 0
    is Monday midnight.
    """
    first, last = -(-start // 1_000_000), -(-stop // 1_000_000)
    hours = np.arange(first // 3600, (last - 1) // 3600 + 1)
    low = np.maximum(hours * 3600, first)
    span = np.minimum(hours * 3600 + 3600, last) - low
    week_hour = (hours + 72) % 168  # 1970 began on a Thursday
    alias = Alias(tables(colour).week[week_hour] * span, np.uint32)
    return SimpleNamespace(alias=alias, first=low, span=span.astype(np.int32), week_hour=week_hour.astype(np.uint8))


def _pair_shares(made: dict[str, Any], miles: Array) -> Array:
    """Fit (265, 265) shares to both margins, the share within one zone and the commonest pairs; near zones first."""
    pu, do = (np.array(made[side], float) / sum(made[side]) for side in ("pu", "do"))
    table = (np.exp(-miles / REACH) + ANYWHERE) * np.outer(pu, do)
    top = np.array(made["pairs"])
    rows, columns, target = top[:, 0] - 1, top[:, 1] - 1, top[:, 2] / 1e5
    same = np.arange(ZONES)
    for _ in range(30):
        table *= np.divide(pu, table.sum(1))[:, None]
        table *= np.divide(do, table.sum(0))[None]
        table[same, same] *= made["same_zone"] / table[same, same].sum()
        table[rows, columns] = target
        table /= table.sum()
    return table


@lru_cache(maxsize=2)
def tables(colour: str) -> SimpleNamespace:
    """Return the tables of ``yellow`` or ``green``; a cell is ``265 * (pick-up zone - 1) + drop-off zone - 1``."""
    shipped = json.loads(PATH.read_text(encoding="utf-8"))
    made, logit = shipped[colour], shipped[colour]["logit"]
    x, y = (np.array(shipped[axis], float) / 100 for axis in "xy")
    miles = np.hypot(x[:, None] - x, y[:, None] - y) + OFFSET
    miles[ZONES - 1] += 6  # zone 265 lies outside the city
    miles[:, ZONES - 1] += 6
    miles[ZONES - 1, ZONES - 1] = OFFSET
    zone = np.arange(1, ZONES + 1)
    pu, do = np.repeat(zone, ZONES), np.tile(zone, ZONES)
    south = np.isin(zone, shipped["south"])
    manhattan = south | np.isin(zone, shipped["north"])
    flat = ((pu == JFK) & manhattan[do - 1]) | ((do == JFK) & manhattan[pu - 1])
    airport = np.where((pu == LAGUARDIA) | (do == LAGUARDIA), 170, np.where((pu == JFK) | (do == JFK), 133, 0))
    toll = np.where(airport > 0, airport, np.where(miles.ravel() > 8, 128, 1))
    normal = np.array([NormalDist().inv_cdf((i + 0.5) / 4096) for i in range(4096)])
    pace, week_hour = shipped["pace"], np.arange(168)
    hour, workday = week_hour % 24, week_hour < 120
    ends = np.cumsum([0.005, made["zero_fare"], made["zero_miles"], made["day_long"], 0.0053]) * 65536
    endings, middles = [np.cumsum(row) / sum(row) for row in made["endings"]], (np.arange(8192) + 0.5) / 8192
    steps, distances = np.arange(-2048, 2048) / 100, np.log(np.arange(8192) / 100 + 0.005)
    return SimpleNamespace(
        pair=Alias(_pair_shares(made, miles).ravel(), np.uint32),
        people=Alias(np.array(made["passengers"]), np.uint16),
        pu=pu,
        do=do,
        # (cells,) hundredths of a mile
        miles=(miles.ravel() * 100).astype(np.float32),
        # (cells,) true between JFK and Manhattan
        flat=flat,
        newark=do == EWR,
        # (cells,) in cents
        congested=np.where(south[pu - 1] | south[do - 1], 250 if colour == "yellow" else 275, 0).astype(np.int32),
        # (cells,) chance of a toll in 256ths
        toll=toll.astype(np.uint8),
        # (cells,) 4096 from five miles on, 0 below: where in the next two tables to look
        far=np.where(miles.ravel() < FAR, 0, 4096).astype(np.uint16),
        # (2 * 4096,) factors on miles
        spread=np.exp(np.outer(shipped["spread"], normal)).ravel().astype(np.float32),
        # (2 * 4096,) factors on seconds
        hold_up=np.exp(np.outer(pace["sigma"], normal)).ravel().astype(np.float32),
        # (8192,) seconds relative to one mile, by hundredths of a mile
        times=np.exp(np.interp(distances, np.log(pace["miles"]), np.log(pace["times"]))).astype(np.float32),
        # (168,) seconds at one mile by hour of the week
        pace=np.array(pace["seconds_at_one_mile"], np.float32)[hour],
        # (168,) hourly surcharge in cents
        rush=np.where((hour >= 20) | (hour < 6), 50, np.where(workday & (hour >= 16), 100, 0)).astype(np.int32),
        # log-odds in hundredths, as the next three
        hour_logit=np.array(logit["hour"], np.int16),
        cell_logit=(logit["base"] + np.add.outer(logit["pu"], logit["do"]).ravel()).astype(np.int16),
        people_logit=np.array(logit["passengers"], np.int16),
        # (512,) by half dollars
        fare_logit=np.array(logit["fare"], np.int16)[np.searchsorted(EDGES, np.arange(512), side="left")],
        # (4096,) chance of a high tip in 65536ths by log-odds + 2048
        chance=np.round(65535 / (1 + np.exp(-steps))).astype(np.uint16),
        # (25, 8192) kind of ending: row 0 when the tip is high, 1 + hour of the day otherwise
        ending=np.stack([np.searchsorted(end, middles, side="right") for end in endings]).astype(np.uint8),
        # (65536,) 0 negotiated, 1 zero fare, 2 zero miles, 3 day long, 4 stored and forwarded, 5 nothing special
        special=np.searchsorted(ends.round(), np.arange(65536), side="right").astype(np.uint8),
        stray=max(round(made["stray"] * 65536), 1),
        vendor_1=round(made["vendor_1"] * 65536),
        # (168,) share of trips by hour of the week
        week=np.array(made["hour_of_week"], float) / sum(made["hour_of_week"]),
    )


def _simulate(
    rows: int, tables: SimpleNamespace, slots: SimpleNamespace, streams: Sequence[np.random.SFC64], stop: int
) -> dict[str, Callable[[], Array]]:
    """Simulate a chunk of trips: canonical name -> function that returns the column, (rows,). Money is in cents."""
    time, pair, crowd, ride, pay = (
        bits.random_raw(-(-count * rows // 4)).view(np.uint16)[: count * rows].reshape(count, rows)
        for bits, count in zip(streams, STREAMS.values(), strict=True)
    )
    # when
    slot = slots.alias.draw(time[:2].reshape(-1).view(np.uint32))
    week_hour = slots.week_hour[slot]
    pickup = slots.first[slot] + ((time[2].astype(np.int32) * slots.span[slot]) >> 16)
    lost = np.flatnonzero(time[3] < tables.stray)
    off = time[2][lost].astype(np.int64) // 16
    pickup[lost] = np.choose(time[0][lost] % 3, [NEW_YEAR_2009 - 1 - off, slots.first[0] - 1 - off, stop + off])

    # who, where, how far and how long
    people = tables.people.draw(crowd[0]).astype(np.uint8)
    unknown = people == NULL
    vendor_1 = ride[3] < tables.vendor_1
    special = tables.special[ride[2]]
    cell = tables.pair.draw(pair.reshape(-1).view(np.uint32))
    flat, newark, far = tables.flat[cell], tables.newark[cell], tables.far[cell]
    miles = np.minimum(tables.miles[cell] * tables.spread[far + (ride[0] >> 4)], 8191).astype(np.int32)
    seconds = tables.pace[week_hour] * tables.times[miles] * tables.hold_up[far + (ride[1] >> 4)]
    seconds = seconds.astype(np.int32)

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
    refunds = np.flatnonzero((kind >= NEGATIVE) & (kind < NULL_HIGH))

    def dollars(cents: Array) -> Array:
        amount = cents / 100.0
        amount[refunds] *= -1
        return amount

    def known(values: Array) -> Array:
        return np.where(unknown, np.nan, values)

    def distance() -> Array:
        shown = np.where(vendor_1, (miles + 5) // 10 * 10, miles)  # vendor 1 gives tenths
        return np.where(special == ZERO_MILES, 0, shown) / 100.0

    def dropoff() -> Array:
        took = np.where(special == DAY_LONG, 86_399 - ride[3].astype(np.int32) % 600, seconds)
        return (pickup + took) * 1_000_000

    return {
        "VendorID": lambda: np.where(vendor_1, 1, 2),
        "pickup": lambda: pickup * 1_000_000,
        "dropoff": dropoff,
        "passenger_count": lambda: known(people),
        "trip_distance": distance,
        "RatecodeID": lambda: known(np.select([special <= ZERO_FARE, newark, flat], [5, 3, 2], 1)),
        "store_and_fwd_flag": lambda: FLAGS[np.where(unknown, 2, special == STORED)],
        "PULocationID": lambda: tables.pu[cell],
        "DOLocationID": lambda: tables.do[cell],
        "payment_type": lambda: PAYMENT[kind],
        "fare_amount": lambda: dollars(fare),
        # vendor 1 counts the congestion surcharge here as well
        "extra": lambda: dollars(rush + np.where(vendor_1, congested, np.int32(0))),
        "mta_tax": lambda: dollars(np.full(rows, MTA)),
        "tip_amount": lambda: tip / 100.0,
        "tolls_amount": lambda: dollars(toll),
        "improvement_surcharge": lambda: dollars(np.full(rows, IMPROVEMENT)),
        "total_amount": lambda: dollars(due + tip),
        "congestion_surcharge": lambda: known(dollars(congested)),
        "airport_fee": lambda: np.full(rows, np.nan),
        "trip_type": lambda: known(np.where(special <= ZERO_FARE, 2, 1)),
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
    """Return the TLC's name -> the canonical one of all columns of a colour's trips, in order."""
    return {tlc_name(name, colour): name for name in COLUMNS if OF_ONE_COLOUR.get(name, colour) == colour}


def sample_block(
    period: Period, block: int, seed: int, rows: int, colour: str, columns: Sequence[str] | None = None
) -> dict[str, Any]:
    """Make one block of synthetic trips, whose every value block, seed, period and colour decide; see docs/sample.md.

    The period is in microseconds of New York wall-clock time, a few strays lie outside; ``columns`` are TLC names, all
    by default, and hold the same whichever are asked for. Returns name -> (rows,) array: timestamps int64 microseconds,
    ids int64, amounts float64, the flag object.
    """
    canonical = column_names(colour)
    key = [seed, period[0] % 2**64, period[1] % 2**64, block, COLOURS.index(colour)]
    streams = [np.random.SFC64(np.random.SeedSequence(key, spawn_key=(i,))) for i in range(len(STREAMS))]
    depends = tables(colour), slots(*period, colour), streams, -(-period[1] // 1_000_000)
    made: dict[str, Any] = {}
    for start in range(0, max(rows, 1), CHUNK):
        trips = _simulate(min(CHUNK, rows - start), *depends)
        for name in canonical if columns is None else columns:
            values = trips[canonical[name]]()
            made.setdefault(name, np.empty(rows, values.dtype))[start : start + CHUNK] = values
    return made


def list_sample(data: SampleData, months: object, request: ScanRequest, key: str) -> Listing:
    """List the blocks of a period, over whose months rows are spread by their days; C003 colour, months or numbers."""
    check_colour(data.colour)
    check_blocks("rows", data.rows, data.block_rows)
    names = tuple(column_names(data.colour))
    columns = map_columns(names, f"sample trips ({data.colour})", request.columns, request.optional)
    chosen = parse_months(months, key)
    periods = [of_months(month) for month in chosen]
    spans = [stop - start for start, stop in periods]
    ends = [data.rows * passed // sum(spans) for passed in itertools.accumulate(spans, initial=0)]
    scans = []
    for month, period, (first, last) in zip(chosen, periods, itertools.pairwise(ends), strict=True):
        uri = f"sample://{data.colour}/{month}/seed-{data.seed}/{last - first}"
        digest = hashlib.sha256(f"{uri} {VERSION}".encode()).hexdigest()
        fragments = []
        for block, start in enumerate(range(first, last, data.block_rows)):
            rows, options = min(data.block_rows, last - start), {"colour": data.colour}
            fragments.append(Fragment(uri, "sample", (block, data.seed), columns, period, digest, rows, options))
        scans.append(FileScan(uri, tuple(fragments), period, f"{digest} {data.block_rows}"))
    return gather(scans, f"{data.colour} trips", {"colour": data.colour})
