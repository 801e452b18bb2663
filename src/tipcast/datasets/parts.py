"""Parts of the data: what one Dask task reads at once. Each part knows how to read itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from tipcast.compute.base import Array, Frames
from tipcast.config.errors import TipcastError

if TYPE_CHECKING:
    import pyarrow as pa

Period = tuple[int, int]
"""Start (inclusive) and stop (exclusive) in microseconds since 1970, of wall-clock time."""
CsvTypes = Callable[[Sequence[str], str], "Mapping[str, pa.DataType]"]
"""Header and address of a CSV file -> what its columns become where they are kept as they are."""


MOST_BLOCKS = 100_000
"""Parts of made rows that one scheduler takes in without a pause."""


@dataclass(frozen=True, kw_only=True)
class Part(ABC):
    """A part of the data: rows of one file, or rows that are made."""

    uri: str
    digest: str
    """Digest of the file that this is a part of."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Canonical name -> the file's own spelling; optional columns that the file lacks are
    absent.
    """
    period: Period | None = None
    """Rows of another time are stray and are dropped; None where rows have no time."""
    rows: int | None = None
    """Rows before filtering; None where only reading tells."""
    first_row: int | None = None
    """Number of the first row in its file, where parts before it may be left out; None: it follows
    from the file's parts before it.
    """

    @abstractmethod
    def read(self, frames: Frames, columns: Sequence[str] | None = None) -> dict[str, Array]:
        """Read columns, all by default: canonical name -> (rows,) array of the frames' device.

        Times are int64 microseconds with the smallest int64 for null, numbers integer or float64
        with NaN for null.

        Raises D-errors with the file's name.
        """

    @property
    def extent(self) -> tuple[int, ...]:
        """Numbers that tell these rows from others of the same ``uri`` and ``digest``."""
        return ()

    def joined_with(self, other: Part) -> Self | None:
        """Return one part with the rows of both, ``other`` last; None: they are read apart."""
        return None


@dataclass(frozen=True, kw_only=True)
class FilePart(Part):
    """Rows of a file on a disk or in an object store.

    It is read in four ways. ``Dataset.read`` calls ``read`` for trips, whose columns are all
    numbers and times. ``ColumnReader.read`` calls ``read_arrays_and_table`` for tables, which calls
    ``read_arrow``, in Parquet ``read`` too. What counts texts and NaN before a training calls
    ``read_arrow``. Scoring calls ``read_as_stored`` for the columns that pass through.
    """

    storage: Mapping[str, Any]
    """Options of fsspec for the file, as ``address.storage`` returns them."""
    column_names: Mapping[str, str] = field(default_factory=dict)
    """The dataset's name -> the file's own, of the columns that a user maps."""
    decoded_on_host: tuple[str, ...] = ()
    """Canonical columns of a table that no device reads as they are stored, such as texts: the host
    makes values of them.
    """
    dates: str = "iso"
    """How dates among texts are written, a key of ``csv_cells.DATES``."""
    file_format: ClassVar[str]
    """Name of the format, for messages."""
    typed: ClassVar[bool]
    """Whether columns have types in the file, as in Parquet; in CSV every cell is a text."""

    @abstractmethod
    def read_arrow(self, types: Mapping[str, pa.DataType | None]) -> pa.Table:
        """Read the canonical columns that ``types`` names on the host, texts as plain strings in
        one Unicode form.

        CSV has columns of these types, texts without blanks around them; a typed file of its own.
        ``read_arrays_and_table`` calls it, and ``table.column_stats`` before a training.

        Raises D016 for a text that is not UTF-8.
        """

    @abstractmethod
    def read_arrays_and_table(
        self, frames: Frames, array_columns: Sequence[str], table_columns: Sequence[str]
    ) -> tuple[dict[str, Array], pa.Table]:
        """Read ``array_columns`` as ``read`` does, and ``table_columns`` as ``read_arrow`` does.

        ``table.reader.ColumnReader.read`` calls it.
        """

    @abstractmethod
    def read_as_stored(
        self, choose: Callable[[Sequence[str]], list[str]], csv_types: CsvTypes
    ) -> pa.Table:
        """Read columns on the host in the form that the file has them, in its order, row by row.

        ``choose`` returns those of the file's own names that are wanted. Columns of CSV become what
        ``csv_types`` says. ``scoring.passthrough.read_passthrough`` calls it.
        """

    def for_table(
        self,
        columns: Mapping[str, str],
        decoded_on_host: Sequence[str],
        time: str | None,
        dates: str,
    ) -> Self:
        """Return the part with the columns of a table.

        CSV has no types of its own: there ``time`` is read as one. ``dates``, where it is not
        empty, says how dates with slashes are written. ``ColumnReader.adapt_scan`` calls it.
        """
        return replace(
            self,
            columns=columns,
            decoded_on_host=tuple(decoded_on_host),
            dates=dates or self.dates,
        )

    def place(self, row: int) -> str:
        """Say where in the file a row of this part is, counted from 0; empty where no line does."""
        return ""


def timed(period: Period | None) -> Period:
    """Return a period that is known, as it always is of rows that have a time."""
    if period is None:
        raise ValueError("these rows have no time")
    return period


AnyPart = TypeVar("AnyPart", bound=Part)


def merged(parts: Iterable[AnyPart], most: int) -> tuple[AnyPart, ...]:
    """Join neighbouring parts while their rows are at most ``most``: tasks that cost alike."""
    larger: list[AnyPart] = []
    for part in parts:
        joined = larger[-1].joined_with(part) if larger else None
        if joined is not None and (joined.rows or 0) <= most:
            larger[-1] = joined
        else:
            larger.append(part)

    return tuple(larger)


def can_join(one: Part, other: Part) -> bool:
    """Whether two parts are of one file and say how many rows they have; with no part left out
    between them.
    """
    if one.uri != other.uri or one.rows is None or other.rows is None:
        return False
    return one.first_row is None or other.first_row == one.first_row + one.rows


def check_blocks(name: str, rows: int, block_rows: int) -> None:
    """Refuse more than ``MOST_BLOCKS`` blocks of made rows. Raises C003."""
    if rows > MOST_BLOCKS * block_rows:
        what = (
            f"{rows:,} rows are more than {MOST_BLOCKS:,} blocks of data.block_rows={block_rows:,}"
        )
        raise TipcastError("C003", f"data.{name}", what, "use fewer rows or larger blocks")
