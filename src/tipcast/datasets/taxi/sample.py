"""Synthetic trips in the TLC's columns of 2019 and later: any number of rows, the same for the same seed."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from tipcast.config.errors import TipcastError
from tipcast.config.schema import SampleData
from tipcast.datasets.base import Fragment, Listing, Period, ScanRequest, check_blocks
from tipcast.datasets.split import of_months
from tipcast.datasets.taxi import sample_tables as profile
from tipcast.datasets.taxi.files import parse_months
from tipcast.datasets.taxi.sample_tables import NEGATIVE, NULL, Slots, Tables
from tipcast.datasets.taxi.schema import COLOURS, check_colour, map_columns, tlc_name

VERSION = 1
"""Of what a seed means: raise it with any change to the trips, and their digests change with it."""
CHUNK = 32_768
"""Rows worked on at once, so that they stay in a core's cache; part of what a seed means."""
Ints: TypeAlias = Any
"""A NumPy array."""
STREAMS = {"time": 4, "pair": 2, "people": 1, "ride": 4, "pay": 4}
"""Independent random streams with 16-bit words per row: a column not asked for leaves the others as they are."""
IMPROVEMENT, MTA, NEWARK, FLAT, TOLL = 30, 50, 1750, 5200, 612
"""Cents."""
NEW_YEAR_2009 = 1_230_768_000
"""Seconds: meters with a lost clock say that it is shortly before."""
FLAGS = np.array(["N", "Y", None], dtype=object)


