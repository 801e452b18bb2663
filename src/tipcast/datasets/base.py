"""What a dataset is, and what some are beside: scorable, of files that are published, of months, or
a table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np

from tipcast.compute.base import Array, Frames
from tipcast.config.data_schema import Limits
from tipcast.config.errors import TipcastError, unknown
from tipcast.datasets.counts import Counts
from tipcast.datasets.group_split import GroupDraw
from tipcast.datasets.listing import FileInfo, FileScan, Listing, ScanRequest
from tipcast.datasets.parts import Part, Period
from tipcast.datasets.random_split import Draw
from tipcast.tasks.base import TargetColumn, Task
from tipcast.tasks.kinds import Kind

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class Dataset(ABC):
    """What columns mean: which there are, which rows can be used, which features are made of them.

    An instance is small and goes to the workers with every task. ``code``, the module that makes
    features, imports nothing but NumPy, and its file travels inside saved models. A dataset of
    one's own needs ``name``, ``code``, ``features`` and ``scan``.
    """

    name: ClassVar[str]
    """Name of the dataset in saved models' manifests."""
    code: ClassVar[ModuleType]
    """The module with ``needed_columns``, ``compute`` and ``impossible``."""

    @property
    @abstractmethod
    def features(self) -> tuple[str, ...]:
        """All features there are."""

    @property
    def time(self) -> str | None:
        """Canonical column of the time that rows are split by; None: they are split at random."""
        return None

    @abstractmethod
    def scan(self, which: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Listing:
        """List one side of the data (``train``, ``test`` or ``months``) in the driver.

        Of a Parquet file the footer is read. A local CSV file is read whole, see
        ``delimited.scan_csv``; ``Table`` has done both for training files when it was opened. A
        dataset may also read columns, as the one of the time.

        Every file must have the canonical ``columns``; ``optional`` ones are read where it has
        them.

        Raises C003 and C004 for the configuration, and D-errors with the file's name.
        """

    def read(
        self, part: Part, frames: Frames, columns: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Read columns of a part, all by default, see ``Part.read``; categories are float64
        codes with NaN for null.
        """
        return part.read(frames, columns)

    def needed_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the canonical raw columns that features are made of, each once."""
        return tuple(self.code.needed_columns(names))

    def clean(
        self, columns: Mapping[str, Array], period: Period | None, xp: ModuleType
    ) -> tuple[Array | None, dict[str, int]]:
        """Return a (rows,) bool mask of the rows to keep, None for all; and reason -> rows
        dropped.
        """
        bad, counts = self.code.impossible(
            columns, [name for name in columns if name != self.time], xp
        )
        return (None if bad is None else ~bad), counts

    def compute(self, columns: Mapping[str, Array], names: Sequence[str], xp: ModuleType) -> Array:
        """Make features: (rows, features) float32, each column contiguous."""
        return self.code.compute(columns, names, xp)


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
    """``number``, ``time``, ``date`` or ``category``."""
    required: bool = True
    categories: tuple[str, ...] = ()
    """The value of each code, if the column is a category."""
    fill: float | None = None
    """What replaces a missing number, code or day; None: NaN, which features or model
    understand.
    """
    indicator: str = ""
    """Name of the feature that is 1 where the value was missing; empty: the model has none."""
    largest: float | None = 1e9
    """Larger numbers are refused; None: a row with one gets no score."""
    missing: tuple[str, ...] = ()
    """Further texts that mean no value, if the column holds numbers."""
    booleans: bool = False
    """Whether True and False, in upper or lower case, are 1 and 0."""

    def to_manifest(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return asdict(self)

    @classmethod
    def from_manifest(cls, saved: Mapping[str, Any]) -> Self:
        """Return the column that a saved model's manifest holds."""
        lists = ("spellings", "categories", "missing")
        return cls(**{**saved, **{name: tuple(saved.get(name, ())) for name in lists}})


@runtime_checkable
class HasManifest(Protocol):
    """A dataset whose saved models need more than its name to make it again."""

    def to_manifest(self) -> dict[str, Any]:
        """Return what ``of_model`` needs of a saved model's manifest, as JSON can hold it."""


class Scorable(Dataset):
    """A dataset whose rows can be files that a saved model scores."""

    @property
    @abstractmethod
    def known_columns(self) -> tuple[str, ...]:
        """Raw columns, on which a saved model that has no use of them makes no remark; empty: any
        name may be one.
        """

    def to_manifest(self) -> dict[str, Any]:
        """Return what a saved model's manifest must say for ``of_model`` to make the dataset
        again.
        """
        return {}

    def as_trained(self, manifest: Mapping[str, Any]) -> Self:
        """Return the dataset with what a saved model knows of its columns."""
        return self

    def raw_columns(self, names: Sequence[str], info: FileInfo) -> tuple[RawColumn, ...]:
        """Return the raw columns that features are made of; ``info`` of the listing that a model
        was trained on.
        """
        return plain_columns(self, names)

    def raw_frame(self, columns: Mapping[str, Array], info: FileInfo) -> pd.DataFrame:
        """Return canonical host columns as a user of a saved model has them."""
        return plain_frame(columns)

    def of_files(self, options: Mapping[str, Any]) -> Self:
        """Return the dataset for files as the options of a scoring describe them.

        ``options`` has the keys ``config.schema.FILE_OPTIONS``. Raises C003 if no files can be so.
        """
        return self

    def scoring_columns(self, names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the columns that files to be scored must have, and those that are read where a
        file has them.
        """
        return self.needed_columns(names), ()

    @abstractmethod
    def scan_file(self, uri: str, request: ScanRequest) -> FileScan:
        """Scan a file whose rows are to be scored: the footer of Parquet, CSV as
        ``delimited.scan_csv`` does.

        Raises D-errors with the file's name.
        """

    def own_names(self, names: Sequence[str], where: str) -> dict[str, str]:
        """Return canonical name -> a file's own name, of the columns that have both.

        Raises D006 if one is there twice.
        """
        return {}

    @abstractmethod
    def csv_types(self, header: Sequence[str], where: str) -> dict[str, pa.DataType]:
        """Return what the columns of a CSV file become where they are kept beside scores, by their
        own names.
        """


class Published(Dataset):
    """A dataset of files that somebody publishes: what columns mean is known before any is read,
    and files may fall short of it.
    """

    @property
    @abstractmethod
    def sparse(self) -> tuple[str, ...]:
        """Canonical columns of features that a file may lack: they are missing in all its rows."""

    @property
    @abstractmethod
    def nominal(self) -> tuple[str, ...]:
        """Features that are of use as categories alone: a task that names no features does without
        them.
        """

    @property
    def coded(self) -> tuple[str, ...]:
        """Features whose numbers are codes, not amounts, whether or not a task has them as
        categories.
        """
        return self.nominal

    @abstractmethod
    def check_files(self, listing: Listing, per_file: Mapping[str, Counts], limits: Limits) -> None:
        """Refuse a file that too many rows were dropped from; the dataset's own D-errors."""


class Months(Dataset):
    """A dataset whose rows have a time, and whose files can be written as one a month."""

    @abstractmethod
    def month_files(self) -> Listing:
        """List what is to be written as one file a month, with all its columns. Raises what
        ``scan`` raises.
        """

    @abstractmethod
    def month_file(
        self, month: str, columns: Iterable[str], info: FileInfo
    ) -> tuple[str, dict[str, pa.Field]]:
        """Return the name of the file of a month, ``YYYY-MM``, and the fields of the canonical
        columns in its order.
        """

    @abstractmethod
    def describe(self, which: str) -> str:
        """Say what one side of the data holds, without a download. Raises what ``scan`` raises."""


class Tabular(Dataset):
    """A dataset whose columns can be anything: their values say what they are, any of them can be
    the target, and a model gets them encoded as it needs.
    """

    @property
    @abstractmethod
    def test_share(self) -> float:
        """Share of the training rows that is drawn to test on; 0: the test side has rows of its
        own.
        """

    @property
    @abstractmethod
    def group(self) -> str | None:
        """Column whose equal values mark rows that a random split keeps together; ``read`` returns
        int64 numbers that stand for the values.
        """

    @property
    @abstractmethod
    def report(self) -> tuple[Mapping[str, Any], ...]:
        """Return a row for each column that says what it is taken for; empty where no file decides
        that.
        """

    @abstractmethod
    def target_column(self, name: str | None, kind: Kind | None) -> TargetColumn:
        """Return what a column holds that is to be predicted.

        Raises C003, C004 or D007 if it cannot be.
        """

    @abstractmethod
    def check_categories(self, names: Sequence[str]) -> None:
        """Refuse features that cannot be categories. Raises C003."""

    @abstractmethod
    def check_number(self, name: str, key: str) -> None:
        """Refuse a column, named by a configuration's ``key``, that is there and holds no numbers.

        Raises C003.
        """

    @abstractmethod
    def known_values(self, names: Sequence[str]) -> Mapping[str, int]:
        """Return the number of values of those features that are texts, as far as it is known
        before rows are read.
        """

    @abstractmethod
    def encoded(self, task: Task, *, takes_missing: bool, one_hot: bool) -> tuple[Self, Task]:
        """Return the dataset and the task with features as a model wants them.

        ``takes_missing``: the model learns from NaN. ``one_hot``: it gives each value of a category
        a column.
        """

    @abstractmethod
    def without_texts_of_test_rows(
        self, parts: Sequence[Part], task: Task, draw: Draw | GroupDraw
    ) -> Self:
        """Return the dataset with the categories that some row of ``parts`` has which the draw
        does not test on; no row is dropped.
        """


def check_class(dataset: type[Dataset]) -> None:
    """Refuse a class with a method of another class of datasets, which nothing would call.

    Raises C003.
    """
    for protocol in (Scorable, Published, Months, Tabular):
        methods = {name for name in vars(protocol) if not name.startswith("_")} - {"to_manifest"}
        unused = methods & {name for base in dataset.__mro__ for name in vars(base)}
        if unused and not issubclass(dataset, protocol):
            what = f"{dataset.__name__}.{min(unused)} has no effect in a plain Dataset"
            fix = f"derive {dataset.__name__} from tipcast.datasets.base.{protocol.__name__}"
            raise TipcastError("C003", "data.source", what, fix)


def describe(dataset: Dataset, which: str) -> str:
    """Say what one side of the data holds, without a download. Raises what ``scan`` raises."""
    if isinstance(dataset, Months):
        return dataset.describe(which)
    listing = dataset.scan(which, ())
    return f"{listing.size}, {listing.name}"


def check_names(dataset: Dataset, names: Mapping[str, str], key: str) -> None:
    """Refuse names of a configuration's ``key`` that are not columns of a dataset. Raises C003."""
    columns = dataset.known_columns if isinstance(dataset, Scorable) else ()
    for name in names:
        if columns and name not in columns:
            raise unknown(key, f"column of {dataset.name}", name, columns, "C003")


def test_share_of(dataset: Dataset) -> float:
    """Return the share of the training rows that is drawn to test on; 0: none is."""
    return dataset.test_share if isinstance(dataset, Tabular) else 0.0


def group_of(dataset: Dataset) -> str | None:
    """Return the column whose groups of rows a random split keeps together; None without one."""
    return dataset.group if isinstance(dataset, Tabular) else None


def as_trained(dataset: Dataset, manifest: Mapping[str, Any]) -> Dataset:
    """Return the dataset with what a saved model knows of its columns."""
    return dataset.as_trained(manifest) if isinstance(dataset, Scorable) else dataset


def plain_columns(dataset: Dataset, names: Sequence[str]) -> tuple[RawColumn, ...]:
    """Return the columns that features are made of, as numbers of these very names."""
    return tuple(RawColumn(name, (name,)) for name in dataset.needed_columns(names))


def plain_frame(columns: Mapping[str, Array]) -> pd.DataFrame:
    """Return canonical host columns as a DataFrame."""
    import pandas as pd  # workers of a sweep import this module, and need no pandas

    return pd.DataFrame({name: np.asarray(values) for name, values in columns.items()})


def raw_columns(dataset: Dataset, names: Sequence[str], info: FileInfo) -> tuple[RawColumn, ...]:
    """Return a model's raw columns, those that the user maps by the training files' own names.

    ``info`` is of the listing of the training rows; the dataset's own spellings are taken too.
    """
    return tuple(
        replace(column, spellings=_spellings(column, info))
        for column in _usual_columns(dataset, names, info)
    )


def _usual_columns(dataset: Dataset, names: Sequence[str], info: FileInfo) -> tuple[RawColumn, ...]:
    if isinstance(dataset, Scorable):
        return dataset.raw_columns(names, info)
    return plain_columns(dataset, names)


def _spellings(column: RawColumn, info: FileInfo) -> tuple[str, ...]:
    """Return a column's names, that of the files of a listing first."""
    mapped = info.column_names
    names = (column.name, *column.spellings)
    spellings = [mapped[name] for name in names if name in mapped]
    return tuple(dict.fromkeys((*spellings, *column.spellings)))


def raw_frame(
    dataset: Dataset, columns: Mapping[str, Any], features: Sequence[str], info: FileInfo
) -> pd.DataFrame:
    """Return canonical host columns as the user of a model of some features has them."""
    if isinstance(dataset, Scorable):
        frame = dataset.raw_frame(columns, info)
    else:
        frame = plain_frame(columns)

    usual = _usual_columns(dataset, features, info)
    return frame.rename(
        columns={column.spellings[0]: _spellings(column, info)[0] for column in usual}
    )
