"""Parquet files by their footers: columns, types, row groups, period and digest, mostly without reading a row."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tipcast.backends.cpu import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.data import address, schema
from tipcast.data.fragments import Fragment, Period
from tipcast.data.sources.found import Found, Wanted, colour_in
from tipcast.data.sources.periods import DayCounts, period_in_name

MERGED_ROWS = 300_000
"""Small row groups are read together up to this many rows."""
_UTC = ("UTC", "Etc/UTC", "+00:00", "GMT")
"""What writers without zoneless timestamps (Spark) put on the TLC's wall-clock values."""
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}


def find_parquet(uri: str, wanted: Wanted) -> Found:
    """Read a Parquet file's footer.

    Raises
    ------
    TipcastError
        D005 not Parquet or damaged, D006 D007 D017 columns, D008 types, D009 no rows, D010 no usable pickup time,
        D012 a column without values.

    """
    where = address.shown(uri)
    storage = address.storage(uri, wanted.storage)
    metadata, digest = _footer(uri, storage, where)
    arrow = metadata.schema.to_arrow_schema()
    columns = schema.map_columns(arrow.names, where, wanted.columns, wanted.optional)
    notes = [*schema.remarks(columns), *_check_types(arrow, columns, where)]
    if metadata.num_rows == 0:
        raise TipcastError("D009", where, "has no rows", "remove it or download it again")
    _check_nulls(metadata, arrow, {name: own for name, own in columns.items() if name not in wanted.nullable}, where)
    ranges = _pickup_ranges(metadata, arrow, columns["pickup"])
    period = period_in_name(address.last_name(uri))
    if period is None:
        period = _infer(uri, storage, metadata, columns["pickup"], ranges, where)
    elif all(found and (found[1] < period[0] or found[0] >= period[1]) for found in ranges):
        what = f"column {columns['pickup']!r}: all {metadata.num_rows} rows lie outside the period in the file's name"
        raise TipcastError("D010", where, what, "rename the file, or check its pickup column")
    fragments = tuple(
        Fragment(uri, "parquet", groups, columns, period, digest, rows, {"storage": storage})
        for groups, rows in _pieces(metadata)
    )
    return Found(uri, fragments, period, digest, colour_in(arrow.names, uri, where, wanted.colour), tuple(notes))


def _footer(uri: str, storage: Mapping[str, Any], where: str) -> tuple[Any, str]:
    """Return the metadata and a SHA-256 over the footer's bytes and the file's size."""
    with address.opened(uri, storage) as file, address.reaching(uri):
        address.seekable(uri, file)
        size = file.seek(0, 2)
        if size == 0:
            raise TipcastError("D003", where, "is empty", "remove it or download it again")
        file.seek(max(size - 8, 0))
        tail = file.read(8)
        length = int.from_bytes(tail[:4], "little") + 8
        if tail[4:] != b"PAR1" or length > size:
            file.seek(0)
            raise TipcastError("D005", where, _what_it_is(file.read(64)), "download or write it again")
        file.seek(size - length)
        footer = file.read(length)
    try:
        metadata = pq.read_metadata(pa.BufferReader(b"PAR1" + footer))
        metadata.schema.to_arrow_schema()
        last = max(
            (
                _end(metadata.row_group(group).column(at))
                for group in range(metadata.num_row_groups)
                for at in range(metadata.num_columns)
            ),
            default=0,
        )
    except (OSError, ValueError, NotImplementedError) as problem:
        raise TipcastError("D005", where, "has a damaged Parquet footer", "download or write it again") from problem
    if last > size - length:
        raise TipcastError("D005", where, "is shorter than its Parquet footer says", "download or write it again")
    return metadata, hashlib.sha256(footer + size.to_bytes(8, "little")).hexdigest()


def _what_it_is(head: bytes) -> str:
    if head.startswith(b"PAR1"):
        return "is a Parquet file that was cut off"
    if head.lstrip().startswith(b"<"):
        return "is a web page, not a Parquet file"
    if head.startswith(b"\x1f\x8b"):
        return "is compressed with gzip, not a Parquet file"
    return "is a text file, not a Parquet file" if head.count(b",") > 2 else "is not a Parquet file"


def _end(chunk: Any) -> int:
    first = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
    return int((first or chunk.data_page_offset) + chunk.total_compressed_size)


