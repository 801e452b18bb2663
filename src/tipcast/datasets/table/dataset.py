"""Anybody's table in Parquet or CSV: numbers, booleans, texts as categories, a time to split by or
a random split.
"""

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import pyarrow as pa

from tipcast.compute.base import Array, Frames
from tipcast.compute.frames import NULL_TIME, CpuFrames
from tipcast.config.data_schema import TableData
from tipcast.config.errors import TipcastError, needs_value, unknown
from tipcast.datasets import periods
from tipcast.datasets.base import RawColumn, Scorable, Tabular, plain_frame
from tipcast.datasets.dialect import Dialect
from tipcast.datasets.find_files import listing_of, named_by, request_of, scan_files
from tipcast.datasets.group_split import GroupDraw
from tipcast.datasets.listing import FileInfo, Listing, ScanRequest
from tipcast.datasets.parts import FilePart, Part, Period
from tipcast.datasets.prepare import Recipe
from tipcast.datasets.random_split import Draw
from tipcast.datasets.table import features as table_features
from tipcast.datasets.table import time_split, vocabulary
from tipcast.datasets.table.column_stats import ABSENT, MOST_CATEGORIES, columns_with_nan
from tipcast.datasets.table.column_types import ColumnDecision
from tipcast.datasets.table.dates import check_categorical, dates_as_texts, features_of
from tipcast.datasets.table.encoding import Encoding, encode
from tipcast.datasets.table.profile import profile_training_files, scan_training_files
from tipcast.datasets.table.reader import ColumnReader, values_of
from tipcast.datasets.table.scan import TableScan, scan_as_stored
from tipcast.datasets.table.target import MOST_CLASSES, left_out, target_of
from tipcast.tasks.base import TargetColumn, Task
from tipcast.tasks.kinds import Kind

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
    group: str | None = None
    notes: tuple[str, ...] = ()
    dialect: Dialect = Dialect()
    """How text files to read are written, as the training files are; the separator is each
    file's.
    """
    dates: str = ""
    """How the training files write dates with slashes, a key of ``csv_cells.DATES``; empty: each
    file decides.
    """
    decisions: Mapping[str, ColumnDecision] = field(default_factory=dict, compare=False, repr=False)
    """What each column of the training files holds, and what it is taken for; empty on workers."""
    spec: TableData | None = None
    medians: Mapping[str, float] = field(default_factory=dict, compare=False, repr=False)
    """Median of each column of numbers in up to four parts of the training files: what may replace
    missing numbers.
    """
    nan_in_sample: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    """Columns of numbers with NaN in those parts: Parquet footers do not count NaN as missing."""
    training_scans: Sequence[TableScan] = field(default=(), compare=False, repr=False)
    """The training files, each scanned once; empty on workers."""
    scan_notes: Sequence[str] = field(default=(), compare=False, repr=False)
    """Lines worth a log line on finding these files."""
    encoding: Encoding | None = field(default=None, compare=False, repr=False)
    """How the model gets the columns; None until a model is known."""
    name = "table"
    code: ClassVar[ModuleType] = table_features

    @classmethod
    def open(cls, spec: TableData) -> Self:
        """Read the training files on the driver for what their columns hold.

        All rows of columns of texts are read, which in CSV are all columns, and of any column of
        Parquet whose footer does not count nulls. Columns of numbers are read in up to four parts.

        Raises C003 and C004 for the configuration, and D001 to D009, D016, D021 and D022 with the
        file's name.
        """
        scans, scan_notes = scan_training_files(spec)
        profile = profile_training_files(spec, scans)
        # Footers of many files are large, and all that they tell is counted.
        kept_scans = [replace(scan, footer=None) for scan in scans]

        return cls(
            columns=profile.columns,
            time=spec.time,
            group=spec.group,
            notes=profile.notes,
            dialect=request_of(spec).dialect,
            dates=profile.dates,
            decisions=profile.decisions,
            spec=spec,
            medians=profile.medians,
            nan_in_sample=profile.nan_in_sample,
            training_scans=kept_scans,
            scan_notes=scan_notes,
        )

    @classmethod
    def of_model(cls, manifest: Mapping[str, Any]) -> Self:
        columns = [RawColumn.from_manifest(column) for column in manifest["table"]]
        dialect = Dialect().with_options(manifest.get("dialect", {}), "")
        dates = manifest.get("dates", "")
        return cls(tuple(columns), manifest.get("time"), dialect=dialect, dates=dates)

    def of_files(self, options: Mapping[str, Any]) -> Self:
        """Return the table for files that are written as some options say, and otherwise as the
        training files. Raises C003.
        """
        return replace(self, dialect=self.dialect.with_options(options, ""))

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(self._column_of)

    @property
    def known_columns(self) -> tuple[str, ...]:
        return tuple(filter(None, (*self._by_name, self.time)))

    @property
    def report(self) -> tuple[Mapping[str, Any], ...]:
        lines = [decision.line() for decision in self.decisions.values()]
        if self.encoding is None:
            return tuple(lines)

        words = self.encoding.in_words(self.columns)  # columns may have lost texts since
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
            "dialect": self.dialect.to_manifest(),
        }

    def needed_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._column_of[name] for name in names))

    def raw_columns(self, names: Sequence[str], info: FileInfo) -> tuple[RawColumn, ...]:
        return tuple(self._by_name[name] for name in self.needed_columns(names))

    def raw_frame(self, columns: Mapping[str, Array], info: FileInfo) -> pd.DataFrame:
        """Return host columns with texts for codes and days."""
        not_features = (self.time, self.group)
        frame = plain_frame(
            {name: values for name, values in columns.items() if name not in not_features}
        )
        for name in frame.columns:
            if self._by_name[name].type == "date":
                frame[name] = dates_as_texts(frame[name].to_numpy())
            if categories := self._by_name[name].categories:
                # NaN may be read of these
                nothing = "" if ABSENT.intersection(categories) else None
                texts = np.array([*categories, nothing], dtype=object)
                codes = frame[name].to_numpy()
                frame[name] = texts[np.where(np.isnan(codes), len(categories), codes).astype(int)]

        return frame.rename(
            columns={name: self._by_name[name].spellings[0] for name in frame.columns}
        )

    def target_column(self, name: str | None, kind: Kind | None) -> TargetColumn:
        """Return what a column holds; ``kind`` where it is given, otherwise as the values say.

        Raises C003 for a kind that the column is not of, C004 if no column is named, D007 if it is
        not there.
        """
        if name is None:
            raise needs_value("task.target", "add task.target=COLUMN")

        note = self.decisions[name].note if name in self.decisions else ""
        if name not in self._by_name and note:
            raise left_out(name, note, many=self.decisions[name].stats.many)
        if name not in self._by_name:
            raise unknown("task.target", "column", name, list(self._by_name), "D007")

        return target_of(self._by_name[name], kind, note, self._distinct_values)

    def check_categories(self, names: Sequence[str]) -> None:
        """Refuse (C003) numbers that are no categories to XGBoost, and more of them than texts may
        be.
        """
        check_categorical(self.columns, names)
        for name in self._numbers(name for name in names if name in self._by_name):
            values = self._distinct_values(name, MOST_CATEGORIES)
            odd = any(value < 0 or not value.is_integer() for value in values)
            if odd or len(values) > MOST_CATEGORIES:
                what = (
                    f"categories are at most {MOST_CATEGORIES:,} whole numbers from 0: not {name!r}"
                )
                fix = (
                    f"write it as text (in CSV, add data.types={{{name}: category}}), "
                    "or leave it out"
                )
                raise TipcastError("C003", "task.categorical", what, fix)

    def check_number(self, name: str, key: str) -> None:
        """Refuse a column that holds texts, dates or times. Raises C003."""
        if name in self._by_name and self._reader.type_of(name) != "number":
            what = f"column {name!r} does not contain numbers: it is a {self._reader.type_of(name)}"
            raise TipcastError("C003", key, what, f"use another column, or write {name} as numbers")

    def known_values(self, names: Sequence[str]) -> Mapping[str, int]:
        columns = (self._by_name[name] for name in names if name in self._by_name)
        return {column.name: len(column.categories) for column in columns if column.categories}

    def encoded(self, task: Task, *, takes_missing: bool, one_hot: bool) -> tuple[Self, Task]:
        """Return the table and the task as a model wants them, see ``encoding.encode``."""
        lacking = set(self.nan_in_sample)
        lacking.update(
            decision.name for decision in self.decisions.values() if decision.lacks_values
        )
        if not takes_missing:
            lacking |= self._with_nan_anywhere(set(task.features) - set(task.categorical) - lacking)

        wishes = {"takes_missing": takes_missing, "one_hot": one_hot}
        encoding = encode(self.columns, task, self.medians, lacking, **wishes)
        return replace(self, columns=encoding.columns, encoding=encoding), encoding.task

    def without_texts_of_test_rows(
        self, parts: Sequence[Part], task: Task, draw: Draw | GroupDraw
    ) -> Self:
        """Return the table without the categories that only rows to test on have; no row goes.

        Cells with such a text are missing values, as with any text that training lacks. If a
        column has texts of so few rows that all of them may be drawn, the driver reads it again.
        """
        needed = [self._by_name[name] for name in self.needed_columns(task.features)]
        rare = vocabulary.rare_codes(needed, self.decisions, draw)
        if not rare:
            return self

        task_of_rare = replace(task, features=tuple(rare), weight=None)
        recipe = Recipe(self, task_of_rare, draw=replace(draw, folds=0))
        lost = vocabulary.lost_codes(parts, recipe, rare)
        return replace(self, columns=vocabulary.without_codes(self.columns, lost))

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
        files, which ``open`` has scanned.

        The column of the time is read, and of test files those of categories, for a note on texts
        that training lacks.
        """
        if self.spec is None:
            raise needs_value(f"data.{which}")

        request = request_of(self.spec, columns, optional)
        named = "train" if which == "test" and self.spec.test is None else which
        if named == "train":
            scans = [self._checked(scan, request) for scan in self.training_scans]
            notes = tuple(self.scan_notes)
        else:
            files = named_by(self.spec, named)
            scans, notes = scan_files(files, request, f"data.{named}", self.scan_file)

        if named == "test":
            notes = (*notes, *self._notes_on_new_texts(scans, columns))

        if self.time is not None:
            share = self.spec.test_share if self.spec.test is None else None
            scans = time_split.side_of(scans, self._times, self.time, which, share)

        if which == "train":
            notes = (*notes, *self.notes)

        return listing_of(scans, "rows", FileInfo(), notes)

    def scan_file(self, uri: str, request: ScanRequest) -> TableScan:
        """Scan a file to test on or to score, and hold its columns against the training files'."""
        scan = scan_as_stored(uri, replace(request, dialect=self.dialect))
        return self._checked(scan, request)

    def _checked(self, scan: TableScan, request: ScanRequest) -> TableScan:
        """Return the scan of a file whose columns fit those of the training files; optional ones
        that do not fit go.

        Its parts know which column is the time, how dates are written, and which columns the host
        decodes. Raises D007 and D008.
        """
        self._reader.check(scan, request)
        return self._reader.adapt_scan(scan, request.optional)

    def _notes_on_new_texts(self, scans: Sequence[TableScan], names: Sequence[str]) -> list[str]:
        texts = [self._by_name[name] for name in names if self._reader.type_of(name) == "category"]
        return vocabulary.new_texts(scans, texts)

    def csv_types(self, header: Sequence[str], where: str) -> dict[str, pa.DataType]:
        """Return doubles and times where a model was trained on such; all others stay text."""
        arrow = {"number": pa.float64(), "time": pa.timestamp("us")}
        plain = {
            column.name: column.type
            for column in self.columns
            if not (column.missing or column.booleans)
        }
        types = plain | {str(self.time): "time"}
        return {name: arrow.get(types.get(name, ""), pa.string()) for name in header}

    def read(
        self, part: Part, frames: Frames, columns: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Read columns, on the host those whose values a device does not read as they are
        stored.
        """
        if not isinstance(part, FilePart):
            return part.read(frames, columns)

        names = tuple(self._by_name if columns is None else columns)
        return self._reader.read(part, frames, names)

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
        lost = {NO_TIME: int(missing.sum()), periods.OTHER_SIDE: int((~inside & ~missing).sum())}
        if not any(lost.values()):
            return keep, dropped

        keep = inside if keep is None else keep & inside
        return keep, {**dropped, **{reason: rows for reason, rows in lost.items() if rows}}

    def __getstate__(self) -> dict[str, Any]:
        """Return what goes to the workers."""
        return {**vars(self), "decisions": {}, "training_scans": (), "encoding": None}

    @functools.cached_property
    def _by_name(self) -> dict[str, RawColumn]:
        return {column.name: column for column in self.columns}

    @functools.cached_property
    def _reader(self) -> ColumnReader:
        """The columns as files to read must have them."""
        return ColumnReader(self._by_name, self.time, self.dates, self.dialect.decimal, self.group)

    @functools.cached_property
    def _column_of(self) -> dict[str, str]:
        """Feature -> the column that it is made of; those that say where values were missing are
        last.
        """
        made = {name: column.name for column in self.columns for name in features_of(column)}
        return made | {column.indicator: column.name for column in self.columns if column.indicator}

    def _numbers(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if self._reader.type_of(name) == "number"]

    def _times(self, part: Part) -> Array:
        """Read the column of times, see ``time_split.Times``."""
        time = str(self.time)
        return self.read(part, CpuFrames(), (time,))[time]

    def _distinct_values(self, name: str, most: int = MOST_CLASSES) -> tuple[float, ...]:
        """Return the different values of a number column of the training files, sorted; of more
        than ``most`` some.
        """
        distinct: Array = np.empty(0)
        for values in self._values_of_parts(name):
            distinct = np.union1d(distinct, values.astype(np.float64))
            distinct = distinct[np.isfinite(distinct)]
            if len(distinct) > most:
                break

        return tuple(distinct.tolist())

    def _values_of_parts(self, name: str) -> Iterator[Array]:
        """Yield the values of a number column of the training files, part after part; of texts,
        which were all counted, each different one.
        """
        texts = self.decisions[name].stats.texts
        if texts:
            column = pa.chunked_array([list(texts)], pa.string())
            yield values_of(column, self._by_name[name], "data.train", self.dialect.decimal)
            return

        for part in self.scan("train", (name,)).parts:
            yield self.read(part, CpuFrames(), (name,))[name]

    def _with_nan_anywhere(self, names: Collection[str]) -> set[str]:
        """Return the number columns among these that have NaN anywhere in the training files."""
        # Rows that are made lack no values.
        numbers = self._numbers(name for name in self.decisions if name in names)
        if self.spec is None or not numbers:
            return set()

        request = request_of(self.spec, numbers)
        scans = [self._checked(scan, request) for scan in self.training_scans]
        return columns_with_nan(scans, numbers)
