"""What a dataset is, what a user calls its columns, and the values that pass between its files and
workers.
"""

from __future__ import annotations

import difflib
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from tipcast.compute.base import Array, Frame, Frames, count
from tipcast.config.errors import TipcastError, unknown
from tipcast.config.schema import Limits
from tipcast.datasets.parts import FilePart, Fragment, Period
from tipcast.tasks.base import TargetColumn, Task
from tipcast.tasks.kinds import Kind

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from tipcast.datasets.split import Draw

MOST_BLOCKS = 100_000
OUTSIDE_PERIOD = "outside_period"
"""Why a row is dropped whose time is not in the period of its file."""
COLUMN_NAMES = "column_names"
"""Of a listing's facts and a model's manifest: the dataset's name -> a file's, where mapped."""


@dataclass(frozen=True)
class Listing:
    """All fragments of one period or of one side of a split, in time and file order."""

    fragments: tuple[Fragment, ...]
    period: Period | None
    uris: tuple[str, ...]
    digest: str
    """One digest over all files' digests."""
    name: str
    """What its rows are, in the plural: ``blobs rows`` or ``rows``."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the manifest of a model that is trained on them says of them beside."""
    notes: tuple[str, ...] = ()
    """Lines worth a log line, as ``column names mapped from lower case``."""

    @property
    def size(self) -> str:
        """In words: files but for rows that are made, rows where footers tell, and parts, each of
        which a task reads.
        """
        rows = [fragment.rows for fragment in self.fragments]
        known = (
            f"{sum(row for row in rows if row is not None):,} rows, " if None not in rows else ""
        )
        is_made = not any(isinstance(fragment, FilePart) for fragment in self.fragments)
        files = "" if is_made else f"{count(len(self.uris), 'file')}, "
        return f"{files}{known}{count(len(rows), 'part')}"


@dataclass(frozen=True)
class RawColumn:
    """A column as the user of a saved model has it: the model's manifest holds these, its signature
    their names.
    """

    name: str
    """Canonical."""
    spellings: tuple[str, ...]
    """Names that it may have, the usual one first."""
    type: str = "number"
    """``number``, ``time`` or ``category``."""
    required: bool = True
    categories: tuple[str, ...] = ()
    """Of a category: the value of each code."""
    fill: float | None = None
    """In place of a missing number or code; None: NaN, which the features or the model know."""
    indicator: str = ""
    """Name of the feature that is 1 where the value was missing; empty: the model has none."""
    largest: float | None = 1e9
    """Larger numbers are refused; None: a row with one gets no score."""
    missing: tuple[str, ...] = ()
    """Of a number: texts that stand for none, beside those of every column."""
    booleans: bool = False
    """Whether True and False, in any case, are 1 and 0."""


@dataclass(frozen=True)
class ScanRequest:
    """What is asked of every file."""

    columns: tuple[str, ...]
    """Canonical columns it must have."""
    optional: tuple[str, ...] = ()
    """Those to read where it has them."""
    block_bytes: int = 32 << 20
    """A plain CSV file is read in blocks of this size."""
    storage: Mapping[str, Any] = field(default_factory=dict)
    """The user's fsspec options."""
    nullable: tuple[str, ...] = ()
    """Columns that may have no value at all."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What ``FileScan.facts`` must be, where that is not None."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The dataset's name -> a file's own, of columns that a user maps."""
    key: str = "data.columns"
    """Of the configuration of ``names``."""
    any_columns: bool = False
    """Whether any column may be of use: then folders named KEY=VALUE, whose column the files lack,
    are refused.
    """
    strict: bool = True
    """Whether every file must have all that is mapped; otherwise what a file lacks is not mapped in
    it.
    """


