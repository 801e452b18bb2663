"""Taxi trips of any source (samples, files, months as the TLC publishes them), and which of them can be used."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa

from tipcast.compute.base import Array, Frames
from tipcast.config.errors import TipcastError
from tipcast.config.schema import DataSpec, FilesData, Limits, SampleData, TlcData
from tipcast.datasets import address, split
from tipcast.datasets.base import (
    OUTSIDE_PERIOD,
    Counts,
    Dataset,
    FileScan,
    Fragment,
    Listing,
    Period,
    RawColumn,
    ScanRequest,
    timed,
)
from tipcast.datasets.listing import named_by, read_fragment, request_of
from tipcast.datasets.taxi import features, files, sample, schema
from tipcast.datasets.taxi.features import ABSURD, LAST_ZONE, NULL_TIME, SPARSE

CARD, CASH = 1, 2
"""The TLC's payment types of a credit card and of cash."""
IDS = ("VendorID", *schema.ZONES)
"""Columns of whole numbers; all other numbers of CSV files are doubles."""
SCORED = ("fare_amount", "tip_amount")
"""Columns that say how a trip that is scored ended, where a file has them."""
DESCRIBED = tuple(dict.fromkeys(("pickup", *SCORED, *features.needed_columns(features.BASE_FEATURES))))
"""Columns that files must have to be of use."""
MISSING_PASSENGERS = "missing_passengers"
"""Count of rows read without a number of passengers, which are kept."""
SMALLEST_FARE = 5e-324
"""The smallest number above 0."""
TOO_MANY = (
    ("pickup_missing", "D010", "missing", "column {pickup} is empty", ""),
    (OUTSIDE_PERIOD, "D010", "stray", "column {pickup} lies outside the file's period", ""),
    ("fare_missing", "D012", "missing", "column {fare_amount} is empty", ""),
    (
        "non_finite",
        "D011",
        "non_finite",
        "column {fare_amount}, {tip_amount} or {passenger_count} is infinite or beyond 1e6",
        "",
    ),
    ("tip_missing", "D012", "missing", "column {tip_amount} is empty", ""),
    ("zone_missing", "D012", "missing", "column {zones} is empty", ""),
    ("bad_zone", "D013", "bad_zone", f"column {{zones}} is not a taxi zone (1 to {LAST_ZONE})", ""),
    (
        MISSING_PASSENGERS,
        "D012",
        "missing_passengers",
        "column {passenger_count} is empty",
        "leave it out of task.features",
    ),
)
"""Reason, code, name in ``data.limits``, what is wrong, and what to do where that is not to mend the file."""
EVER = NULL_TIME + 1, np.iinfo(np.int64).max
"""The period of rows whose pick-up may be at any time."""


