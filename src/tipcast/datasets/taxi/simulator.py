"""How one chunk of synthetic trips comes about: when, where, how far, what was due and how it was paid."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from tipcast.datasets.taxi import sample_tables as profile
from tipcast.datasets.taxi.sample_tables import NEGATIVE, NULL, Slots, Tables

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
        pressed = (
            (kind >= 6) & (kind <= 8) & (tip >= fifth)
        )  # a small button on a short ride would be a high tip after all
        at = np.flatnonzero(pressed | (kind == profile.BELOW) | ((kind == profile.WHOLE_DOWN) & (fare < 500)))
        tip[at] = fifth[at] * (80 + (self.pay[2][at] >> 9)) // 1280 * 5
        return tip

    @cached_property
    def refunds(self) -> Ints:
        return np.flatnonzero((self.kind >= NEGATIVE) & (self.kind < profile.NULL_HIGH))

    def dollars(self, cents: Ints) -> Ints:
        """Turn cents into dollars, negative where the fare was refunded."""
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
