"""What synthetic trips imitate: rounded statistics of real months, and look-up tables made from them once."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

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
JFK, NEWARK, LAGUARDIA = 132, 1, 138
PAYMENT = np.array([1.0] * 12 + [2, 3, 4, 2, 3, 4, np.nan, np.nan])
"""Payment type of each of the twenty kinds of ending, of which the first five and the next to last have a high tip.

0-2 buttons of 20, 25, 30 %, 3 whole dollars above 20 % of the fare, 4 another tip above; by card 5 no tip,
6-8 buttons of 10, 15, 18 %, 9 whole dollars not above, 10 exactly 20 %, 11 another tip below; 12-14 cash, no
charge, dispute; 15-17 the same with a negative fare; 18 and 19 are for rows whose payment type is missing.
"""
PERCENT = np.array([20, 25, 30, 0, 0, 0, 10, 15, 18] + [0] * 9 + [20, 0], np.int32)
"""Button pressed, in percent of all that is due before the tip."""
WHOLE_UP, ABOVE, WHOLE_DOWN, TIE, BELOW, NEGATIVE, NULL_HIGH, NULL_LOW = 3, 4, 9, 10, 11, 15, 18, 19

Ints: TypeAlias = Any
Floats: TypeAlias = Any
Tables: TypeAlias = SimpleNamespace
"""All look-up tables of one colour, see ``tables``."""
Slots: TypeAlias = SimpleNamespace
"""The hours of a period, see ``slots``."""


class Alias:
    """Walker's alias method: a word's high bits choose a cell, the others decide between it and the cell's alias."""

    def __init__(self, shares: Floats, word: type[np.unsignedinteger[Any]]) -> None:
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

    def draw(self, words: Ints) -> Ints:
        """Map (n,) random words to (n,) outcomes."""
        cell = (words >> words.dtype.type(self.shift)).astype(np.intp)
        low = words & words.dtype.type((1 << self.shift) - 1)
        return np.where(low < self.keep[cell], cell, self.alias[cell])


def inverse(shares: list[float]) -> Ints:
    """Tabulate 8192 outcomes in proportion to the shares: (8192,) uint8."""
    ends = np.cumsum(shares) / sum(shares)
    return np.searchsorted(ends, (np.arange(8192) + 0.5) / 8192, side="right").astype(np.uint8)


def constants() -> dict[str, Any]:
    """Read the shipped statistics; ``benchmarks/sample_constants.py`` made them."""
    return dict(json.loads(PATH.read_text(encoding="utf-8")))


@lru_cache(maxsize=64)
def slots(start: int, stop: int, colour: str) -> Slots:
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


def _pair_shares(made: dict[str, Any], miles: Floats) -> Floats:
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
def tables(colour: str) -> Tables:
    """Return the tables of ``yellow`` or ``green``; a cell is ``265 * (pick-up zone - 1) + drop-off zone - 1``."""
    shipped = constants()
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
        newark=do == NEWARK,
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
        ending=np.stack([inverse(row) for row in made["endings"]]),
        # (65536,) 0 negotiated, 1 zero fare, 2 zero miles, 3 day long, 4 stored and forwarded, 5 nothing special
        special=np.searchsorted(ends.round(), np.arange(65536), side="right").astype(np.uint8),
        stray=max(round(made["stray"] * 65536), 1),
        vendor_1=round(made["vendor_1"] * 65536),
        # (168,) share of trips by hour of the week
        week=np.array(made["hour_of_week"], float) / sum(made["hour_of_week"]),
    )
