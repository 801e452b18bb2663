"""Synthetic trips in the TLC's columns of 2019 and later: any number of rows, the same for the same seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tipcast.config.errors import TipcastError
from tipcast.config.schema import SampleData
from tipcast.datasets.base import Fragment, Listing, Period, ScanRequest
from tipcast.datasets.taxi import sample_tables as profile
from tipcast.datasets.taxi.periods import parse_months, period_of
from tipcast.datasets.taxi.schema import COLOURS, map_columns
from tipcast.datasets.taxi.simulator import IMPROVEMENT, MTA, STREAMS, Trips

VERSION = 1
"""Of what a seed means: raise it with any change to the trips, and their digests change with it."""
CHUNK = 32_768
"""Rows worked on at once, so that they stay in a core's cache; part of what a seed means."""
MOST_BLOCKS = 100_000
"""As many tasks as one scheduler takes in without a pause."""

_COLUMNS: dict[str, Callable[[Trips], Any]] = {
    "VendorID": lambda t: t.vendor,
    "pickup_datetime": lambda t: t.pickup * 1_000_000,
    "dropoff_datetime": Trips.stop_time,
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
_INTEGERS = ("VendorID", "pickup_datetime", "dropoff_datetime", "PULocationID", "DOLocationID")
_OF_ONE_COLOUR = {"airport_fee": "yellow", "trip_type": "green"}


def column_names(colour: str) -> tuple[str, ...]:
    """Return the names of all columns of a colour's trips, in order."""
    return tuple(_spelling(name, colour) for name in _COLUMNS if _OF_ONE_COLOUR.get(name, colour) == colour)


def sample_block(
    period: Period, block: int, seed: int, rows: int, colour: str, columns: Sequence[str] | None = None
) -> dict[str, Any]:
    """Make one block of synthetic trips; see docs/sample.md for what they imitate.

    Parameters
    ----------
    period
        Start and stop of the pick-ups in microseconds of New York wall-clock time; a few strays lie outside.
    block, seed
        Not negative; together with the period and the colour they decide every value.
    rows
        Number of trips.
    colour
        ``yellow`` or ``green``.
    columns
        TLC names wanted, all by default; what they hold does not depend on which are asked for.

    Returns
    -------
    dict
        Name -> (rows,) array: timestamps int64 microseconds, ids int64, amounts float64, the flag object.

    Raises
    ------
    TipcastError
        C003 for an unknown colour, column, an empty period or a negative number.

    """
    if colour not in COLOURS:
        raise TipcastError("C003", "data.colour", f"unknown colour {colour!r}", f"choose one of {', '.join(COLOURS)}")
    if period[1] - period[0] < 1_000_000 or min(block, seed, rows) < 0:
        what = f"period {period}, block {block}, seed {seed}, rows {rows} cannot be made"
        raise TipcastError("C003", "data", what, "give a period of at least a second and no negative numbers")
    known = {_spelling(name, colour): name for name in _COLUMNS if _OF_ONE_COLOUR.get(name, colour) == colour}
    wanted = list(known) if columns is None else list(columns)
    if strange := [name for name in wanted if name not in known]:
        raise TipcastError(
            "C003", "data.columns", f"no column {strange[0]!r} in {colour} trips", f"choose from {', '.join(known)}"
        )
    tables, slots = profile.tables(colour), profile.slots(*period, colour)
    key = [seed, period[0] % 2**64, period[1] % 2**64, block, COLOURS.index(colour)]
    bits = {name: np.random.SFC64(np.random.SeedSequence(key, spawn_key=(i,))) for i, name in enumerate(STREAMS)}
    made: dict[str, Any] = {name: np.empty(rows, _dtype(known[name])) for name in wanted}
    stop = -(-period[1] // 1_000_000)
    for start in range(0, rows, CHUNK):
        trips = Trips(min(CHUNK, rows - start), tables, slots, bits, stop)
        for name in wanted:
            made[name][start : start + trips.rows] = _COLUMNS[known[name]](trips)
    return made


def _spelling(name: str, colour: str) -> str:
    prefix = {"yellow": "tpep", "green": "lpep"}[colour]
    return f"{prefix}_{name}" if name.endswith("_datetime") else name


def _dtype(name: str) -> type:
    if name == "store_and_fwd_flag":
        return object
    return np.int64 if name in _INTEGERS else np.float64


def list_sample(data: SampleData, months: object, request: ScanRequest, key: str) -> Listing:
    """List the blocks of a period; ``data.rows`` are spread over its months by their days.

    Raises
    ------
    TipcastError
        C003 colour, months or numbers.

    """
    if data.colour not in COLOURS:
        raise TipcastError(
            "C003", "data.colour", f"unknown colour {data.colour!r}", f"choose one of {', '.join(COLOURS)}"
        )
    for name, value, least in (("rows", data.rows, 1), ("block_rows", data.block_rows, 1), ("seed", data.seed, 0)):
        if value < least:
            raise TipcastError("C003", f"data.{name}", f"{value} is too small", f"use {least} or more")
    if data.seed >= 2**63:
        raise TipcastError("C003", "data.seed", f"{data.seed} is too large", "use less than 2**63")
    if data.rows > MOST_BLOCKS * data.block_rows:
        raise TipcastError(
            "C003",
            "data.rows",
            f"{data.rows:,} rows are more than {MOST_BLOCKS:,} blocks of data.block_rows={data.block_rows:,}",
            "make fewer rows, or larger blocks",
        )
    names = column_names(data.colour)
    columns = map_columns(names, f"sample trips ({data.colour})", request.columns, request.optional)
    chosen = parse_months(months, key)
    spans = [period_of(month)[1] - period_of(month)[0] for month in chosen]
    fragments: list[Fragment] = []
    passed = 0
    for month, span in zip(chosen, spans, strict=True):
        first, last = (data.rows * part // sum(spans) for part in (passed, passed + span))
        passed += span
        uri = f"sample://{data.colour}/{month}/seed-{data.seed}/{last - first}"
        digest = hashlib.sha256(f"{uri} {VERSION}".encode()).hexdigest()
        for block, start in enumerate(range(first, last, data.block_rows)):
            rows = min(data.block_rows, last - start)
            options = {"rows": rows, "colour": data.colour}
            fragments.append(
                Fragment(uri, "sample", (block, data.seed), columns, period_of(month), digest, rows, options)
            )
    digests = dict.fromkeys(fragment.digest for fragment in fragments)
    return Listing(
        fragments=tuple(fragments),
        period=(period_of(chosen[0])[0], period_of(chosen[-1])[1]),
        uris=tuple(dict.fromkeys(fragment.uri for fragment in fragments)),
        digest=hashlib.sha256("\n".join((str(data.block_rows), *digests)).encode()).hexdigest(),
        name=f"{data.colour} trips",
        facts={"colour": data.colour},
    )
