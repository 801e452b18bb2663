"""The values that pass between sources and readers: fragments of files, listings of them, prepared parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tipcast.backends.base import Array, Frame

Period = tuple[int, int]
"""Start (inclusive) and stop (exclusive) in microseconds since 1970 of New York wall-clock time."""


@dataclass(frozen=True)
class Fragment:
    """What one Dask task reads: some row groups of a Parquet file, a byte range of a CSV file, or a synthetic block."""

    uri: str
    format: str
    """``parquet``, ``csv`` or ``sample``."""
    part: tuple[int, ...]
    """Parquet: row-group numbers. CSV: byte offset and length (0, -1 for a compressed file). Sample: block, seed."""
    columns: Mapping[str, str]
    """Canonical name (see ``schema``) -> the file's own spelling; optional columns that the file lacks are absent."""
    period: Period
    """Rows picked up outside it are stray and are dropped."""
    digest: str
    """Digest of the file this belongs to."""
    rows: int | None = None
    """Rows before filtering, where a footer tells."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Reader options: ``storage`` for fsspec, ``header``, ``delimiter`` for CSV, the profile's name for a sample."""


@dataclass(frozen=True)
class Listing:
    """All fragments of one period, in time and file order."""

    fragments: tuple[Fragment, ...]
    period: Period
    uris: tuple[str, ...]
    digest: str
    """One digest over all files' digests."""
    colour: str
    """``yellow`` or ``green``."""
    notes: tuple[str, ...] = ()
    """Lines worth a log line, as ``column names mapped from lower case``."""


@dataclass(frozen=True)
class Part:
    """One prepared piece of a fragment, living on a worker."""

    x: Frame
    """(rows, features) float32 DataFrame, missing values -1."""
    y: Frame
    """(rows,) int32 Series, 1 where the tip was high."""
    card: Array | None
    """(rows,) bool: paid by card; None where the recipe does not ask."""
    rows: int
    positives: int
    cash: int
    """Rows paid in cash, of which no tip is recorded; 0 where the recipe does not ask."""
    bytes: int
    """Memory of x and y."""
    rows_read: int
    """Rows of the fragment before any was dropped; counted with its first part only, as are the next three."""
    raw_bytes: int
    """Memory of the raw columns read."""
    missing_passengers: int
    """Rows read without a number of passengers."""
    dropped: Mapping[str, int]
    """Reason -> rows."""


def merged(fragments: Sequence[Fragment], most: int) -> tuple[Fragment, ...]:
    """Join neighbouring row groups of a Parquet file while their rows stay within ``most``, for tasks that cost alike.

    Parameters
    ----------
    fragments
        In file order.
    most
        Rows; 0 joins nothing.

    """
    joined: list[Fragment] = []
    for fragment in fragments:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.uri == fragment.uri
            and last.format == fragment.format == "parquet"
            and last.rows is not None
            and fragment.rows is not None
            and last.rows + fragment.rows <= most
        ):
            joined[-1] = replace(last, part=(*last.part, *fragment.part), rows=last.rows + fragment.rows)
        else:
            joined.append(fragment)
    return tuple(joined)
