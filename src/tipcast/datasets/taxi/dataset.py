"""The dataset of taxi trips, of any of its sources: made-up samples, files, and months as the TLC publishes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from tipcast.compute.base import Array, Frames
from tipcast.config.errors import TipcastError
from tipcast.config.schema import DataSpec, FilesData, Limits, SampleData, TlcData
from tipcast.datasets import split
from tipcast.datasets.base import (
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
from tipcast.datasets.listing import check_block_bytes
from tipcast.datasets.read import read_fragment
from tipcast.datasets.taxi import features, rules, sample, schema, tlc
from tipcast.datasets.taxi.files import list_files, scan_file

CARD, CASH = 1, 2
"""The TLC's payment types of a credit card and of cash."""
IDS = ("VendorID", *schema.ZONES)
"""Columns of whole numbers; all other numbers of CSV files are doubles."""
_ASKED = ("fare_amount", "tip_amount", *features.needed_columns(features.BASE_FEATURES))
DESCRIBED = {"train": _ASKED, "test": _ASKED, "months": schema.REQUIRED}
"""Period -> the columns that its files must have to be of use."""
SCORED = ("fare_amount", "tip_amount")
"""Columns that say how a trip that is scored ended, where a file has them."""
MILES = np.concatenate(([0.0], np.geomspace(0.1, 200, 96)))
"""Borders that distances were counted between: code i was from the one before to the i-th, code 0 was missing."""


