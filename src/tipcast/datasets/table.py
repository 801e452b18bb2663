"""Anybody's table in Parquet or CSV: numbers, booleans, texts as categories, a time to split by or a random split."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from types import ModuleType
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tipcast.compute.base import Array, Frames
from tipcast.compute.cpu import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.config.schema import DataSpec, TableData
from tipcast.datasets import address, delimited, parquet, split, table_features
from tipcast.datasets.base import Dataset, FileScan, Fragment, Listing, Period, RawColumn, ScanRequest
from tipcast.datasets.listing import check_format, gather, named_by, read_fragment, request_of, scan_files
from tipcast.tasks.base import TargetColumn

MOST_CATEGORIES = 10_000
"""A column with more different texts is no feature."""
FEW_VALUES = 20
"""Whole numbers with at most so many different values are classes, unless ``task.kind`` says otherwise."""
MOST_CLASSES = 1_000
MANY = 100
COUNTS = "rises from row to row: if it only numbers them, name the features without it in task.features"
LARGEST = table_features.LARGEST
OTHER_SIDE = "other_side"
"""Why a row is not used here: by its time it belongs to the other side of the split."""
_AT_ONCE = 8


@dataclass(frozen=True)
class Table(Dataset):
    """A table whose columns are known by the training files, or by a saved model's manifest."""

    columns: tuple[RawColumn, ...]
    """All that a model can use, by their own names, the time column apart."""
    time_column: str | None = None
    whole: tuple[str, ...] = ()
    """Number columns of whole numbers or booleans, of which classes may be made."""
    counting: tuple[str, ...] = ()
    """Columns of whole numbers that rise from row to row, as those do that number the rows."""
    notes: tuple[str, ...] = ()
    spec: TableData | None = None
    name = "table"
    code: ClassVar[ModuleType] = table_features

    @classmethod
    def open(cls, spec: DataSpec) -> Self:
        """Look at the training files for what their columns hold.

        C003 C004 configuration; D001 to D009, D016, D021, D022, each naming the file.
        """
        if not isinstance(spec, TableData):
            raise TipcastError("C003", "data.source", "a table has a configuration of its own", "use data=table")
        if spec.test is None and not spec.test_share:
            raise TipcastError("C004", "data.test", "needs a value", "name files, or set data.test_share=0.2")
        scans, _ = scan_files(named_by(spec, "train"), request_of(spec), "data.train", _scan_file)
        types = _types(scans[0].fragments[0])
        kinds = {name: _kind(kind) for name, kind in types.items()}
        if spec.time is not None and kinds.get(spec.time) != "time":
            what = f"column {spec.time!r} is {types.get(spec.time, 'not there')}, not a timestamp"
            raise TipcastError("D008", address.shown(scans[0].uri), what, "write it as a timestamp, or leave data.time")
        categories = _categories(scans, [name for name, kind in kinds.items() if kind == "category"])
        numbers = [name for name, kind in kinds.items() if kind == "number"]
        fills, rising = _looked_at(scans[0].fragments[0], numbers)
        columns, notes = [], []
        for name, kind in kinds.items():
            if kind == "number":
                columns.append(RawColumn(name, (name,), fill=fills[name], largest=LARGEST))
            elif kind == "category" and len(categories[name]) <= MOST_CATEGORIES:
                columns.append(RawColumn(name, (name,), "category", categories=categories[name]))
            elif name != spec.time:
                notes.append(f"column {name} is no feature: {_why(types[name], kind)}")
        whole = tuple(name for name in numbers if not pa.types.is_floating(types[name]))
        counting = tuple(name for name in rising if pa.types.is_integer(types[name]))
        return cls(tuple(columns), spec.time, whole, counting, tuple(notes), spec)

    @classmethod
    def of_model(cls, manifest: Mapping[str, Any]) -> Table:
        columns = [
            RawColumn(**{**column, "spellings": tuple(column["spellings"]), "categories": tuple(column["categories"])})
            for column in manifest["table"]
        ]
        return cls(tuple(columns), manifest.get("time"))

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def known_columns(self) -> tuple[str, ...]:
        return self.features if self.time is None else (*self.features, self.time)

    @property
    def time(self) -> str | None:
        return self.time_column

    @property
    def test_share(self) -> float:
        """Share of rows that is drawn to test on, where no test files are named and rows have no time."""
        spec = self.spec
        return spec.test_share if spec and spec.test is None and self.time is None else 0.0

    def facts(self) -> dict[str, Any]:
        """Return the columns, with the vocabularies of categories."""
        return {"table": [asdict(column) for column in self.columns], "time": self.time_column}

    def raw_columns(self, names: Sequence[str], facts: Mapping[str, Any]) -> tuple[RawColumn, ...]:
        return tuple(self._column(name) for name in names)

    def raw_frame(self, columns: Mapping[str, Array], facts: Mapping[str, Any]) -> Any:
        """Return host columns with texts for codes."""
        frame = super().raw_frame({name: values for name, values in columns.items() if name != self.time}, facts)
        for name in frame.columns:
            if categories := self._column(name).categories:
                texts = np.array([*categories, None], dtype=object)
                codes = frame[name].to_numpy()
                frame[name] = texts[np.where(np.isnan(codes), len(categories), codes).astype(int)]
        return frame

    def target_column(self, name: str | None, kind: str | None) -> TargetColumn:
        """Return what a column holds; ``kind`` where it is given, otherwise as the values say.

        C003 a kind that the column is not of, C004 no column is named, D007 it is not there.
        """
        if name is None:
            raise TipcastError("C004", "task.target", "needs a value", "add task.target=COLUMN")
        if name not in self.features:
            raise TipcastError("D007", "data.train", f"missing column {name!r}", f"use {', '.join(self.features)}")
        column = self._column(name)
        values: tuple[float, ...] = ()
        if column.type == "category":
            classes = column.categories
        elif kind == "regression" or (kind is None and name not in self.whole):
            return TargetColumn(name, "regression")
        else:
            values = self._values(name)
            if kind is None and len(values) > FEW_VALUES:
                return TargetColumn(name, "regression")
            classes = tuple(f"{value:g}" for value in values)
        if len(classes) == 1:
            what = f"all rows of column {name!r} have the same value ({classes[0]})"
            raise TipcastError("D015", "data.train", what, "name another column as task.target, or use more data")
        found = "classification" if len(classes) == 2 else "multiclass"
        if kind not in (None, found) or not 2 <= len(classes) <= MOST_CLASSES:
            what = f"column {name!r} has {len(classes)} different values: not for {kind or 'classes'}"
            raise TipcastError("C003", "task.kind", what, "leave task.kind out, or use regression for numbers")
        return TargetColumn(name, found, classes, values)

    def scan(self, which: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Listing:
        """List one side, see ``Dataset.scan``; without test files both sides are of the training files."""
        if self.spec is None:
            raise TipcastError("C004", f"data.{which}", "needs a value", f"add data.{which}=...")
        named = "train" if which == "test" and self.spec.test is None else which
        request = request_of(self.spec, columns, optional)
        scans, notes = scan_files(named_by(self.spec, named), request, f"data.{named}", self._checked)
        if self.time is not None:
            scans = self._in_time(scans, which)
        if which == "train":
            notes = (*notes, *self.notes, *(f"column {name} {COUNTS}" for name in self.counting if name in columns))
        return gather(scans, "rows", {}, notes)

    def scan_file(self, uri: str, request: ScanRequest) -> FileScan:
        """Look at a file to be scored as at one to be trained on."""
        return self._checked(uri, request)

    def csv_types(self, header: Sequence[str], where: str) -> dict[str, pa.DataType]:
        """Return doubles and times where a model was trained on such; all others stay text."""
        arrow = {"number": pa.float64(), "time": pa.timestamp("us")}
        known = {column.name: column.type for column in self.columns} | {str(self.time): "time"}
        return {name: arrow.get(known.get(name, ""), pa.string()) for name in header}

    def read(self, fragment: Fragment, frames: Frames, columns: Sequence[str] | None = None) -> dict[str, Array]:
        """Read columns; texts become codes on the host."""
        wanted = tuple(self.features if columns is None else columns)
        known = {name: self._column(name) for name in wanted if name != self.time}
        texts = [name for name, column in known.items() if column.type == "category"]
        options = {**fragment.options, "times": () if self.time is None else (self.time,)}
        named = replace(fragment, options=options)
        read = read_fragment(named, frames, [name for name in wanted if name not in texts])
        if texts:
            table = _read_texts(named, texts)
            for name in texts:
                codes = pc.index_in(table[name], value_set=pa.array(known[name].categories, pa.string()))
                read[name] = frames.xp.asarray(codes.cast(pa.float64()).to_numpy())
        return {name: read[name] for name in wanted}

    def compute(self, columns: Mapping[str, Array], names: Sequence[str], xp: ModuleType) -> Array:
        """Make features, with fillings for missing numbers."""
        fills = {name: self._column(name).fill for name in names if columns[name].dtype.kind == "f"}
        filled = {
            name: xp.where(columns[name] == columns[name], columns[name], fill)
            for name, fill in fills.items()
            if fill is not None
        }
        return table_features.compute({**columns, **filled}, names, xp)

    def clean(
        self, columns: Mapping[str, Array], period: Period | None, xp: ModuleType
    ) -> tuple[Array | None, dict[str, int]]:
        """Drop rows with a number that cannot be, and rows of the other side's time."""
        keep, dropped = super().clean(columns, period, xp)
        if self.time is None or period is None:
            return keep, dropped
        inside = (columns[self.time] >= period[0]) & (columns[self.time] < period[1])
        outside = int(inside.size - inside.sum())
        if not outside:
            return keep, dropped
        keep = inside if keep is None else keep & inside
        return keep, {**dropped, OTHER_SIDE: outside}

    def _type(self, name: str) -> str:
        return "time" if name == self.time else self._column(name).type

    def _holds(self, name: str, kind: pa.DataType) -> bool:
        """Whether a file's column is of the type that it was trained on, or without values."""
        return pa.types.is_null(kind) or _kind(kind) == self._type(name)

    def _column(self, name: str) -> RawColumn:
        return next(column for column in self.columns if column.name == name)

    def _values(self, name: str) -> tuple[float, ...]:
        """Return the different values of a number column of the training files, sorted."""
        fragments = self.scan("train", (name,)).fragments
        found: Array = np.empty(0)
        for fragment in fragments:
            values = np.asarray(self.read(fragment, CpuFrames(), (name,))[name], dtype=np.float64)
            found = np.unique(np.concatenate([found, values[np.isfinite(values)]]))
            if len(found) > MOST_CLASSES:
                break
        return tuple(found.tolist())

    def _checked(self, uri: str, request: ScanRequest) -> FileScan:
        """Look at a file, and hold its columns against the first training file's; optional ones of other types go."""
        scan = _scan_file(uri, request)
        where, types = address.shown(uri), _types(scan.fragments[0])
        for name in request.columns:
            if name not in types:
                fix = f"use a file that has it, or map the file's name by {request.key}={{{name}: ITS_NAME}}"
                raise TipcastError("D007", where, f"missing column {name!r}", fix)
            if not self._holds(name, types[name]):
                what = f"column {name!r} is {types[name]}, where data.train has a {self._type(name)}"
                raise TipcastError("D008", where, what, "write it as the training files have it")
        columns = scan.fragments[0].columns
        own = {name: columns[name] for name in types if name not in request.optional or self._holds(name, types[name])}
        return replace(scan, fragments=tuple(replace(part, columns=own) for part in scan.fragments))

    def _in_time(self, scans: Sequence[FileScan], which: str) -> list[FileScan]:
        """Give each file the side's period, and leave out those parts of it that have no row of that time."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            ranges = list(pool.map(functools.partial(_ranges, time=str(self.time)), scans))
        known = [each for of_file in ranges for each in of_file if each]
        low, high = min(first for first, _ in known), max(last for _, last in known) + split.MINUTE
        if self.spec and self.spec.test is None:
            border = high - int((high - low) * self.spec.test_share)
            low, high = (low, border) if which == "train" else (border, high)
        found = []
        for scan, of_file in zip(scans, ranges, strict=True):
            own = [each for each in of_file if each]
            start = max(low, min(first for first, _ in own))
            stop = min(high, max(last for _, last in own) + split.MINUTE)
            if start < stop:
                inside = [
                    part
                    for part, each in zip(scan.fragments, of_file, strict=True)
                    if each and each[0] < stop and each[1] >= start
                ]
                parts = tuple(replace(part, period=(start, stop)) for part in inside or scan.fragments[-1:])
                found.append(replace(scan, period=(start, stop), fragments=parts))
        return found


def _scan_file(uri: str, request: ScanRequest) -> FileScan:
    """Look at a file's footer or header, and cut it into fragments."""
    if check_format(uri, request) == "parquet":
        footer = parquet.read_footer(uri, request)
        footer.check_rows()
        return FileScan(uri, footer.fragments(dict(footer.names), None), None, footer.digest)
    look = delimited.look(uri, request, None)
    whole = look.fragment(dict(look.names), (), None)
    return FileScan(uri, look.cut(whole, request.block_bytes), None, look.digest, notes=look.notes)


def _types(fragment: Fragment) -> dict[str, pa.DataType]:
    """Return the columns' types as a footer or the first block of a CSV file tells."""
    if fragment.format == "parquet":
        arrow = _footer(fragment).schema
    else:
        arrow = delimited.read_table(fragment, None, {}).schema
    types = {field.name: field.type for field in arrow}
    return {name: types[own] for name, own in fragment.columns.items() if own in types}


def _footer(fragment: Fragment) -> parquet.Footer:
    return parquet.read_footer(fragment.uri, ScanRequest((), storage=fragment.options["storage"]))


def _kind(kind: pa.DataType) -> str:
    """Return ``number``, ``category``, ``time``, or nothing for what no model can use."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if parquet.is_number(kind) or pa.types.is_boolean(kind):
        return "" if pa.types.is_null(kind) else "number"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "category"
    return "time" if pa.types.is_timestamp(kind) else ""


def _why(kind: pa.DataType, read_as: str) -> str:
    if read_as == "category":
        return f"it has more than {MOST_CATEGORIES:,} different texts"
    return "a time is split by with data.time=" if read_as == "time" else f"it is {kind}"


def _categories(scans: Iterable[FileScan], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the different texts of columns of all files, sorted; of a column with too many some of them."""
    found: dict[str, set[str]] = {name: set() for name in names}

    def look(fragment: Fragment) -> None:
        table = _read_texts(fragment, [name for name in names if len(found[name]) <= MOST_CATEGORIES])
        for name in table.column_names:
            found[name].update(text for text in pc.unique(table[name]).to_pylist() if text is not None)

    if names:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(look, (fragment for scan in scans for fragment in scan.fragments)))
    return {name: tuple(sorted(texts)) for name, texts in found.items()}


