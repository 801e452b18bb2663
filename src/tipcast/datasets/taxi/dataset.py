"""Taxi trips of any source (samples, files, months as the TLC publishes them), and which of them
can be used.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import pyarrow as pa

from tipcast.compute.base import Array
from tipcast.config.data_schema import DataSpec, Limits, SampleData, TlcData
from tipcast.config.errors import TipcastError
from tipcast.datasets import address, periods
from tipcast.datasets.base import Months, Published, RawColumn, Scorable
from tipcast.datasets.counts import OUTSIDE_PERIOD, Counts
from tipcast.datasets.find_files import named_by, request_of
from tipcast.datasets.listing import FileInfo, FileScan, Listing, ScanRequest
from tipcast.datasets.parts import Period, timed
from tipcast.datasets.taxi import features, files, sample_part, schema
from tipcast.datasets.taxi.features import ABSURD, LAST_ZONE, NOT_FINITE, NULL_TIME, SPARSE

IDS = ("VendorID", *schema.ZONES)
"""Columns of whole numbers; all other numbers of CSV files are doubles."""
SCORED = ("fare_amount", "tip_amount")
"""Columns that say how a trip that is scored ended, where a file has them."""
EVER = NULL_TIME + 1, np.iinfo(np.int64).max
"""Least and largest pick-up of rows that may be of any time."""


@dataclass(frozen=True)
class Rule:
    """Which values a column has in trips that can be used."""

    least: float
    largest: float
    reason: str
    """Why trips of other values are dropped; numbers beyond ``ABSURD`` are ``NOT_FINITE``."""
    missing: str
    """Why trips without a value are dropped; empty: they are not."""

    def holds(self, values: Array) -> bool:
        """Whether all values are good, as extremes show, which NaN spoils, of most columns."""
        return bool(values.min() >= self.least and values.max() <= self.largest)

    def good(self, values: Array) -> Array:
        """Return which values are good, (rows,) bool."""
        good = (values >= self.least) & (values <= self.largest)  # NaN is neither
        return good if self.missing else good | (values != values)


RULES = {
    # The smallest number above 0.
    "fare_amount": Rule(5e-324, ABSURD, "fare_not_positive", "fare_missing"),
    "tip_amount": Rule(-ABSURD, ABSURD, NOT_FINITE, "tip_missing"),
    "passenger_count": Rule(-ABSURD, ABSURD, NOT_FINITE, ""),  # may be missing
    **dict.fromkeys(schema.ZONES, Rule(1, LAST_ZONE, "bad_zone", "zone_missing")),
}
"""Column -> its rule; a trip is dropped by the first that it breaks, before them by the pick-up's,
which the file's period decides.
"""
REFUSED = {
    "pickup_missing": (("pickup",), "is empty", "D010", "missing"),
    OUTSIDE_PERIOD: (("pickup",), "is outside the file's period", "D010", "stray"),
    "fare_missing": (("fare_amount",), "is empty", "D012", "missing"),
    NOT_FINITE: (
        ("fare_amount", "tip_amount", "passenger_count"),
        "is infinite or beyond 1e6",
        "D011",
        "non_finite",
    ),
    "tip_missing": (("tip_amount",), "is empty", "D012", "missing"),
    "zone_missing": (schema.ZONES, "is empty", "D012", "missing"),
    "bad_zone": (schema.ZONES, f"is not a taxi zone (1 to {LAST_ZONE})", "D013", "bad_zone"),
}
"""Reason -> columns of which one is at fault, what it is, the error's code, the share of rows in
``data.limits``.
"""


@dataclass(frozen=True)
class Taxi(Scorable, Published, Months):
    """Trips; without a configuration one can read and understand them, but not list them."""

    spec: Any = None
    colour: str | None = None
    """Colour that files to be scored must have; None: each file decides."""

    @classmethod
    def open(cls, spec: DataSpec) -> Self:
        return cls(spec)

    @classmethod
    def of_model(cls, manifest: Mapping[str, Any]) -> Self:
        return cls()

    name = "taxi"
    code: ClassVar[ModuleType] = features
    features = features.FEATURES
    time = "pickup"
    known_columns = (*schema.SPELLINGS, *schema.TIMES, "store_and_fwd_flag")
    sparse = SPARSE
    nominal = ("zone_pair",)
    coded = ("zone_pair", *schema.ZONES, *SPARSE)

    def scan(self, which: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Listing:
        """List trips, see ``Dataset.scan``; the pick-up is always among the columns.

        Raises C003 and C004 for the configuration, and D001 to D010, D012, D016, D017, D021 and
        D022 with the file's name.
        """
        data = self.spec
        named = named_by(self.spec, which)
        key = f"data.{which}"
        needed = tuple(dict.fromkeys(("pickup", *columns)))
        optional = tuple(optional)
        request = request_of(data, needed, optional, nullable=optional)
        if isinstance(data, SampleData):
            return sample_part.list_sample(data, named, request, key)

        if isinstance(data, TlcData):
            named = [files.fetch(*month) for month in files.months_of(data, which).items()]

        return files.list_files(named, request, key, data.colour)

    def of_files(self, options: Mapping[str, Any]) -> Self:
        """Return the dataset of files of one colour. Raises C003 for a colour that no cabs have."""
        colour = options.get("colour")
        if colour is not None:
            schema.check_colour(colour, "colour")
        return replace(self, colour=colour)

    def scan_file(self, uri: str, request: ScanRequest) -> FileScan:
        return files.scan_file(uri, request, self.colour)

    def scoring_columns(self, names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        raw = self.raw_columns(names, FileInfo())
        needed = ("pickup", *(column.name for column in raw if column.required))
        return tuple(dict.fromkeys(needed)), (
            *(column.name for column in raw if not column.required),
            *SCORED,
        )

    def own_names(self, names: Sequence[str], where: str) -> dict[str, str]:
        return schema.map_columns(names, where, (), schema.COLUMNS)

    def csv_types(self, header: Sequence[str], where: str) -> dict[str, pa.DataType]:
        """Return times, whole numbers and doubles for the TLC's columns; all others stay text."""
        types = {column: _type(name) for name, column in self.own_names(header, where).items()}
        return {**dict.fromkeys(header, pa.string()), **types}

    def clean(
        self, columns: Mapping[str, Array], period: Period | None, xp: ModuleType
    ) -> tuple[Array | None, dict[str, int]]:
        """Find the rows that can be used, see ``Dataset.clean``; each is dropped under its first
        reason.

        A fare must be positive, fare and tip known, fare, tip and passengers at most 1e6 in size,
        zones 1 to 265, the pickup inside the period. Missing passengers are kept. Columns that are
        not there are not looked at.
        """
        stray = self.spec is not None and self.spec.limits.stray is None
        first, last = EVER if stray else (timed(period)[0], timed(period)[1] - 1)
        rules = {"pickup": Rule(first, last, OUTSIDE_PERIOD, "pickup_missing"), **RULES}
        keep: Array | None = None
        dropped: Counter[str] = Counter()

        for name, rule in rules.items():
            values = columns.get(name, ())
            if not len(values) or rule.holds(values):
                continue

            good = rule.good(values)
            # few: each further look at them is cheap
            wrong = values[~good if keep is None else ~good & keep]
            dropped.update(_count_faults(name, wrong, rule))
            keep = good if keep is None else keep & good

        return (keep, dict(dropped)) if dropped else (None, {})

    def check_files(self, listing: Listing, per_file: Mapping[str, Counts], limits: Limits) -> None:
        """Refuse a file with too many rows that cannot be used. Raises D010 to D013."""
        for uri, counts in per_file.items():
            names = next(part.columns for part in listing.parts if part.uri == uri)
            for reason, (columns, fault, code, limit) in REFUSED.items():
                most = getattr(limits, limit)
                rows = counts.dropped.get(reason, 0)
                if most is not None and rows > most * counts.rows_read:
                    column = " or ".join(repr(names[name]) for name in columns if name in names)
                    what = f"column {column} {fault} in {rows} of {counts.rows_read} rows"
                    fix = f"fix the file, or raise data.limits.{limit}"
                    raise TipcastError(code, address.shown(uri), what, fix)

    def raw_columns(self, names: Sequence[str], info: FileInfo) -> tuple[RawColumn, ...]:
        """Return raw columns by their TLC names, the pick-up first by that of the colour a model
        was trained on.
        """
        trained_on = _colour(info)
        colours = sorted(schema.COLOURS, key=lambda colour: colour != trained_on)
        return tuple(
            RawColumn(name, tuple(schema.tlc_name(name, colour) for colour in colours), "time")
            if name in schema.TIMES
            else RawColumn(name, (name,), required=name not in ("passenger_count", *SPARSE))
            for name in features.needed_columns(names)
        )

    def raw_frame(self, columns: Mapping[str, Array], info: FileInfo) -> pd.DataFrame:
        """Return canonical host columns as a DataFrame with the TLC's names; times become
        datetime64[us].
        """
        colour = _colour(info)
        times = {
            name: columns[name].view("datetime64[us]") for name in schema.TIMES if name in columns
        }
        return pd.DataFrame(
            {schema.tlc_name(name, colour): values for name, values in {**columns, **times}.items()}
        )

    def month_files(self) -> Listing:
        return self.scan("months", schema.REQUIRED, schema.COLUMNS)

    def month_file(
        self, month: str, columns: Iterable[str], info: FileInfo
    ) -> tuple[str, dict[str, pa.Field]]:
        """Return the TLC's names; whatever a month's files have, ids become whole numbers and all
        else doubles.
        """
        colour = _colour(info)
        present = [name for name in schema.COLUMNS if name in set(columns)]
        fields = {name: pa.field(schema.tlc_name(name, colour), _type(name)) for name in present}
        return f"{colour}_tripdata_{month}.parquet", fields

    def describe(self, which: str) -> str:
        """Say what a period holds, or how many of its months are downloaded. Raises what ``scan``
        raises.
        """
        if isinstance(self.spec, TlcData):
            months = files.months_of(self.spec, which)
            cached = sum(file.exists() for file in months)
            rest = "" if cached == len(months) else "; a job downloads the others"
            return f"{cached} of {len(months)} months in {self.spec.cache}{rest}"

        listing = self.scan(which, (*schema.REQUIRED, "passenger_count"))
        return f"{listing.size}, {listing.name}, {periods.describe(timed(listing.period))}"


def _count_faults(name: str, wrong: Array, rule: Rule) -> Counter[str]:
    """Return reason -> rows of the values of a column that break its rule."""
    is_missing = wrong == NULL_TIME if name == "pickup" else wrong != wrong
    empty = int(is_missing.sum())
    absurd = int((abs(wrong) > ABSURD).sum()) if rule.largest == ABSURD else 0
    other = len(wrong) - empty - absurd

    faults: Counter[str] = Counter()
    for reason, rows in ((rule.missing, empty), (NOT_FINITE, absurd), (rule.reason, other)):
        if rows:
            faults[reason] += rows

    return faults


def _colour(info: FileInfo) -> str:
    """Return the colour of the cabs whose trips files hold."""
    return info.colour if isinstance(info, files.TripInfo) else schema.COLOURS[0]


def _type(name: str) -> pa.DataType:
    if name in schema.TIMES:
        return pa.timestamp("us")
    return pa.int64() if name in IDS else pa.float64()