@dataclass(frozen=True)
class FileScan:
    """What is learned of one file before any worker reads it."""

    uri: str
    fragments: tuple[FilePart, ...]
    period: Period | None
    digest: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the dataset says of it beside."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Counts:
    """What the driver knows of rows that were read, without having them."""

    rows: int
    """Rows kept."""
    rows_read: int
    """Rows before any was dropped; of a fragment's parts, counted with the first only, as are the
    next two.
    """
    dropped: Mapping[str, int]
    """Reason -> rows."""
    raw_bytes: int = 0
    """Memory of the raw columns read."""
    bytes: int = 0
    """Memory of features and target."""
    classes: tuple[int, ...] = ()
    """Rows of each class; empty for values."""
    target_sum: float = 0.0
    """Of values."""


class Dataset(ABC):
    """What columns mean: which there are, which rows can be used, which features are made of them.

    An instance is small and goes to the workers with every task. ``code``, the module that makes
    features, imports nothing but NumPy, and its file travels inside saved models.
    """

    name: ClassVar[str]
    """Of the dataset, as saved models' manifests have it."""
    code: ClassVar[ModuleType]
    """The module with ``needed_columns``, ``compute`` and ``impossible``."""
    sparse: ClassVar[tuple[str, ...]] = ()
    """Canonical columns of features that a file may lack: they are missing in all its rows."""
    nominal: ClassVar[tuple[str, ...]] = ()
    """Features that are of use as categories alone: a task that names no features does without
    them.
    """

    @property
    @abstractmethod
    def features(self) -> tuple[str, ...]:
        """All features there are."""

    @property
    def time(self) -> str | None:
        """Canonical column of the time that rows are split by; None: they are split at random."""
        return None

    @property
    def test_share(self) -> float:
        """Share of the training rows that is drawn to test on; 0: the test side has rows of its
        own.
        """
        return 0.0

    @property
    def known_columns(self) -> tuple[str, ...]:
        """Raw columns, on which a saved model that has no use of them makes no remark; empty: any
        name may be one.
        """
        return ()

    @abstractmethod
    def scan(self, which: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Listing:
        """List one side of the data (``train``, ``test`` or ``months``) from footers and headers
        alone.

        Every file must have the canonical ``columns``; ``optional`` ones are read where it has
        them. C003 C004 configuration; D-errors, each naming the file.
        """

    def read(
        self, fragment: Fragment, frames: Frames, columns: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Read columns of a fragment, all by default, see ``Fragment.read``; categories are float64
        codes with NaN for null.
        """
        return fragment.read(frames, columns)

    def clean(
        self, columns: Mapping[str, Array], period: Period | None, xp: ModuleType
    ) -> tuple[Array | None, dict[str, int]]:
        """Return a (rows,) bool mask of the rows to keep, None for all; and reason -> rows
        dropped.
        """
        keep, counts = self.code.impossible(
            columns, [name for name in columns if name != self.time], xp
        )
        return (None if keep is None else ~keep), counts

    def compute(self, columns: Mapping[str, Array], names: Sequence[str], xp: ModuleType) -> Array:
        """Make features: (rows, features) float32, each column contiguous."""
        return self.code.compute(columns, names, xp)

    def check_files(self, listing: Listing, per_file: Mapping[str, Counts], limits: Limits) -> None:
        """Refuse a file of which too much had to be dropped; D009 no rows, and the dataset's own
        errors.
        """
        for uri, counts in per_file.items():
            if counts.rows_read == 0:
                raise TipcastError("D009", uri, "has no rows", "remove it")

    def target_column(self, name: str | None, kind: Kind | None) -> TargetColumn:
        """Return what a column holds that is to be predicted, by default the dataset's own; C003
        where it has none.
        """
        what = f"data of {self.name} have no column to be named"
        fix = "use a task that is made for them"
        raise TipcastError("C003", "task.target", what, fix)

    def needed_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the canonical raw columns that features are made of, each once."""
        return tuple(self.code.needed_columns(names))

    # most have nothing to refuse
    def check_categories(self, names: Sequence[str]) -> None:  # noqa: B027
        """Refuse features that cannot be categories; C003."""

    def known_values(self, names: Sequence[str]) -> Mapping[str, int]:
        """Return the number of values of those features that are texts, as far as it is known
        before rows are read.
        """
        return {}

    def encoded(self, task: Task, *, takes_missing: bool, one_hot: bool) -> tuple[Self, Task]:
        """Return the dataset and the task with features as a model wants them.

        ``takes_missing``: the model learns from NaN. ``one_hot``: it gives each value of a category
        a column. Features of a dataset that has fill values of its own stay as they are.
        """
        return self, task

    def without_tested(self, fragments: Sequence[Fragment], task: Task, draw: Draw) -> Self:
        """Return the dataset as the rows of ``fragments`` define it that a draw does not test
        on.
        """
        return self

    def as_trained(self, manifest: Mapping[str, Any]) -> Self:
        """Return the dataset with what a saved model knows of its columns."""
        return self

    def raw_columns(self, names: Sequence[str], facts: Mapping[str, Any]) -> tuple[RawColumn, ...]:
        """Return the raw columns that features are made of; ``facts`` of the listing that a model
        was trained on.
        """
        return tuple(RawColumn(name, (name,)) for name in self.needed_columns(names))

    def raw_frame(self, columns: Mapping[str, Array], facts: Mapping[str, Any]) -> pd.DataFrame:
        """Return canonical host columns as a user of a saved model has them."""
        import pandas as pd  # of no use to the workers of a sweep, which import this

        return pd.DataFrame({name: np.asarray(values) for name, values in columns.items()})

    def facts(self) -> dict[str, Any]:
        """Return what a saved model's manifest must say for the dataset to be made again."""
        return {}

    # most have nothing to refuse
    def check_facts(self, facts: Mapping[str, Any]) -> None:  # noqa: B027
        """Refuse what a configuration of scoring says of its files and cannot be; C003."""

    def scan_file(self, uri: str, request: ScanRequest) -> FileScan:
        """Look at the footer or header of a file whose rows are to be scored; D-errors, each naming
        the file.
        """
        what = f"is a model of {self.name}, whose rows are not read from files"
        raise TipcastError("M006", "model_uri", what, "use a model that was trained on files")

    @property
    def report(self) -> tuple[Mapping[str, Any], ...]:
        """Return a row for each column that says what it is taken for; empty where no file decides
        that.
        """
        return ()

    def scoring_columns(self, names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the columns that files to be scored must have, and those that are read where a
        file has them.
        """
        return self.needed_columns(names), ()

    def own_names(self, names: Sequence[str], where: str) -> dict[str, str]:
        """Return canonical name -> a file's own name, of the columns that have both; D006 where one
        is there twice.
        """
        return {}

    def csv_types(self, header: Sequence[str], where: str) -> dict[str, pa.DataType]:
        """Return what the columns of a CSV file become where they are kept beside scores, by their
        own names.
        """
        import pyarrow as pa  # of no use to the workers of a sweep, which import this

        return dict.fromkeys(header, pa.string())

    def month_files(self) -> Listing:
        """List what is to be written as one file a month, with all its columns; C003 where rows
        have no months.
        """
        what = f"rows of {self.name} have no months to write"
        raise TipcastError("C003", "data.source", what, "use data=sample, data=files or data=tlc")

    def month_file(
        self, month: str, there: Iterable[str], facts: Mapping[str, Any]
    ) -> tuple[str, dict[str, pa.Field]]:
        """Return the name of the file of a month, ``YYYY-MM``, and the fields of the canonical
        columns in its order.
        """
        raise NotImplementedError

    def describe(self, which: str) -> str:
        """Say what one side of the data holds, without downloading anything; errors as ``scan``."""
        listing = self.scan(which, ())
        return f"{listing.size}, {listing.name}"


@dataclass(frozen=True)
class Part:
    """One prepared piece of a fragment, living on a worker."""

    x: Frame
    """(rows, features) float32 DataFrame."""
    y: Frame | None
    """(rows,) Series: int32 classes or values of ``Frames.real``; None where nothing is
    predicted.
    """
    counts: Counts
    place: Array | None = None
    """(rows,) of rows that are still to be drawn from, see ``Draw.places``, as the next."""
    strata: tuple[int, ...] = ()
    """Rows of each class, dropped ones too."""


def check_blocks(name: str, rows: int, block_rows: int) -> None:
    """Refuse more blocks of made rows than one scheduler takes in without a pause; C003."""
    if rows > MOST_BLOCKS * block_rows:
        what = (
            f"{rows:,} rows are more than {MOST_BLOCKS:,} blocks of data.block_rows={block_rows:,}"
        )
        raise TipcastError("C003", f"data.{name}", what, "make fewer rows, or larger blocks")


def check_names(dataset: Dataset, names: Mapping[str, str], key: str) -> None:
    """Refuse names of a configuration's ``key`` that are none of a dataset's columns; C003."""
    known = dataset.known_columns
    for name in names:
        if known and name not in known:
            raise unknown(key, f"column of {dataset.name}", name, known, "C003")


def seen_names(own: Sequence[str], request: ScanRequest, where: str) -> list[tuple[str, str]]:
    """Return (name that the dataset sees, the file's own) of a file's columns, in their order.

    A column that is mapped is seen by the dataset's name; another one of that very name is not
    seen. D006 a column that stands for two or is there twice, D007 one that the file lacks;
    ``where`` is the file, for messages. The dataset sees names in one Unicode form, as ö may be one
    sign or an o with two dots.
    """
    plain = [unicodedata.normalize("NFC", name) for name in own]
    asked = {key: unicodedata.normalize("NFC", column) for key, column in request.names.items()}
    twice = next((name for name, times in Counter(plain).items() if name and times > 1), None)

    if twice is not None:
        raise TipcastError(
            "D006", where, f"column {twice!r} is there twice", "drop or rename one of the two"
        )

    lacking = {name: column for name, column in asked.items() if column not in plain}
    if lacking and request.strict:
        name, column = next(iter(lacking.items()))
        near = difflib.get_close_matches(column, plain, 1)
        found = count(len(own), "column") + (
            f" found, {near[0]!r} among them" if near else " found"
        )
        what = f"missing column {column!r}, which {request.key} maps to {name} ({found})"
        raise TipcastError("D007", where, what, f"write the file's own name of {name} there")

    names = {name: column for name, column in asked.items() if name not in lacking}
    seen: dict[str, str] = {}
    for name, column in names.items():
        if column in seen:
            what = f"column {column!r} is mapped to {seen[column]} and to {name}"
            raise TipcastError("D006", where, what, f"name another column in {request.key}")
        seen[column] = name

    pairs = zip(plain, own, strict=True)
    return [
        (seen.get(name, name), written)
        for name, written in pairs
        if name in seen or name not in names
    ]


def as_named(columns: Iterable[RawColumn], facts: Mapping[str, Any]) -> tuple[RawColumn, ...]:
    """Return a model's raw columns, those that the user maps by the training files' own names.

    ``facts`` are of the listing of the training rows; the dataset's own spellings are taken too.
    """
    names: Mapping[str, str] = facts.get(COLUMN_NAMES, {})
    found = []
    for column in columns:
        own = [names[name] for name in (column.name, *column.spellings) if name in names]
        found.append(replace(column, spellings=tuple(dict.fromkeys((*own, *column.spellings)))))
    return tuple(found)


def raw_frame(
    dataset: Dataset, columns: Mapping[str, Any], features: Sequence[str], facts: Mapping[str, Any]
) -> Any:
    """Return canonical host columns as the user of a model of some features has them, see
    ``Dataset.raw_frame``.
    """
    usual = dataset.raw_columns(features, facts)
    names = {
        one.spellings[0]: own.spellings[0]
        for one, own in zip(usual, as_named(usual, facts), strict=True)
    }
    return dataset.raw_frame(columns, facts).rename(columns=names)
