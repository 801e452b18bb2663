"""Trip files before they are read: columns, types and periods by Parquet footers or by the ends of CSV files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tipcast.compute.cpu import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.datasets import address, delimited, parquet
from tipcast.datasets.base import FileScan, Fragment, Listing, Period, ScanRequest
from tipcast.datasets.listing import check_format, gather, scan_files
from tipcast.datasets.read import read_fragment
from tipcast.datasets.taxi import schema
from tipcast.datasets.taxi.periods import DayCounts, period_in_name

_UTC = ("UTC", "Etc/UTC", "+00:00", "GMT")
"""What writers without zoneless timestamps (Spark) put on the TLC's wall-clock values."""


def list_files(named: Any, request: ScanRequest, key: str) -> Listing:
    """Find trip files and the fragments in them, in time order, then by name.

    Raises
    ------
    TipcastError
        D001 to D010, D016, D017, D021, D022, each naming the file; D007 also for files of both colours.

    """
    scans, notes = scan_files(named, request, key, scan_file)
    coloured = [(file.uri, file.facts["colour"]) for file in scans if file.facts["colour"]]
    first = coloured[0][1] if coloured else None
    wanted = request.facts.get("colour")
    other = next(((uri, colour) for uri, colour in coloured if colour != first), None)
    if other is not None and wanted is None:
        what = f"is a {other[1]}-taxi file (its columns have other names) among {first}-taxi files"
        raise TipcastError("D007", address.shown(other[0]), what, "read one colour at a time")
    colour = wanted or first or "yellow"
    return gather(scans, f"{colour} trips", {"colour": colour}, notes)


def scan_file(uri: str, request: ScanRequest) -> FileScan:
    """Look at one file's footer or header.

    Raises
    ------
    TipcastError
        D001 missing, D003 empty, D004 neither Parquet nor CSV; those of ``scan_parquet`` and ``scan_csv``.

    """
    return scan_parquet(uri, request) if check_format(uri, request) == "parquet" else scan_csv(uri, request)


def scan_parquet(uri: str, request: ScanRequest) -> FileScan:
    """Read a Parquet file's footer.

    Raises
    ------
    TipcastError
        D005 not Parquet or damaged, D006 D007 D017 columns, D008 types, D009 no rows, D010 no usable pickup time,
        D012 a column without values.

    """
    where = address.shown(uri)
    footer = parquet.read_footer(uri, request.storage)
    columns = schema.map_columns(footer.schema.names, where, request.columns, request.optional)
    notes = [*schema.remarks(columns), *_check_types(footer.schema, columns, where)]
    footer.check_rows()
    _check_nulls(footer, {name: own for name, own in columns.items() if name not in request.nullable}, where)
    ranges = footer.time_ranges(columns["pickup"])
    period = period_in_name(address.last_name(uri))
    if period is None:
        period = _inferred(footer, columns["pickup"], ranges, where)
    elif all(found and (found[1] < period[0] or found[0] >= period[1]) for found in ranges):
        what = f"column {columns['pickup']!r}: all {footer.rows} rows lie outside the period in the file's name"
        raise TipcastError("D010", where, what, "rename the file, or check its pickup column")
    colour = schema.colour_in(footer.schema.names, uri, where, request.facts.get("colour"))
    return FileScan(uri, footer.fragments(columns, period), period, footer.digest, {"colour": colour}, tuple(notes))


def scan_csv(uri: str, request: ScanRequest) -> FileScan:
    """Look at a CSV file's header, its first and last rows, its dates.

    Raises
    ------
    TipcastError
        D003 to D005, D016 not the CSV it should be, D006 D007 D017 columns, D009 no rows, D010 no usable pickup time.

    """
    where = address.shown(uri)
    period = period_in_name(address.last_name(uri))
    look = delimited.look(uri, request, period)
    columns = schema.map_columns(look.head.names, where, request.columns, request.optional)
    whole = look.fragment(columns, schema.TIMES, period or (0, 0))
    for at, end in enumerate(look.ends(whole)):  # so that most damage shows before a cluster starts
        read = read_fragment(end, CpuFrames())
        empty = any(np.isnan(read[zone]).all() for zone in schema.ZONES if zone in read)
        if at == 0 and empty and schema.has_coordinates(look.head.names):
            raise schema.no_zones(where)
    if period is None:
        period = _counted(look.cut(whole, request.block_bytes), where)
        whole = look.fragment(columns, schema.TIMES, period)
    notes = (*schema.remarks(columns), *look.notes)
    colour = schema.colour_in(look.head.names, uri, where, request.facts.get("colour"))
    return FileScan(uri, look.cut(whole, request.block_bytes), period, look.digest, {"colour": colour}, notes)


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
        elif not parquet.is_number(kind):
            raise TipcastError("D008", where, f"column {own!r} is {kind}, not a number", "write it as a number")
    return notes


def _check_nulls(footer: parquet.Footer, columns: Mapping[str, str], where: str) -> None:
    for canonical in ("pickup", "fare_amount", "tip_amount", "passenger_count", *schema.ZONES):
        if canonical not in columns or not footer.is_empty(columns[canonical]):
            continue
        if canonical in schema.ZONES and schema.has_coordinates(footer.schema.names):
            raise schema.no_zones(where)
        what = f"column {columns[canonical]!r} has no value in {footer.rows} rows"
        raise TipcastError(
            "D010" if canonical == "pickup" else "D012",
            where,
            what,
            "use a file that has it, or leave the column out of task.features",
        )


def _inferred(footer: parquet.Footer, own: str, ranges: Sequence[Period | None], where: str) -> Period:
    """Infer the period from the footer's ranges, reading the pickup column of those row groups that span months."""
    counts = DayCounts()
    for group, (found, rows) in enumerate(zip(ranges, footer.group_rows, strict=True)):
        if found is None or not counts.add_range(*found, rows):
            try:
                with address.reaching(footer.uri):
                    counts.add(CpuFrames().read_parquet(footer.uri, [group], [own], footer.storage)[own])
            except (OSError, ValueError) as problem:
                raise TipcastError(
                    "D005", where, f"column {own!r} is damaged", "download or write it again"
                ) from problem
    return counts.period(where)


def _counted(fragments: Iterable[Fragment], where: str) -> Period:
    """Infer the period of a CSV file by reading its pickup column."""
    counts = DayCounts()
    for fragment in fragments:
        counts.add(read_fragment(fragment, CpuFrames(), ("pickup",))["pickup"])
    return counts.period(where)