def _check_types(arrow: pa.Schema, columns: Mapping[str, str], where: str) -> Sequence[str]:
    notes = []
    for canonical, own in columns.items():
        kind = arrow.field(own).type
        if canonical in schema.TIMES:
            if not pa.types.is_timestamp(kind):
                raise TipcastError(
                    "D008",
                    where,
                    f"column {own!r} is {kind}, not a timestamp",
                    "write it as a timestamp, in New York time",
                )
            if kind.tz not in (None, *_UTC):
                what = f"column {own!r} is in time zone {kind.tz}, not New York wall-clock time"
                raise TipcastError("D008", where, what, "write local New York times without a time zone")
            if kind.tz is not None:
                notes.append(f"column {own} says {kind.tz}: taken as New York wall-clock time, as the TLC's values are")
        elif not (
            pa.types.is_integer(kind)
            or pa.types.is_floating(kind)
            or pa.types.is_decimal(kind)
            or pa.types.is_null(kind)
        ):
            raise TipcastError("D008", where, f"column {own!r} is {kind}, not a number", "write it as a number")
    return notes


def _chunks(metadata: Any, own: str) -> list[Any]:
    """Return a column's chunk of each row group."""
    first = metadata.row_group(0)
    at = next(i for i in range(metadata.num_columns) if first.column(i).path_in_schema == own)
    return [metadata.row_group(group).column(at) for group in range(metadata.num_row_groups)]


def _check_nulls(metadata: Any, arrow: pa.Schema, columns: Mapping[str, str], where: str) -> None:
    for canonical in ("pickup", "fare_amount", "tip_amount", "passenger_count", *schema.ZONES):
        if canonical not in columns:
            continue
        counted = [chunk.statistics for chunk in _chunks(metadata, columns[canonical])]
        empty = all(found is not None and found.has_null_count and found.num_values == 0 for found in counted)
        if not (empty or pa.types.is_null(arrow.field(columns[canonical]).type)):
            continue
        if canonical in schema.ZONES and schema.has_coordinates(arrow.names):
            raise schema.no_zones(where)
        what = f"column {columns[canonical]!r} has no value in {metadata.num_rows} rows"
        raise TipcastError(
            "D010" if canonical == "pickup" else "D012",
            where,
            what,
            "use a file that has it, or leave the column out of task.features",
        )


def _pickup_ranges(metadata: Any, arrow: pa.Schema, own: str) -> list[Period | None]:
    """Return the first and last pickup of each row group as the footer says, in microseconds."""
    unit = arrow.field(own).type.unit
    found: list[Period | None] = []
    for chunk in _chunks(metadata, own):
        counted = chunk.statistics
        if counted is None or not counted.has_min_max or chunk.physical_type != "INT64" or counted.null_count:
            found.append(None)
            continue
        first, last = int(counted.min_raw), int(counted.max_raw)
        found.append(
            (first // 1000, last // 1000) if unit == "ns" else (first * _MICROSECONDS[unit], last * _MICROSECONDS[unit])
        )
    return found


def _infer(
    uri: str, storage: Mapping[str, Any], metadata: Any, own: str, ranges: Sequence[Period | None], where: str
) -> Period:
    """Infer the period from the footer's ranges, reading the pickup column of those row groups that span months."""
    counts = DayCounts()
    for group, found in enumerate(ranges):
        rows = metadata.row_group(group).num_rows
        if found is None or not counts.add_range(*found, rows):
            try:
                with address.reaching(uri):
                    counts.add(CpuFrames().read_parquet(uri, [group], [own], storage)[own])
            except (OSError, ValueError) as problem:
                raise TipcastError(
                    "D005", where, f"column {own!r} is damaged", "download or write it again"
                ) from problem
    return counts.period(where)


def _pieces(metadata: Any) -> list[tuple[tuple[int, ...], int]]:
    """Return row-group numbers and rows of each fragment."""
    pieces: list[tuple[tuple[int, ...], int]] = []
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if pieces and pieces[-1][1] + rows <= MERGED_ROWS:
            pieces[-1] = ((*pieces[-1][0], group), pieces[-1][1] + rows)
        elif rows:
            pieces.append(((group,), rows))
    return pieces
