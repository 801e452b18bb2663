"""Tables that synthetic trips are drawn and computed by, made of the statistics of real months in
sample_profile.json.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from tipcast.compute.base import Array
from tipcast.datasets.taxi.features import AIRPORTS, EPOCH_HOUR, HOURS_OF_WEEK, LAST_ZONE

PATH = Path(__file__).with_name("sample_profile.json")
HOUR = 3_600_000_000
OFFSET = 0.4  # miles that a trip within one zone takes; positions of zones are fitted with it
REACH = 1.2
ANYWHERE = 0.02
"""Miles over which the weight of a drop-off falls by e, and what is left at any distance; the
margins come on top.
"""
FAR = 5.0  # miles from which trips spread less around what is usual for their zones
# upper ends of the fare bins in half dollars
EDGES = np.array([5, 7.5, 10, 12.5, 15, 20, 30, 50, 53, 80]) * 2
EWR, JFK, LAGUARDIA = AIRPORTS
ZONES = np.arange(1, LAST_ZONE + 1)
Profile = Mapping[str, Any]
"""Statistics of real months, of all colours or of one, as JSON has them."""
Draw = Callable[[Array], Array]
"""Random words (rows,) -> outcomes (rows,)."""


@dataclass(frozen=True)
class Routes:
    """What pairs of zones decide, (70225,) each: a cell is ``265 * (pick-up zone - 1) + drop-off
    zone - 1``.
    """

    draw: Draw
    """Draws cells by 32-bit words."""
    miles: Array
    """Hundredths of a mile."""
    flat: Array
    """Whether the fare is flat."""
    newark: Array
    """Whether it has Newark's surcharge."""
    congested: Array
    """The congestion surcharge in cents."""
    toll: Array
    """Chance of a toll in 256ths."""
    far: Array
    """4096 from five miles on: where in ``Traffic.spread`` and ``hold_up`` to look."""


@dataclass(frozen=True)
class Traffic:
    """How far and how long trips are beside what is usual."""

    spread: Array
    """(8192,) factors on miles, near and far."""
    hold_up: Array
    """(8192,) factors on seconds, near and far."""
    times: Array
    """(8192,) seconds relative to one mile, by hundredths of a mile."""
    pace: Array
    """(168,) seconds at one mile by hour of the week."""


@dataclass(frozen=True)
class Tips:
    """How likely high tips are, in log-odds of hundredths that are added, and how rides end."""

    hour: Array
    """(168,) by hour of the week."""
    cell: Array
    """(70225,) by cell, see ``Routes``."""
    people: Array
    """Values by the number of passengers."""
    fare: Array
    """(512,) by half dollars."""
    chance: Array
    """(4096,) chance of a high tip in 65536ths, by the sum of log-odds + 2048."""
    ending: Array
    """(25, 8192) kind of ending: row 0 when the tip is high, 1 + hour of the day otherwise."""


@dataclass(frozen=True)
class Tables:
    """All that trips of one colour are made by."""

    routes: Routes
    traffic: Traffic
    tips: Tips
    week: Array
    """(168,) share of trips by hour of the week."""
    rush: Array
    """(168,) surcharge in cents by hour of the week."""
    people: Draw
    """Draws passengers by 16-bit words."""
    special: Array
    """(65536,) by 16-bit word: what is special, see ``sample.NEGOTIATED`` to ``STORED``, or 5."""
    stray: int
    """Trips in 65536 whose clock is wrong."""
    vendor_1: int
    """Trips in 65536 that are vendor 1's."""


@lru_cache(maxsize=2)
def tables_of(colour: str) -> Tables:
    """Return the tables of ``yellow`` or ``green``."""
    shipped = json.loads(PATH.read_text(encoding="utf-8"))
    made = shipped[colour]
    week = np.array(made["hour_of_week"], float) / sum(made["hour_of_week"])
    specials = [0.005, made["zero_fare"], made["zero_miles"], made["day_long"], 0.0053]
    ends = np.cumsum(specials) * 65536

    return Tables(
        routes=_routes(shipped, colour),
        traffic=_traffic(shipped),
        tips=_tips(made),
        week=week,
        rush=_rush_surcharge(),
        people=alias(np.array(made["passengers"]), np.uint16),
        special=np.searchsorted(ends.round(), np.arange(65536), side="right").astype(np.uint8),
        stray=max(round(made["stray"] * 65536), 1),
        vendor_1=round(made["vendor_1"] * 65536),
    )