class Trips:
    """One chunk of trips; each quantity is worked out when first asked for. Money is in cents."""

    def __init__(self, rows: int, tables: Tables, slots: Slots, bits: Mapping[str, np.random.SFC64], stop: int) -> None:
        self.rows, self.tables, self.slots, self.stop = rows, tables, slots, stop
        self.bits = bits

    def words(self, stream: str) -> Ints:
        """(words, rows) uint16 of a stream."""
        count = STREAMS[stream] * self.rows
        return self.bits[stream].random_raw(-(-count // 4)).view(np.uint16)[:count].reshape(STREAMS[stream], self.rows)

    @cached_property
    def time(self) -> Ints:
        return self.words("time")

    @cached_property
    def ride(self) -> Ints:
        return self.words("ride")

    @cached_property
    def pay(self) -> Ints:
        return self.words("pay")

    @cached_property
    def slot(self) -> Ints:
        return self.slots.alias.draw(self.time[:2].reshape(-1).view(np.uint32))

    @cached_property
    def week_hour(self) -> Ints:
        return self.slots.week_hour[self.slot]

    @cached_property
    def pickup(self) -> Ints:
        """Seconds since 1970."""
        within = (self.time[2].astype(np.int32) * self.slots.span[self.slot]) >> 16
        at = self.slots.first[self.slot] + within
        lost = np.flatnonzero(self.time[3] < self.tables.stray)
        if lost.size:
            off = self.time[2][lost].astype(np.int64) // 16
            where = [NEW_YEAR_2009 - 1 - off, self.slots.first[0] - 1 - off, self.stop + off]
            at[lost] = np.choose(self.time[0][lost] % 3, where)
        return at

    @cached_property
    def cell(self) -> Ints:
        return self.tables.pair.draw(self.words("pair").reshape(-1).view(np.uint32))

    @cached_property
    def people(self) -> Ints:
        return self.tables.people.draw(self.words("people")[0]).astype(np.uint8)

    @cached_property
    def special(self) -> Ints:
        """0 negotiated, 1 zero fare, 2 zero miles, 3 day long, 4 stored and forwarded, 5 nothing special."""
        found = np.full(self.rows, 5, np.uint8)
        rare = np.flatnonzero(self.ride[2] < self.tables.special[-1])
        found[rare] = np.searchsorted(self.tables.special, self.ride[2][rare], side="right")
        return found

    @cached_property
    def vendor(self) -> Ints:
        return np.where(self.ride[3] < self.tables.vendor_1, 1, 2)

    @cached_property
    def far(self) -> Ints:
        return self.tables.far[self.cell]

    @cached_property
    def miles(self) -> Ints:
        """Hundredths of a mile."""
        far = self.tables.miles[self.cell] * self.tables.spread[self.far + (self.ride[0] >> 4)]
        return np.minimum(far, 8191).astype(np.int32)

    @cached_property
    def seconds(self) -> Ints:
        pace = self.tables.pace[self.week_hour] * self.tables.times[self.miles]
        return (pace * self.tables.hold_up[self.far + (self.ride[1] >> 4)]).astype(np.int32)

    @cached_property
    def due(self) -> Ints:
        """The fare before refunds: half dollars by distance when fast and by time when slow, as fitted to real ones."""
        jitter = (self.ride[0] & 15).astype(np.float32) * np.float32(0.275)
        half = self.miles * np.float32(0.0374) + self.seconds * np.float32(0.01206) + jitter
        fare = np.maximum(half + np.float32(2.6), 5).astype(np.int32) * 50
        fare[self.tables.flat[self.cell]] = FLAT
        fare[self.tables.newark[self.cell]] += NEWARK
        odd = np.flatnonzero(self.special < 2)
        fare[odd] = np.where(self.special[odd] == 0, fare[odd] + self.ride[3][odd] % 997, 0)
        return fare

    @cached_property
    def rush(self) -> Ints:
        charge = self.tables.rush[self.week_hour]
        return np.where((charge == 100) & self.tables.flat[self.cell], 450, charge)

    @cached_property
    def congested(self) -> Ints:
        return self.tables.congested[self.cell]

    @cached_property
    def toll(self) -> Ints:
        return np.where((self.pay[3] >> 8) < self.tables.toll[self.cell], np.int32(TOLL), np.int32(0))

    @cached_property
    def before_tip(self) -> Ints:
        return self.due + self.rush + self.congested + self.toll + np.int32(IMPROVEMENT + MTA)

    @cached_property
    def kind(self) -> Ints:
        """How the ride ended, see ``profile._endings``: first whether the tip is high, then how it came about."""
        tables = self.tables
        odds = tables.cell_logit[self.cell] + tables.hour_logit[self.week_hour] + tables.people_logit[self.people]
        odds += tables.fare_logit[np.minimum((self.due + 49) // 50, 511)]
        high = (self.pay[0] < tables.chance[odds.clip(-2048, 2047) + 2048]) & (self.due > 0)
        row = np.where(high, 0, self.week_hour % 24 + 1).astype(np.intp)
        kind = tables.ending.ravel()[row * 8192 + (self.pay[1] >> 3)]
        nothing = np.flatnonzero(self.people == NULL)
        kind[nothing] = np.where(high[nothing], profile.NULL_HIGH, profile.NULL_LOW)
        return kind

    @cached_property
    def tip(self) -> Ints:
        kind, fare = self.kind, self.due
        tip = (profile.PERCENT[kind] * self.before_tip + 50) // 100
        fifth = fare // 5
        at = np.flatnonzero(kind == profile.WHOLE_UP)
        tip[at] = (fifth[at] // 100 + 1) * 100
        at = np.flatnonzero(kind == profile.ABOVE)
        tip[at] = fifth[at] + 1 + fare[at] * (self.pay[2][at] >> 8) // 1024
        at = np.flatnonzero(kind == profile.WHOLE_DOWN)
        tip[at] = fifth[at] // 100 * 100
        at = np.flatnonzero(kind == profile.TIE)
        tip[at] = fifth[at]
        # a small button on a short ride would be a high tip after all
        pressed = (kind >= 6) & (kind <= 8) & (tip >= fifth)
        at = np.flatnonzero(pressed | (kind == profile.BELOW) | ((kind == profile.WHOLE_DOWN) & (fare < 500)))
        tip[at] = fifth[at] * (80 + (self.pay[2][at] >> 9)) // 1280 * 5
        return tip

    @cached_property
    def refunds(self) -> Ints:
        return np.flatnonzero((self.kind >= NEGATIVE) & (self.kind < profile.NULL_HIGH))

    def dollars(self, cents: Ints) -> Ints:
        """Return dollars, negative where the fare was refunded."""
        amount = cents / 100.0
        amount[self.refunds] *= -1
        return amount

    def gaps(self, values: Ints) -> Ints:
        """Turn numbers into floats that are missing where the passenger count is."""
        found = values.astype(np.float64)
        found[self.people == NULL] = np.nan
        return found

    def stop_time(self) -> Ints:
        """Drop-off in microseconds; a few meters ran for a day."""
        took = np.where(self.special == 3, 86_399 - self.ride[3].astype(np.int32) % 600, self.seconds)
        return (self.pickup + took) * 1_000_000

    def distance(self) -> Ints:
        """Miles: vendor 1 gives tenths."""
        miles = np.where(self.vendor == 1, (self.miles + 5) // 10 * 10, self.miles)
        return np.where(self.special == 2, 0, miles) / 100.0

    def rate_code(self) -> Ints:
        """1 standard, 2 JFK, 3 Newark, 5 negotiated."""
        code = np.where(self.tables.flat[self.cell], 2, 1)
        code[self.tables.newark[self.cell]] = 3
        code[self.special < 2] = 5
        return self.gaps(code)

    def flag(self) -> Ints:
        """N, Y or None."""
        code = (self.special == 4).astype(np.intp)
        code[self.people == NULL] = 2
        return FLAGS[code]

    def extra(self) -> Ints:
        """Vendor 1 counts the congestion surcharge here as well."""
        return self.dollars(self.rush + np.where(self.vendor == 1, self.congested, np.int32(0)))

    def total(self) -> Ints:
        """Everything due with the tip."""
        return self.dollars(self.before_tip + self.tip)


_COLUMNS: dict[str, Callable[[Trips], Any]] = {
    "VendorID": lambda t: t.vendor,
    "pickup": lambda t: t.pickup * 1_000_000,
    "dropoff": Trips.stop_time,
    "passenger_count": lambda t: t.gaps(t.people),
    "trip_distance": Trips.distance,
    "RatecodeID": Trips.rate_code,
    "store_and_fwd_flag": Trips.flag,
    "PULocationID": lambda t: t.tables.pu[t.cell],
    "DOLocationID": lambda t: t.tables.do[t.cell],
    "payment_type": lambda t: profile.PAYMENT[t.kind],
    "fare_amount": lambda t: t.dollars(t.due),
    "extra": Trips.extra,
    "mta_tax": lambda t: t.dollars(np.full(t.rows, MTA)),
    "tip_amount": lambda t: t.tip / 100.0,
    "tolls_amount": lambda t: t.dollars(t.toll),
    "improvement_surcharge": lambda t: t.dollars(np.full(t.rows, IMPROVEMENT)),
    "total_amount": Trips.total,
    "congestion_surcharge": lambda t: t.gaps(t.dollars(t.congested)),
    "airport_fee": lambda t: np.full(t.rows, np.nan),
    "trip_type": lambda t: t.gaps(np.where(t.special < 2, 2, 1)),
}
_TYPES: dict[str, Any] = dict.fromkeys(("VendorID", "pickup", "dropoff", "PULocationID", "DOLocationID"), np.int64)
_TYPES["store_and_fwd_flag"] = object
"""Of what is no double."""
_OF_ONE_COLOUR = {"airport_fee": "yellow", "trip_type": "green"}


def column_names(colour: str) -> tuple[str, ...]:
    """Return the names of all columns of a colour's trips, in order."""
    return tuple(_named(colour))


def _named(colour: str) -> dict[str, str]:
    """Return the TLC's name -> the canonical one."""
    return {tlc_name(name, colour): name for name in _COLUMNS if _OF_ONE_COLOUR.get(name, colour) == colour}


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
    known = _named(colour)
    wanted = list(known) if columns is None else list(columns)
    if strange := [name for name in wanted if name not in known]:
        what = f"no column {strange[0]!r} in {colour} trips"
        raise TipcastError("C003", "data.columns", what, f"choose from {', '.join(known)}")
    tables, slots = profile.tables(colour), profile.slots(*period, colour)
    key = [seed, period[0] % 2**64, period[1] % 2**64, block, COLOURS.index(colour)]
    bits = {name: np.random.SFC64(np.random.SeedSequence(key, spawn_key=(i,))) for i, name in enumerate(STREAMS)}
    made: dict[str, Any] = {name: np.empty(rows, _TYPES.get(known[name], np.float64)) for name in wanted}
    stop = -(-period[1] // 1_000_000)
    for start in range(0, rows, CHUNK):
        trips = Trips(min(CHUNK, rows - start), tables, slots, bits, stop)
        for name in wanted:
            made[name][start : start + trips.rows] = _COLUMNS[known[name]](trips)
    return made


def list_sample(data: SampleData, months: object, request: ScanRequest, key: str) -> Listing:
    """List the blocks of a period, over whose months rows are spread by their days; C003 colour, months or numbers."""
    check_colour(data.colour)
    check_blocks("rows", data.rows, data.block_rows)
    names = column_names(data.colour)
    columns = map_columns(names, f"sample trips ({data.colour})", request.columns, request.optional)
    chosen = parse_months(months, key)
    periods = [of_months(month) for month in chosen]
    spans = [stop - start for start, stop in periods]
    ends = [data.rows * passed // sum(spans) for passed in itertools.accumulate(spans, initial=0)]
    fragments: list[Fragment] = []
    for month, period, (first, last) in zip(chosen, periods, itertools.pairwise(ends), strict=True):
        uri = f"sample://{data.colour}/{month}/seed-{data.seed}/{last - first}"
        digest = hashlib.sha256(f"{uri} {VERSION}".encode()).hexdigest()
        for block, start in enumerate(range(first, last, data.block_rows)):
            rows = min(data.block_rows, last - start)
            options = {"rows": rows, "colour": data.colour}
            fragments.append(Fragment(uri, "sample", (block, data.seed), columns, period, digest, rows, options))
    digests = dict.fromkeys(fragment.digest for fragment in fragments)
    return Listing(
        fragments=tuple(fragments),
        period=of_months(chosen[0], chosen[-1]),
        uris=tuple(dict.fromkeys(fragment.uri for fragment in fragments)),
        digest=hashlib.sha256("\n".join((str(data.block_rows), *digests)).encode()).hexdigest(),
        name=f"{data.colour} trips",
        facts={"colour": data.colour},
    )