def _read_texts(fragment: Fragment, names: Sequence[str]) -> pa.Table:
    reader = parquet if fragment.format == "parquet" else delimited
    own = [fragment.columns[name] for name in names]
    return reader.read_texts(fragment, own).select(own).rename_columns(list(names))


def _looked_at(fragment: Fragment, names: Sequence[str]) -> tuple[dict[str, float], list[str]]:
    """Return the median of each number column in a fragment, 0 where it has no value there; and those that rise."""
    read = read_fragment(replace(fragment, options={**fragment.options, "times": ()}), CpuFrames(), names)
    known = {name: values[np.isfinite(values)] for name, values in read.items()}
    medians = {name: float(np.median(values)) if len(values) else 0.0 for name, values in known.items()}
    return medians, [name for name, values in known.items() if len(values) > MANY and (np.diff(values) > 0).all()]


def _ranges(scan: FileScan, time: str) -> list[Period | None]:
    """Return the first and last time in each fragment of a file, None where it has none."""
    found: list[Period | None] = []
    if scan.fragments[0].format == "parquet":
        groups = _footer(scan.fragments[0]).time_ranges(scan.fragments[0].columns[time])
        told = {at: each for at, each in enumerate(groups) if each}
        if len(told) == len(groups):
            of_parts = [[told[at] for at in part.part] for part in scan.fragments]
            return [(min(first for first, _ in each), max(last for _, last in each)) for each in of_parts]
    for fragment in scan.fragments:
        times = replace(fragment, options={**fragment.options, "times": (time,)})
        values = read_fragment(times, CpuFrames(), (time,))[time]
        values = values[values != np.iinfo(np.int64).min]
        found.append((int(values.min()), int(values.max())) if len(values) else None)
    if not any(found):
        raise TipcastError("D010", address.shown(scan.uri), f"column {time!r} is empty", "check data.time")
    return found
