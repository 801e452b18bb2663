"""Synthetic trips in the TLC's columns of 2019 and later: any number of rows, the same for the same seed."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tipcast.config.errors import TipcastError
from tipcast.config.schema import SampleData
from tipcast.datasets.base import FileScan, Fragment, Listing, Period, ScanRequest, check_blocks
from tipcast.datasets.listing import gather
from tipcast.datasets.split import of_months
from tipcast.datasets.taxi import sample_tables
from tipcast.datasets.taxi.files import parse_months
from tipcast.datasets.taxi.sample_tables import Slots, Tables
from tipcast.datasets.taxi.schema import COLOURS, check_colour, map_columns, tlc_name

VERSION = 1
"""Of what a seed means: raise it with any change to the trips, and their digests change with it."""
CHUNK = 32_768
"""Rows simulated at once, so that they stay in a core's cache; part of what a seed means."""
Ints: TypeAlias = Any
"""A NumPy array."""
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


def _simulate(
    rows: int, tables: Tables, slots: Slots, streams: Sequence[np.random.SFC64], stop: int
) -> dict[str, Callable[[], Ints]]:
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
    unknown = people == sample_tables.NULL
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
    kind[unknown] = np.where(high[unknown], sample_tables.NULL_HIGH, sample_tables.NULL_LOW)
    tip = _tip(kind, fare, due, pay[2])
    refunds = np.flatnonzero((kind >= sample_tables.NEGATIVE) & (kind < sample_tables.NULL_HIGH))

    def dollars(cents: Ints) -> Ints:
        amount = cents / 100.0
        amount[refunds] *= -1
        return amount

    def known(values: Ints) -> Ints:
        return np.where(unknown, np.nan, values)

    def distance() -> Ints:
        shown = np.where(vendor_1, (miles + 5) // 10 * 10, miles)  # vendor 1 gives tenths
        return np.where(special == ZERO_MILES, 0, shown) / 100.0

    def dropoff() -> Ints:
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
        "payment_type": lambda: sample_tables.PAYMENT[kind],
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


def _tip(kind: Ints, fare: Ints, due: Ints, dice: Ints) -> Ints:
    """Return cents by how rides ended, see ``sample_tables``."""
    tip = (sample_tables.PERCENT[kind] * due + 50) // 100
    fifth = fare // 5
    at = np.flatnonzero(kind == sample_tables.WHOLE_UP)
    tip[at] = (fifth[at] // 100 + 1) * 100
    at = np.flatnonzero(kind == sample_tables.ABOVE)
    tip[at] = fifth[at] + 1 + fare[at] * (dice[at] >> 8) // 1024
    at = np.flatnonzero(kind == sample_tables.WHOLE_DOWN)
    tip[at] = fifth[at] // 100 * 100
    at = np.flatnonzero(kind == sample_tables.TIE)
    tip[at] = fifth[at]
    # a small button on a short ride would be a high tip after all
    pressed = (kind >= 6) & (kind <= 8) & (tip >= fifth)
    below = (kind == sample_tables.BELOW) | ((kind == sample_tables.WHOLE_DOWN) & (fare < 500))
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
    ids int64, amounts float64, the flag object. C003 unknown colour or column, an empty period, a negative number.
    """
    check_colour(colour)
    if period[1] - period[0] < 1_000_000 or min(block, seed, rows) < 0:
        what = f"period {period}, block {block}, seed {seed}, rows {rows} cannot be made"
        raise TipcastError("C003", "data", what, "give a period of at least a second and no negative numbers")
    known = column_names(colour)
    wanted = list(known) if columns is None else list(columns)
    if strange := [name for name in wanted if name not in known]:
        what = f"no column {strange[0]!r} in {colour} trips"
        raise TipcastError("C003", "data.columns", what, f"choose from {', '.join(known)}")
    tables, slots = sample_tables.tables(colour), sample_tables.slots(*period, colour)
    key = [seed, period[0] % 2**64, period[1] % 2**64, block, COLOURS.index(colour)]
    streams = [np.random.SFC64(np.random.SeedSequence(key, spawn_key=(i,))) for i in range(len(STREAMS))]
    stop = -(-period[1] // 1_000_000)
    made: dict[str, Any] = {}
    for start in range(0, max(rows, 1), CHUNK):
        trips = _simulate(min(CHUNK, rows - start), tables, slots, streams, stop)
        for name in wanted:
            values = trips[known[name]]()
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