@dataclass(frozen=True)
class Taxi(Dataset):
    """Trips; without a configuration one can read and understand them, but not list them."""

    spec: DataSpec | None = None

    @classmethod
    def open(cls, spec: DataSpec) -> Taxi:
        return cls(spec)

    @classmethod
    def of_model(cls, manifest: Mapping[str, Any]) -> Taxi:
        return cls()

    name = "taxi"
    code: ClassVar[ModuleType] = features
    features = features.FEATURES
    time = "pickup"
    known_columns = (*schema.SPELLINGS, *schema.TIMES, "store_and_fwd_flag")
    optional = ("payment_type",)
    sparse = SPARSE
    nominal = ("zone_pair",)

    def scan(self, which: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Listing:
        """List trips, see ``Dataset.scan``; the pick-up is always among the columns.

        C003 C004 configuration; D001 to D010, D012, D016, D017, D021, D022, each naming the file.
        """
        data = self.spec
        if not isinstance(data, SampleData | FilesData | TlcData):
            fix = "use data=sample, data=files or data=tlc"
            raise TipcastError("C003", "data.source", f"no source of trips: {data}", fix)
        named, key = named_by(data, which), f"data.{which}"
        needed, extra, facts = dict.fromkeys(("pickup", *columns)), tuple(optional), {"colour": data.colour}
        request = request_of(data, tuple(needed), extra, nullable=extra, facts=facts)
        if isinstance(data, SampleData):
            return sample.list_sample(data, named, request, key)
        if isinstance(data, TlcData):
            return files.list_months(named, data.url, data.cache, request, key)
        return files.list_files(named, request, key)

    @classmethod
    def check_facts(cls, facts: Mapping[str, Any]) -> None:
        """Refuse a colour that no cabs have; C003."""
        colour, known = facts.get("colour"), schema.COLOURS
        if colour not in (None, *known):
            raise TipcastError("C003", "colour", f"no such colour: {colour}", f"use null, {' or '.join(known)}")

    def scan_file(self, uri: str, request: ScanRequest) -> FileScan:
        return files.scan_file(uri, request)

    def scoring_columns(self, names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        raw = self.raw_columns(names, {})
        needed = ("pickup", *(column.name for column in raw if column.required))
        return tuple(dict.fromkeys(needed)), (*(column.name for column in raw if not column.required), *SCORED)

    def own_names(self, names: Sequence[str], where: str) -> dict[str, str]:
        return schema.map_columns(names, where, (), schema.COLUMNS)

    def csv_types(self, header: Sequence[str], where: str) -> dict[str, pa.DataType]:
        """Return times, whole numbers and doubles for the TLC's columns; all others stay text."""
        types = dict.fromkeys(header, pa.string())
        for name, own in self.own_names(header, where).items():
            types[own] = _type(name)
        return types

    def read(self, fragment: Fragment, frames: Frames, columns: Sequence[str] | None = None) -> dict[str, Array]:
        if fragment.format != "sample":
            return read_fragment(fragment, frames, columns)
        own = {name: fragment.columns[name] for name in (fragment.columns if columns is None else columns)}
        block, seed = fragment.part
        colour = str(fragment.options["colour"])
        made = sample.sample_block(timed(fragment.period), block, seed, fragment.rows or 0, colour, tuple(own.values()))
        return {name: frames.xp.asarray(made[spelling]) for name, spelling in own.items()}

    def clean(
        self, columns: Mapping[str, Array], period: Period | None, xp: ModuleType
    ) -> tuple[Array | None, dict[str, int]]:
        """Find the rows that can be used, see ``Dataset.clean``; each is dropped under its first reason.

        A fare must be positive, fare and tip known, fare, tip and passengers at most 1e6 in size, zones 1 to 265, the
        pickup inside the period. Missing passengers are kept. Columns that are not there are not looked at.
        """
        period = EVER if self.spec is not None and self.spec.limits.stray is None else timed(period)
        keep: Array | None = None
        for name in ("pickup", "fare_amount", "tip_amount", "passenger_count", *schema.ZONES):
            if name in columns and (good := _good(name, columns[name], period)) is not None:
                keep = good if keep is None else xp.logical_and(keep, good, out=keep)
        at = () if keep is None else xp.flatnonzero(~keep)
        if len(at) == 0:
            return None, {}
        return keep, _reasons({name: values[at] for name, values in columns.items()}, period, xp)

    def own_counts(self, columns: Mapping[str, Array], *, cleaned: bool) -> dict[str, int]:
        """Count trips without a number of passengers, as read, and those paid in cash, as kept."""
        if cleaned:
            return {"cash": int((columns["payment_type"] == CASH).sum()) if "payment_type" in columns else 0}
        passengers = columns.get("passenger_count", np.empty(0))
        return {MISSING_PASSENGERS: int((passengers != passengers).sum())}

    def check_files(self, listing: Listing, per_file: Mapping[str, Counts], limits: Limits) -> None:
        """Refuse a file without rows or with too many that cannot be used; D009 to D013."""
        for uri, counts in per_file.items():
            _check_file(address.shown(uri), listing.columns[uri], counts, limits)

    def raw_columns(self, names: Sequence[str], facts: Mapping[str, Any]) -> tuple[RawColumn, ...]:
        """Return raw columns by their TLC names, the pick-up first by that of the colour a model was trained on."""
        colours = sorted(schema.COLOURS, key=lambda colour: colour != facts.get("colour", "yellow"))
        return tuple(
            RawColumn(name, tuple(schema.tlc_name(name, colour) for colour in colours), "time")
            if name in schema.TIMES
            else RawColumn(name, (name,), required=name not in ("passenger_count", *SPARSE))
            for name in features.needed_columns(names)
        )

    def raw_frame(self, columns: Mapping[str, Array], facts: Mapping[str, Any]) -> pd.DataFrame:
        """Return canonical host columns as a DataFrame with the TLC's names; times become datetime64[us]."""
        return pd.DataFrame(
            {
                schema.tlc_name(name, str(facts.get("colour", "yellow"))): values.view("datetime64[us]")
                if name in schema.TIMES
                else np.asarray(values)
                for name, values in columns.items()
            }
        )

    def month_files(self) -> Listing:
        return self.scan("months", schema.REQUIRED, schema.COLUMNS)

    def month_name(self, month: str, facts: Mapping[str, Any]) -> str:
        return f"{facts['colour']}_tripdata_{month}.parquet"

    def stored_columns(self, there: Iterable[str], facts: Mapping[str, Any]) -> dict[str, pa.Field]:
        """Return the TLC's names; whatever a month's files have, ids become whole numbers and all else doubles."""
        present, colour = set(there), str(facts["colour"])
        return {
            name: pa.field(schema.tlc_name(name, colour), _type(name)) for name in schema.COLUMNS if name in present
        }

    def describe(self, which: str) -> str:
        """Say what a period holds, downloading nothing; errors as ``scan``, D001 D022 for a month not to be had."""
        data = self.spec
        if isinstance(data, TlcData):
            request = ScanRequest(DESCRIBED, facts={"colour": data.colour})
            return files.describe_months(getattr(data, which), data.url, data.cache, request, f"data.{which}")
        listing = self.scan(which, DESCRIBED)
        if isinstance(data, SampleData):
            rows = sum(fragment.rows or 0 for fragment in listing.fragments)
            return f"makes {rows:,} {listing.name} of {split.describe(timed(listing.period))}"
        return files.describe_files(listing)


def _type(name: str) -> pa.DataType:
    if name in schema.TIMES:
        return pa.timestamp("us")
    return pa.int64() if name in IDS else pa.float64()


def _good(name: str, values: Array, period: Period) -> Array | None:
    """Return a column's mask of good rows, None where its extremes (which NaN spoils) show that all are good."""
    if not len(values):
        return None
    low, high = (1, LAST_ZONE) if name in schema.ZONES else (-ABSURD, ABSURD)
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
    """Count rows that are all bad by the first of these reasons."""
    pickup = columns["pickup"]
    rest = xp.ones(len(pickup), dtype=bool)
    nothing = ~rest
    fare, tip, passengers = (columns.get(name) for name in ("fare_amount", "tip_amount", "passenger_count"))
    zones = [columns[name] for name in schema.ZONES if name in columns]

    def any_of(*masks: Array) -> Array:
        return functools.reduce(operator.or_, masks, nothing)

    found = {
        "pickup_missing": pickup == NULL_TIME,
        OUTSIDE_PERIOD: (pickup < period[0]) | (pickup >= period[1]),
        "fare_missing": nothing if fare is None else fare != fare,
        "fare_not_positive": nothing if fare is None else (fare <= 0) & (fare >= -ABSURD),
        "non_finite": any_of(*(abs(values) > ABSURD for values in (fare, tip, passengers) if values is not None)),
        "tip_missing": nothing if tip is None else tip != tip,
        "zone_missing": any_of(*(values != values for values in zones)),
        "bad_zone": any_of(*((values < 1) | (values > LAST_ZONE) for values in zones)),
    }
    dropped = {}
    for reason, mask in found.items():
        rows = int((mask & rest).sum())
        if rows:
            dropped[reason] = rows
            rest &= ~mask
    return dropped


def _check_file(where: str, names: Mapping[str, str], counts: Counts, limits: Limits) -> None:
    """Refuse a file of which too much had to be dropped; ``names``: canonical name -> the file's own."""
    if counts.rows_read == 0:
        raise TipcastError("D009", where, "has no rows", "remove it")
    own = {name: repr(names.get(name, name)) for name in ("pickup", "fare_amount", "tip_amount", "passenger_count")}
    zones = " or ".join(repr(names[name]) for name in schema.ZONES if name in names)
    found = {**counts.dropped, **counts.extra}
    for reason, code, limit, fault, fix in TOO_MANY:
        rows = found.get(reason, 0)
        most = getattr(limits, limit)
        if most is not None and rows > most * counts.rows_read:
            what = f"{fault.format(**own, zones=zones)} in {rows} of {counts.rows_read} rows"
            raise TipcastError(code, where, what, f"{fix or 'mend the file'}, or raise data.limits.{limit}")