@dataclass(frozen=True)
class Taxi(Dataset):
    """Trips; without a configuration one can read and understand them, but not list them."""

    spec: DataSpec | None = None

    @classmethod
    def open(cls, spec: DataSpec) -> Taxi:
        """Make the dataset of its configuration."""
        return cls(spec)

    @classmethod
    def of_model(cls, manifest: Mapping[str, Any]) -> Taxi:
        """Make the dataset that a model was trained on, without a configuration."""
        return cls()

    @property
    def name(self) -> str:
        """``taxi``."""
        return "taxi"

    @property
    def code(self) -> ModuleType:
        """``data.taxi.features``."""
        return features

    @property
    def features(self) -> tuple[str, ...]:
        """All features there are."""
        return features.FEATURES

    @property
    def time(self) -> str | None:
        """The pick-up."""
        return "pickup"

    @property
    def known_columns(self) -> tuple[str, ...]:
        """All columns of the TLC's files, in all spellings."""
        return (*schema.SPELLINGS, "store_and_fwd_flag")

    @property
    def optional(self) -> tuple[str, ...]:
        """What tells how a trip was paid."""
        return ("payment_type",)

    @property
    def subset_names(self) -> tuple[str, ...]:
        """Trips paid by card."""
        return ("card",)

    def scan(self, which: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Listing:
        """List trips, see ``Dataset.scan``; the pick-up is always among the columns.

        Raises
        ------
        TipcastError
            C003 C004 configuration; D001 to D010, D012, D016, D017, D021, D022, each naming the file.

        """
        data = self.spec
        if not isinstance(data, SampleData | FilesData | TlcData):
            raise TipcastError(
                "C003", "data.source", f"no source of trips: {data}", "use data=sample, data=files or data=tlc"
            )
        named, key = getattr(data, which), f"data.{which}"
        if named is None or named == "???":
            raise TipcastError("C004", key, "needs a value", f"add {key}=...")
        needed = tuple(dict.fromkeys(("pickup", *columns)))
        if isinstance(data, SampleData):
            return sample.list_sample(data, named, ScanRequest(needed, tuple(optional)), key)
        if isinstance(data, TlcData):
            request = ScanRequest(needed, tuple(optional), facts={"colour": data.colour})
            return tlc.list_months(named, data.url, data.cache, request, key)
        check_block_bytes(data.block_bytes, "data.block_bytes")
        request = ScanRequest(
            needed, tuple(optional), data.block_bytes, dict(data.storage_options), facts={"colour": data.colour}
        )
        return list_files(named, request, key)

    def profile(self, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a profile whose bins are edges or values, see ``in_edges``."""
        return in_edges(told)

    @classmethod
    def check_facts(cls, facts: Mapping[str, Any]) -> None:
        """Refuse a colour that no cabs have; C003."""
        colour, known = facts.get("colour"), schema.COLOURS
        if colour not in (None, *known):
            raise TipcastError("C003", "colour", f"no such colour: {colour}", f"use null, {' or '.join(known)}")

    def scan_file(self, uri: str, request: ScanRequest) -> FileScan:
        """Look at one file's footer or header; errors as ``scan``."""
        return scan_file(uri, request)

    def scoring_columns(self, names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the columns that files to be scored must have, and those that are read where a file has them."""
        raw = self.raw_columns(names, {})
        needed = ("pickup", *(column.name for column in raw if column.required))
        return tuple(dict.fromkeys(needed)), (*(column.name for column in raw if not column.required), *SCORED)

    def own_names(self, names: Sequence[str], where: str) -> dict[str, str]:
        """Return canonical columns by the names that a file has for them; D006 where one is there twice."""
        return schema.map_columns(names, where, (), schema.COLUMNS)

    def csv_types(self, header: Sequence[str], where: str) -> dict[str, pa.DataType]:
        """Return times, whole numbers and doubles for the TLC's columns; all others stay text."""
        types = dict.fromkeys(header, pa.string())
        for name, own in self.own_names(header, where).items():
            types[own] = _type(name)
        return types

    def read(self, fragment: Fragment, frames: Frames, columns: Sequence[str] | None = None) -> dict[str, Array]:
        """Read or make columns of trips, see ``Dataset.read``."""
        if fragment.format != "sample":
            return read_fragment(fragment, frames, columns)
        own = {name: fragment.columns[name] for name in (fragment.columns if columns is None else columns)}
        block, seed = fragment.part
        rows, colour = int(fragment.options["rows"]), str(fragment.options["colour"])
        made = sample.sample_block(timed(fragment.period), block, seed, rows, colour, tuple(own.values()))
        return {name: frames.xp.asarray(made[spelling]) for name, spelling in own.items()}

    def clean(
        self, columns: Mapping[str, Array], period: Period | None, xp: ModuleType
    ) -> tuple[Array | None, dict[str, int]]:
        """Find the trips that can be used, see ``rules.clean``."""
        return rules.clean(columns, timed(period), xp)

    def own_counts(self, columns: Mapping[str, Array], *, cleaned: bool) -> dict[str, int]:
        """Count trips without a number of passengers, as read, and those paid in cash, as kept."""
        if not cleaned:
            return {rules.MISSING_PASSENGERS: rules.missing_passengers(columns)}
        return {"cash": int((columns["payment_type"] == CASH).sum()) if "payment_type" in columns else 0}

    def subsets(self, columns: Mapping[str, Array], xp: ModuleType) -> dict[str, Array]:
        """Return which trips are known to be paid by card."""
        rows = len(columns["pickup"])
        return {"card": columns["payment_type"] == CARD if "payment_type" in columns else xp.zeros(rows, dtype=bool)}

    def check_files(self, listing: Listing, per_file: Mapping[str, Counts], limits: Limits) -> None:
        """Refuse a file of which too much had to be dropped, see ``rules.check_file``."""
        for uri, counts in per_file.items():
            rules.check_file(uri, listing.columns[uri], counts, limits)

    def raw_columns(self, names: Sequence[str], facts: Mapping[str, Any]) -> tuple[RawColumn, ...]:
        """Return raw columns by their TLC names, the pick-up first by that of the colour a model was trained on."""
        colours = sorted(schema.COLOURS, key=lambda colour: colour != facts.get("colour", "yellow"))
        return tuple(
            RawColumn(name, tuple(schema.tlc_name(name, colour) for colour in colours), "time")
            if name in schema.TIMES
            else RawColumn(name, (name,), required=name != "passenger_count")
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
        """List all columns of ``data.months``; errors as ``scan``."""
        return self.scan("months", schema.REQUIRED, schema.COLUMNS)

    def month_name(self, month: str, facts: Mapping[str, Any]) -> str:
        """Return the TLC's name of the file."""
        return f"{facts['colour']}_tripdata_{month}.parquet"

    def stored_columns(self, there: Iterable[str], facts: Mapping[str, Any]) -> dict[str, pa.Field]:
        """Return the TLC's names; whatever a month's files have, ids become whole numbers and all else doubles."""
        present, colour = set(there), str(facts["colour"])
        return {
            name: pa.field(schema.tlc_name(name, colour), _type(name)) for name in schema.COLUMNS if name in present
        }

    def describe(self, which: str) -> str:
        """Say what a period holds, downloading nothing; errors as ``scan``, D001 D022 for a month not to be had."""
        data, columns = self.spec, DESCRIBED[which]
        if isinstance(data, TlcData):
            needed = tuple(dict.fromkeys(("pickup", *columns)))
            request = ScanRequest(needed, facts={"colour": data.colour})
            return tlc.describe(getattr(data, which), data.url, data.cache, request, f"data.{which}")
        listing = self.scan(which, columns)
        if isinstance(data, SampleData):
            rows = sum(fragment.rows or 0 for fragment in listing.fragments)
            return f"makes {rows:,} {listing.name} of {split.describe(timed(listing.period))}"
        return tlc.describe_files(listing)


def _type(name: str) -> pa.DataType:
    if name in schema.TIMES:
        return pa.timestamp("us")
    return pa.int64() if name in IDS else pa.float64()


def in_edges(profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return a profile whose bins are edges or values; one that is so, as all later ones are, stays as it is.

    Bins were ranges of codes: 0 for a missing value, else one more than a whole value, or a distance's place among
    ``MILES``. The first bin was of what is missing; an empty one stood for all values without a bin.
    """
    score = {"edges": np.linspace(0, 1, len(profile["score"]["histogram"]) + 1).tolist(), **profile["score"]}
    features = {
        name: each if "bins" not in each else _described(name, each) for name, each in profile["features"].items()
    }
    return {**profile, "features": features, "score": score} if features != profile["features"] else dict(profile)


def _described(name: str, old: Mapping[str, Any]) -> dict[str, Any]:
    codes = [each[0] for each in old["bins"] if each]
    values = [float(MILES[code - 1]) if name == "trip_distance" else float(code - 1) for code in codes]
    if len(codes) < len(old["bins"]):
        return {"values": values, "shares": list(old["shares"])}
    return {"edges": values[1:], "shares": [*old["shares"], 0.0]}  # below the first edge is what is missing