def _routes(shipped: Profile, colour: str) -> Routes:
    line = _distances(shipped)
    miles = line.ravel()
    pu = np.repeat(ZONES, LAST_ZONE)
    do = np.tile(ZONES, LAST_ZONE)
    south = np.isin(ZONES, shipped["south"])
    manhattan = south | np.isin(ZONES, shipped["north"])
    laguardia = (pu == LAGUARDIA) | (do == LAGUARDIA)
    jfk = (pu == JFK) | (do == JFK)
    surcharge = 250 if colour == "yellow" else 275

    return Routes(
        draw=alias(_pair_shares(shipped[colour], line).ravel(), np.uint32),
        miles=(miles * 100).astype(np.float32),
        flat=((pu == JFK) & manhattan[do - 1]) | ((do == JFK) & manhattan[pu - 1]),
        newark=do == EWR,
        congested=np.where(south[pu - 1] | south[do - 1], surcharge, 0).astype(np.int32),
        toll=np.select([laguardia, jfk, miles > 8], [170, 133, 128], 1).astype(np.uint8),
        far=np.where(miles < FAR, 0, 4096).astype(np.uint16),
    )


def _distances(shipped: Profile) -> Array:
    """Return the usual miles between zones, (265, 265)."""
    x, y = (np.array(shipped[axis], float) / 100 for axis in "xy")
    line = np.hypot(x[:, None] - x, y[:, None] - y) + OFFSET
    line[-1, :-1] += 6  # zone 265 lies outside the city
    line[:-1, -1] += 6
    return line


def _pair_shares(made: Profile, miles: Array) -> Array:
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


def _traffic(shipped: Profile) -> Traffic:
    pace = shipped["pace"]
    normal = np.array([NormalDist().inv_cdf((i + 0.5) / 4096) for i in range(4096)])
    distances = np.log(np.arange(8192) / 100 + 0.005)
    times = np.exp(np.interp(distances, np.log(pace["miles"]), np.log(pace["times"])))
    hour = np.arange(HOURS_OF_WEEK) % 24

    return Traffic(
        spread=np.exp(np.outer(shipped["spread"], normal)).ravel().astype(np.float32),
        hold_up=np.exp(np.outer(pace["sigma"], normal)).ravel().astype(np.float32),
        times=times.astype(np.float32),
        pace=np.array(pace["seconds_at_one_mile"], np.float32)[hour],
    )


def _rush_surcharge() -> Array:
    """Return cents by hour of the week: of nights, and of late afternoons on working days."""
    hour = np.arange(HOURS_OF_WEEK) % 24
    workday = np.arange(HOURS_OF_WEEK) < 120
    afternoon = np.where(workday & (hour >= 16), 100, 0)
    return np.where((hour >= 20) | (hour < 6), 50, afternoon).astype(np.int32)


def _tips(made: Profile) -> Tips:
    logit = made["logit"]
    cells = logit["base"] + np.add.outer(logit["pu"], logit["do"]).ravel()
    fare_bins = np.searchsorted(EDGES, np.arange(512), side="left")
    steps = np.arange(-2048, 2048) / 100
    middles = (np.arange(8192) + 0.5) / 8192
    endings = [np.cumsum(row) / sum(row) for row in made["endings"]]

    return Tips(
        hour=np.array(logit["hour"], np.int16),
        cell=cells.astype(np.int16),
        people=np.array(logit["passengers"], np.int16),
        fare=np.array(logit["fare"], np.int16)[fare_bins],
        chance=np.round(65535 / (1 + np.exp(-steps))).astype(np.uint16),
        ending=np.stack([np.searchsorted(end, middles, side="right") for end in endings]).astype(
            np.uint8
        ),
    )


@dataclass(frozen=True)
class Hours:
    """The whole hours of a period, and how to draw them."""

    draw: Draw
    """Draws hours by 32-bit words, in proportion to the trips that they see."""
    week_hour: Array
    """(hours,) hour of the week of each."""
    first: Array
    """(hours,) first second of each, since 1970."""
    stop: int
    """The second since 1970 at which the period ends."""


@lru_cache(maxsize=64)
def hours_of(start: int, stop: int, colour: str) -> Hours:
    """Return the hours of a period in microseconds since 1970."""
    hours = np.arange(start // HOUR, stop // HOUR)
    week_hour = (hours + EPOCH_HOUR) % HOURS_OF_WEEK
    draw = alias(tables_of(colour).week[week_hour] * 3600, np.uint32)
    return Hours(draw, week_hour.astype(np.uint8), hours * 3600, stop // 1_000_000)


def alias(shares: Array, word: type[np.unsignedinteger[Any]]) -> Draw:
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
