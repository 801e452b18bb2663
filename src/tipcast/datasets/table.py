"""Anybody's table in Parquet or CSV: numbers, booleans, texts as categories, a time to split by or
a random split.
"""

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import pyarrow as pa

from tipcast.compute.base import Array, Frames
from tipcast.compute.frames import NULL_TIME, CpuFrames
from tipcast.config.errors import TipcastError, needs_value, unknown
from tipcast.config.schema import TableData
from tipcast.datasets import (
    address,
    delimited,
    split,
    table_columns,
    table_encoding,
    table_features,
    table_gaps,
    table_target,
    table_time,
)
from tipcast.datasets.arrow_types import is_text, kind_of
from tipcast.datasets.base import RawColumn, Scorable, Tabular, plain_frame
from tipcast.datasets.listing import (
    gather,
    named_by,
    request_of,
    scan_files,
)
from tipcast.datasets.parts import FilePart, Fragment, Period
from tipcast.datasets.prepare import PreparedPart, Recipe, draw_all, prepare_fragment
from tipcast.datasets.scan import FileInfo, Listing, ScanRequest
from tipcast.datasets.split import Draw
from tipcast.datasets.table_columns import Seen, Taken
from tipcast.datasets.table_scan import TableScan, scan_file
from tipcast.datasets.table_target import MOST_CLASSES
from tipcast.tasks.base import TargetColumn, Task
from tipcast.tasks.kinds import BINARY, MULTICLASS, REGRESSION, Kind

FEW_VALUES = 20
"""Whole numbers with at most so many different values are classes, unless ``task.kind`` says
otherwise.
"""
MOST_PARTS = 4
INDEX = "it was the index of a DataFrame"
NO_NAMES = (
    "its name is one of its values: where the first line is a row, write a line of names above it"
)
PARTIAL = "only some of the files have it"
CHANCE = 1e-20
"""Of all rows of a text to be drawn for the test, from which on it is looked for."""
LEARNED = ("categories", "fill", "indicator")
"""Fields of a column that depend on the rows that a model is trained on."""
NO_TIME = "no_time"
"""Why a row is not used: it cannot be of a side."""


@dataclass(frozen=True)
class Table(Scorable, Tabular):
    """A table whose columns are known by the training files, or by a saved model's manifest."""

    columns: tuple[RawColumn, ...]
    """All that a model can use, by their own names, the time column apart."""
    time: str | None = None
    notes: tuple[str, ...] = ()
    dates: str = ""
    """How the training files write dates with slashes, a key of ``csv_cells.DATES``; empty: each
    file decides.
    """
    taken: Mapping[str, Taken] = field(default_factory=dict, compare=False, repr=False)
    """Of each column of the training files what it holds, and what it is taken for; the driver's
    alone.
    """
    spec: TableData | None = None
    medians: Mapping[str, float] = field(default_factory=dict, compare=False, repr=False)
    """Of each number column of the training files: what may stand for a missing one."""
    gaps: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    """Columns of numbers among which NaN was seen in the parts that medians are of; a footer of
    Parquet does not count it as missing.
    """
    encoding: table_encoding.Encoding | None = field(default=None, compare=False, repr=False)
    """How the model gets the columns; None until a model is known."""
    name = "table"
    code: ClassVar[ModuleType] = table_features

    @classmethod
    def open(cls, spec: TableData) -> Self:
        """Look at the training files for what their columns hold.

        C003 C004 configuration; D001 to D009, D016, D021, D022, each naming the file.
        """
        if spec.test is None and not spec.test_share:
            raise needs_value("data.test", "name files, or set data.test_share=0.2")

        scans, _ = scan_files(named_by(spec, "train"), request_of(spec), "data.train", scan_file)
        first = scans[0]
        cells = not scans[0].fragments[0].typed
        every = {name: kind for scan in reversed(scans) for name, kind in scan.types.items()}
        types = table_columns.types_of(
            scans, {name for name, asked in spec.types.items() if asked == "none"}
        )

        for name in (*spec.types, *filter(None, [spec.time])):
            if name not in types:
                raise unknown(
                    "data.time" if name == spec.time else "data.types",
                    "column",
                    name,
                    list(types),
                    "D007",
                )

        seen = table_columns.look(scans, types)
        if spec.time is not None:
            if not seen[spec.time].present:
                raise table_time.empty(scans[0].uri, spec.time)
            kind = types[spec.time]
            if not (seen[spec.time].are_times if cells else kind_of(kind) == "time"):
                what = f"column {spec.time!r} is {'text' if cells else kind}, not a timestamp"
                where = address.shown(scans[0].uri)
                raise TipcastError(
                    "D008", where, what, "write it as 2019-02-28 13:05, or leave data.time out"
                )

        taken = {
            name: table_columns.take(
                name,
                first.written.get(name, name),
                kind,
                seen[name],
                spec.types.get(name),
                cells=cells,
            )
            for name, kind in types.items()
        }
        values = [each for each in taken.values() if each.column and each.name in each.seen.texts]
        if cells and 2 * len(values) > len(taken):
            taken[values[0].name] = replace(values[0], note=NO_NAMES, warns=True)

        for name in (name for name in every if name not in types):
            taken[name] = Taken(
                name, None, str(every[name]), Seen(), INDEX if name in first.index else PARTIAL
            )

        features = [each for each in taken.values() if each.name != spec.time]
        slashed = {date for scan in scans for date in scan.slashed}
        dates, *said = delimited.reading(slashed, None) if slashed else ("",)
        columns = tuple(each.column for each in features if each.column)
        table = cls(columns, spec.time, (*table_columns.notes(features), *said), dates, taken, spec)
        medians, gaps = table._look_at_numbers(scans)

        return replace(table, medians=medians, gaps=gaps)

    @classmethod
    def of_model(cls, manifest: Mapping[str, Any]) -> Self:
        columns = [RawColumn.from_manifest(column) for column in manifest["table"]]
        return cls(tuple(columns), manifest.get("time"), dates=manifest.get("dates", ""))

    @property
    def features(self) -> tuple[str, ...]:
        return (*self._by_name, *self._indicated)

    @property
    def known_columns(self) -> tuple[str, ...]:
        return tuple(filter(None, (*self._by_name, self.time)))

    @property
    def report(self) -> tuple[Mapping[str, Any], ...]:
        lines = [each.line() for each in self.taken.values()]
        if self.encoding is None:
            return tuple(lines)
        words = self.encoding.in_words(self.columns)  # which may have lost texts since
        return tuple(
            {**line, "given to the model": words.get(str(line["column"]), "")} for line in lines
        )

    @property
    def test_share(self) -> float:
        """Share of rows that is drawn to test on, where no test files are named and rows have no
        time.
        """
        spec = self.spec
        return spec.test_share if spec and spec.test is None and self.time is None else 0.0

    def to_manifest(self) -> dict[str, Any]:
        """Return the columns, with the vocabularies of categories."""
        return {
            "table": [column.to_manifest() for column in self.columns],
            "time": self.time,
            "dates": self.dates,
        }

    def needed_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._indicated.get(name, name) for name in names))

    def raw_columns(self, names: Sequence[str], info: FileInfo) -> tuple[RawColumn, ...]:
        return tuple(self._by_name[name] for name in self.needed_columns(names))

    def raw_frame(self, columns: Mapping[str, Array], info: FileInfo) -> pd.DataFrame:
        """Return host columns with texts for codes."""
        frame = plain_frame({name: values for name, values in columns.items() if name != self.time})
        for name in frame.columns:
            if categories := self._by_name[name].categories:
                # NaN may be read of these
                nothing = "" if table_columns.ABSENT.intersection(categories) else None
                texts = np.array([*categories, nothing], dtype=object)
                codes = frame[name].to_numpy()
                frame[name] = texts[np.where(np.isnan(codes), len(categories), codes).astype(int)]

        return frame.rename(
            columns={name: self._by_name[name].spellings[0] for name in frame.columns}
        )

    def target_column(self, name: str | None, kind: Kind | None) -> TargetColumn:
        """Return what a column holds; ``kind`` where it is given, otherwise as the values say.

        C003 a kind that the column is not of, C004 no column is named, D007 it is not there.
        """
        if name is None:
            raise needs_value("task.target", "add task.target=COLUMN")

        note = self.taken[name].note if name in self.taken else ""
        if name not in self.features and note:
            raise table_target.left_out(name, note, many=self.taken[name].seen.many)
        if name not in self.features:
            raise unknown("task.target", "column", name, self.features, "D007")

        column = self._by_name[name]
        values: tuple[float, ...] = ()
        if column.type == "category":
            classes = column.categories
        elif kind is not None and kind.has_target and not kind.has_classes:
            return TargetColumn(name, kind)
        else:
            values = self._values(name)
            whole = all(value.is_integer() for value in values)
            if kind is None and (len(values) > FEW_VALUES or not whole):
                return TargetColumn(name, REGRESSION)
            classes = tuple(
                str(int(value)) if value.is_integer() else repr(value) for value in values
            )
            if column.booleans:
                classes = tuple(str(bool(value)) for value in values)

        if len(classes) == 1:
            what = f"all rows of column {name!r} have the same value ({classes[0]})"
            raise TipcastError(
                "D015", "data.train", what, note or "name another column as task.target"
            )

        asked = kind or (BINARY if len(classes) == 2 else MULTICLASS)
        if not asked.takes_classes(len(classes)) or len(classes) > MOST_CLASSES:
            raise table_target.unfit(column, len(classes), kind)

        return TargetColumn(name, asked, classes, values)

    def check_categories(self, names: Sequence[str]) -> None:
        """Refuse (C003) numbers that are no categories to XGBoost, and more of them than texts may
        be.
        """
        for name in (name for name in names if self._type(name) == "number"):
            values = self._values(name, table_columns.MOST_CATEGORIES)
            odd = any(value < 0 or not value.is_integer() for value in values)
            if odd or len(values) > table_columns.MOST_CATEGORIES:
                what = (
                    f"categories are at most {table_columns.MOST_CATEGORIES:,} whole numbers "
                    f"from 0: not {name!r}"
                )
                fix = (
                    f"write it as text, in CSV add data.types={{{name}: category}}, or leave it out"
                )
                raise TipcastError("C003", "task.categorical", what, fix)

    def known_values(self, names: Sequence[str]) -> Mapping[str, int]:
        columns = (self._by_name[name] for name in names)
        return {column.name: len(column.categories) for column in columns if column.categories}

    def encoded(self, task: Task, *, takes_missing: bool, one_hot: bool) -> tuple[Self, Task]:
        """Return the table and the task as a model wants them, see ``table_encoding.encode``."""
        lacking = {name for name, each in self.taken.items() if each.lacks_values} | self.gaps
        if not takes_missing:
            lacking |= self._with_nan(set(task.features) - set(task.categorical) - lacking)
        wishes = {"takes_missing": takes_missing, "one_hot": one_hot}
        encoding = table_encoding.encode(self.columns, task, self.medians, lacking, **wishes)
        return replace(self, columns=encoding.columns, encoding=encoding), encoding.task

    def without_tested(self, fragments: Sequence[Fragment], task: Task, draw: Draw) -> Self:
        """Return the table without the texts that only rows to test on have: as any that training
        lacks, these miss.

        Where a column has texts of so few rows that all may be drawn, it is read again.
        """
        rare: dict[str, list[int]] = {}
        for column in (self._by_name[name] for name in self.needed_columns(task.features)):
            seen = self.taken[column.name].seen
            rows = [seen.texts[text] or seen.absent[text] for text in column.categories]
            if few := [code for code, number in enumerate(rows) if draw.test**number > CHANCE]:
                rare[column.name] = few
        if not rare:
            return self
        recipe = Recipe(self, replace(task, features=tuple(rare)), draw=draw)

        def look(fragment: Fragment) -> tuple[PreparedPart]:
            (part,) = prepare_fragment(fragment, CpuFrames(), recipe)
            place = np.asarray(part.place)
            few = part.x.isin(rare).any(axis=1).to_numpy()
            return (replace(part, x=part.x[few], y=None, place=place[few]),)

        with ThreadPoolExecutor(address.AT_ONCE) as pool:
            learnt = [
                part.x for parts in draw_all([*pool.map(look, fragments)], recipe) for part in parts
            ]
        columns = list(self.columns)
        for at, column in enumerate(columns):
            if codes := rare.get(column.name):
                lost = set(codes).difference(*(x[column.name] for x in learnt))
                texts = (text for code, text in enumerate(column.categories) if code not in lost)
                columns[at] = replace(column, categories=tuple(texts))
        return replace(self, columns=tuple(columns))

    def as_trained(self, manifest: Mapping[str, Any]) -> Self:
        """Return the table with a saved model's categories, fillings and indicators."""
        saved = [RawColumn.from_manifest(column) for column in manifest["columns"]]
        trained = {(column.name, column.type): column for column in saved}
        columns = []

        for column in self.columns:
            of_model = trained.get((column.name, column.type), column)
            learned = {name: getattr(of_model, name) for name in LEARNED}
            columns.append(replace(column, **learned))

        return replace(self, columns=tuple(columns))

    def scan(self, which: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Listing:
        """List one side, see ``Dataset.scan``; without test files both sides are of the training
        files.
        """
        if self.spec is None:
            raise needs_value(f"data.{which}")

        named = "train" if which == "test" and self.spec.test is None else which
        request = request_of(self.spec, columns, optional)
        scans, notes = scan_files(
            named_by(self.spec, named), request, f"data.{named}", self.scan_file
        )
        if named == "test":
            notes = (*notes, *self._unknown(scans, columns))

        if self.time is not None:
            time = self.time
            share = self.spec.test_share if self.spec.test is None else None
            scans = table_time.side_of(
                scans, lambda part: self.read(part, CpuFrames(), (time,))[time], time, which, share
            )

        if which == "train":
            notes = (*notes, *self.notes)

        return gather(scans, "rows", FileInfo(), notes)

    def scan_file(self, uri: str, request: ScanRequest) -> TableScan:
        """Look at a file, and hold its columns against the training files'; optional ones that do
        not fit go.
        """
        scan = scan_file(uri, request)
        where = address.shown(uri)
        types = scan.types

        for name in request.columns:
            if name not in types:
                fix = (
                    "use a file that has it, or map the file's name "
                    f"by {request.key}={{{name}: ITS_NAME}}"
                )
                raise TipcastError("D007", where, f"missing column {name!r}", fix)
            if not self._fits(name, types[name], scan):
                what = (
                    f"column {name!r} is {types[name]}, where data.train has a {self._type(name)}"
                )
                raise TipcastError("D008", where, what, "write it as the training files have it")

        return self._fitting(scan, request.optional)

    def csv_types(self, header: Sequence[str], where: str) -> dict[str, pa.DataType]:
        """Return doubles and times where a model was trained on such; all others stay text."""
        arrow = {"number": pa.float64(), "time": pa.timestamp("us")}
        plain = {
            column.name: column.type
            for column in self.columns
            if not (column.missing or column.booleans)
        }
        known = plain | {str(self.time): "time"}
        return {name: arrow.get(known.get(name, ""), pa.string()) for name in header}

    def read(
        self, fragment: Fragment, frames: Frames, columns: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Read columns, on the host those whose values a device does not read as they are
        stored.
        """
        if not isinstance(fragment, FilePart):
            return fragment.read(frames, columns)

        wanted = tuple(self.features if columns is None else columns)
        host = [name for name in wanted if name in fragment.host]
        plain = [name for name in wanted if name not in host]
        if not wanted:
            return {}

        read, table = fragment.read_beside(frames, plain, host)
        where = address.shown(fragment.uri)
        for name in host:
            if name == self.time:  # of days
                times = pa.table({name: table[name].cast(pa.timestamp("us"))})
                read |= frames.arrays(times, [name])
            else:
                column = self._by_name[name]
                values = table_columns.values_of(table[name], column, where, fragment.place)
                read[name] = frames.xp.asarray(values)

        return {name: read[name] for name in wanted}

    def compute(self, columns: Mapping[str, Array], names: Sequence[str], xp: ModuleType) -> Array:
        """Make features, with fillings for what is missing where the model takes no NaN."""
        features: dict[str, Array] = {}
        for name in self.needed_columns(names):
            column = self._by_name[name]
            features[name], indicators = table_features.filled(
                columns[name], column.fill, column.indicator, xp
            )
            features |= indicators

        return table_features.compute(features, names, xp)

    def clean(
        self, columns: Mapping[str, Array], period: Period | None, xp: ModuleType
    ) -> tuple[Array | None, dict[str, int]]:
        """Drop rows with a number that cannot be, and rows of the other side's time."""
        keep, dropped = super().clean(columns, period, xp)
        if self.time is None or period is None:
            return keep, dropped

        time = columns[self.time]
        missing = time == NULL_TIME
        inside = (time >= period[0]) & (time < period[1])
        lost = {NO_TIME: int(missing.sum()), split.OTHER_SIDE: int((~inside & ~missing).sum())}
        if not any(lost.values()):
            return keep, dropped

        keep = inside if keep is None else keep & inside
        return keep, {**dropped, **{reason: rows for reason, rows in lost.items() if rows}}

    def _type(self, name: str) -> str:
        return "time" if name == self.time else self._by_name[name].type

    def __getstate__(self) -> dict[str, Any]:
        """Return what goes to the workers."""
        return {**vars(self), "taken": {}, "encoding": None}

    @functools.cached_property
    def _by_name(self) -> dict[str, RawColumn]:
        return {column.name: column for column in self.columns}

    @functools.cached_property
    def _indicated(self) -> dict[str, str]:
        """Feature that says where a value was missing -> the column."""
        return {column.indicator: column.name for column in self.columns if column.indicator}

    def _values(self, name: str, most: int = MOST_CLASSES) -> tuple[float, ...]:
        """Return the different values of a number column of the training files, sorted; of more
        than ``most`` some.
        """
        values: Array = np.empty(0)
        if texts := self.taken[name].seen.texts:  # all rows were looked at already
            column = pa.chunked_array([list(texts)], pa.string())
            parts: Iterable[Array] = [
                table_columns.values_of(column, self._by_name[name], "data.train")
            ]
        else:
            fragments = self.scan("train", (name,)).fragments
            parts = (self.read(fragment, CpuFrames(), (name,))[name] for fragment in fragments)

        for part in parts:
            values = np.union1d(values, part.astype(np.float64))
            values = values[np.isfinite(values)]
            if len(values) > most:
                break

        return tuple(values.tolist())

    def _fits(self, name: str, kind: pa.DataType, scan: TableScan) -> bool:
        """Whether the values of a file's column can be taken as training took them."""
        if not scan.fragments[0].typed or pa.types.is_null(kind):
            return True
        return kind_of(kind) in (
            ("time",) if self._type(name) == "time" else ("number", "category")
        )

    def _fitting(self, scan: TableScan, optional: Sequence[str] = ()) -> TableScan:
        """Leave out optional columns that do not fit, and say which ones the host has to read."""
        types = scan.types
        part = scan.fragments[0]
        own = {}
        host = []

        for name, kind in types.items():
            if name in optional and not self._fits(name, kind, scan):
                continue

            own[name] = part.columns[name]
            column = self._by_name.get(name)
            if name == self.time:
                is_host = part.typed and not pa.types.is_timestamp(kind)
            elif column is None or column.type == "category":
                is_host = column is not None
            else:
                is_host = is_text(kind) and (part.typed or bool(column.booleans or column.missing))

            if is_host:
                host.append(name)

        parts = tuple(part.of_table(own, host, self.time, self.dates) for part in scan.fragments)
        return replace(scan, fragments=parts, notes=() if self.dates else scan.notes)

    def _look_at_numbers(
        self, scans: Sequence[TableScan]
    ) -> tuple[dict[str, float], frozenset[str]]:
        """Read the number columns of at most ``MOST_PARTS`` parts, evenly spread over the files.

        Returns the median of each, and the columns among whose values is NaN.
        """
        parts = [part for scan in scans for part in self._fitting(scan).fragments]
        chosen = [
            parts[at] for at in np.unique(np.linspace(0, len(parts) - 1, MOST_PARTS).astype(int))
        ]
        numbers = [column.name for column in self.columns if column.type == "number"]
        with ThreadPoolExecutor(address.AT_ONCE) as pool:
            read = list(pool.map(lambda part: self.read(part, CpuFrames(), numbers), chosen))
        medians = {}
        gaps = set()

        for name in numbers:
            values = np.concatenate([part[name] for part in read])
            if np.isnan(values).any():
                gaps.add(name)
            finite = values[np.isfinite(values)]
            medians[name] = float(np.median(finite)) if len(finite) else 0.0

        return medians, frozenset(gaps)

    def _with_nan(self, names: Collection[str]) -> set[str]:
        """Return the number columns among these that have NaN anywhere in the training files."""
        # rows that are made lack nothing
        numbers = [name for name in self.taken if name in names and self._type(name) == "number"]
        if self.spec is None or not numbers:
            return set()

        request = request_of(self.spec, numbers)
        scans, _ = scan_files(named_by(self.spec, "train"), request, "data.train", self.scan_file)
        return table_gaps.columns_with_nan(scans, numbers)

    def _unknown(self, scans: Sequence[TableScan], columns: Sequence[str]) -> list[str]:
        """Return a line for each column of which files have values that training lacks, with the
        first of them.
        """
        texts = {
            name: frozenset(self._by_name[name].categories)
            for name in columns
            if self._type(name) == "category"
        }
        notes = []
        for name, seen in table_columns.look(scans, dict.fromkeys(texts, pa.string())).items():
            lacking = Counter(
                {text: rows for text, rows in seen.texts.items() if text not in texts[name]}
            )
            if lacking:
                shown = ", ".join(repr(text) for text, _ in lacking.most_common(3))
                of = f"{lacking.total():,} of {seen.counts['rows']:,} rows to test on"
                notes.append(f"{of} have values of {name} that training lacks: {shown}")

        return notes
