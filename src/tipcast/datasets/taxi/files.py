"""Trip files before they are read: those that a user names, and months as the TLC publishes them,
in a local cache.
"""

import contextlib
import re
import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tipcast.compute.frames import CpuFrames
from tipcast.config.data_schema import TlcData
from tipcast.config.errors import TipcastError, failed_to
from tipcast.datasets import address, delimited, parquet, periods
from tipcast.datasets.arrow_types import is_number
from tipcast.datasets.find_files import (
    USUAL,
    endings_of,
    format_of,
    listing_of,
    named_by,
    scan_files,
)
from tipcast.datasets.listing import FileInfo, FileScan, Listing, ScanRequest
from tipcast.datasets.parts import Part, Period
from tipcast.datasets.taxi import schema
from tipcast.datasets.taxi.features import FIRST_PICKUP, LAST_PICKUP

_UTC = ("UTC", "Etc/UTC", "+00:00", "GMT")
"""What writers without zoneless timestamps (Spark) put on the TLC's wall-clock values."""
MOST_MONTHS = 100
"""A month with a smaller part of a file's rows is not what the file is about."""
WITH_VALUES = "use a file that has it, or leave the column out of task.features"
_FILLED = ("pickup", "fare_amount", "tip_amount", "passenger_count", *schema.ZONES)
"""Columns of which a file must have some values."""
MONTHS = "write months as 2019-01, 2019-01..2019-03 or a list of them"
_MONTH = re.compile(r"(?<!\d)20\d\d-(?:0[1-9]|1[0-2])(?!\d)")


def parse_months(wanted: Any, key: str) -> list[str]:
    """Read months like ``2019-01``, ranges like ``2019-01..2019-03`` or a list of them, as the
    configuration's ``key``.

    Returns ``YYYY-MM``, sorted, each once. Raises C003 for anything else.
    """
    if isinstance(wanted, str):
        items = [wanted]
    else:
        items = list(wanted) if isinstance(wanted, Iterable) else [str(wanted)]

    months: set[str] = set()
    for item in items:
        first, dots, last = (text.strip() for text in str(item).partition(".."))
        last = last if dots else first
        if not (_MONTH.fullmatch(first) and _MONTH.fullmatch(last) and first <= last):
            raise TipcastError(
                "C003", key, f"{str(item)!r} is not a month or a range of months", MONTHS
            )
        months.update(map(str, np.arange(np.datetime64(first), np.datetime64(last) + 1)))

    if not months:
        raise TipcastError("C003", key, "does not name a month", MONTHS)

    return sorted(months)


def _inferred(parts: Sequence[Part], where: str) -> Period:
    """Return the period from the first to the last month with at least 1 % of the pick-ups.

    Raises D010 without such a month.
    """
    # From all rows: the extremes in a Parquet footer are those of clocks gone wrong.
    months = Counter[str]()
    rows = 0
    for part in parts:
        pickup = part.read(CpuFrames(), ("pickup",))["pickup"]
        inside = pickup[(pickup >= FIRST_PICKUP) & (pickup < LAST_PICKUP)]
        names, counts = np.unique(
            inside.view("datetime64[us]").astype("datetime64[M]"), return_counts=True
        )
        months.update(dict(zip(names.astype(str).tolist(), counts.tolist(), strict=True)))
        rows += len(pickup)

    common = sorted(month for month, count in months.items() if count * MOST_MONTHS >= rows)
    if not common:
        what = f"no month from 2009 to 2049 has 1 % of its {rows} pickup times"
        raise TipcastError("D010", where, what, "check the pickup column")

    return periods.of_months(common[0], common[-1])


@dataclass(frozen=True)
class TripInfo(FileInfo):
    """What trip files have in common."""

    colour: str = schema.COLOURS[0]
    """Colour of the cabs."""

    def to_manifest(self) -> dict[str, Any]:
        return {"colour": self.colour, **super().to_manifest()}


@dataclass(frozen=True)
class TripScan(FileScan):
    """What is learned of one trip file."""

    colour: str | None = None
    """Colour of the cabs by the file's columns or name; None if neither says."""


def list_files(named: Any, request: ScanRequest, key: str, wanted: str | None) -> Listing:
    """Find trip files and the parts in them, in time order, then by name; ``wanted`` is the colour
    that they must be of.

    Raises D001 to D010, D016, D017, D021 and D022 with the file's name, D007 also for files of both
    colours.
    """
    scans, notes = scan_files(named, request, key, partial(scan_file, wanted=wanted))
    colours = {file.colour: file.uri for file in scans if file.colour}
    if len(colours) > 1 and wanted is None:
        first, other = list(colours)
        what = f"is a {other}-taxi file (its columns have other names) among {first}-taxi files"
        raise TipcastError("D007", address.shown(colours[other]), what, "read one colour at a time")
    colour = wanted or next(iter(colours), "yellow")
    return listing_of(scans, f"{colour} trips", TripInfo(colour=colour), notes)


def scan_file(uri: str, request: ScanRequest, wanted: str | None = None) -> TripScan:
    """Read the footer of a Parquet file; of a CSV file what ``delimited.scan_csv`` reads, and its
    first and last part.

    All pick-up times are read as well if the file's name tells no month.

    Raises D001 for a missing file, D003 to D005 and D016 if it is not the file it should be, D006,
    D007 and D017 for its columns, D008 for their types, D009 without rows, D010 without a usable
    pickup time, D012 for a column without values.
    """
    months = sorted(_MONTH.findall(address.last_name(uri)))
    period = periods.of_months(months[0], months[-1]) if months else None
    file = SCANS[format_of(uri, SCANS)](uri, request, period, wanted)

    if period is None:
        period = _inferred(file.parts, address.shown(uri))
        parts = tuple(replace(part, period=period) for part in file.parts)
        file = replace(file, parts=parts, period=period)

    return file


def _scan_parquet(
    uri: str, request: ScanRequest, period: Period | None, wanted: str | None
) -> TripScan:
    where = address.shown(uri)
    footer = parquet.read_footer(uri, request)
    columns, colour, notes = _columns(footer.names, uri, request, wanted)

    for name, spelling in columns.items():
        arrow_type = footer.schema.field(spelling).type
        if name in schema.TIMES:
            notes += _check_time(spelling, arrow_type, where)
        elif not is_number(arrow_type):
            what = f"column {spelling!r} is {arrow_type}, not a number"
            raise TipcastError("D008", where, what, "write it as a number")

        if name in _FILLED and name not in request.nullable:
            _check_filled(footer, name, spelling, where)

    return TripScan(uri, footer.parts(columns, period), period, footer.digest, tuple(notes), colour)


def _check_time(spelling: str, arrow_type: pa.DataType, where: str) -> list[str]:
    """Refuse a column that has no times of New York's wall clock, with D008; return a line on a
    zone that is passed over.
    """
    if not pa.types.is_timestamp(arrow_type) or arrow_type.tz not in (None, *_UTC):
        what = f"column {spelling!r} is {arrow_type}, not a timestamp of New York's wall clock"
        fix = "write local New York times without a time zone"
        raise TipcastError("D008", where, what, fix)
    if arrow_type.tz is None:
        return []
    return [
        f"column {spelling} has time zone {arrow_type.tz}: read as New York wall-clock time, like "
        "the TLC's values"
    ]


def _check_filled(footer: parquet.Footer, name: str, spelling: str, where: str) -> None:
    """Refuse a column without any value.

    Raises D010 or D012, D017 if coordinates stand for its zones.
    """
    if footer.nulls.get(spelling) != footer.rows:
        return

    if name in schema.ZONES:
        schema.refuse_coordinates(footer.schema.names, where)
    code = "D010" if name == "pickup" else "D012"
    what = f"column {spelling!r} has no value in {footer.rows} rows"
    raise TipcastError(code, where, what, WITH_VALUES)


def _scan_csv(
    uri: str, request: ScanRequest, period: Period | None, wanted: str | None
) -> TripScan:
    where = address.shown(uri)
    csv = delimited.scan_csv(uri, request, period)
    columns, colour, notes = _columns(csv.names, uri, request, wanted)
    parts = csv.parts(columns, period, schema.TIMES)
    # what is converted is read from its beginning
    ends = () if csv.converted else dict.fromkeys((0, len(parts) - 1))
    empty = [
        name
        for name in columns
        if ends and name in _FILLED and name not in (*schema.TIMES, *request.nullable)
    ]

    for end in ends:  # so that most damage shows before a cluster starts
        read = parts[end].read(CpuFrames())
        empty = [name for name in empty if np.isnan(read[name]).all()]
        if any(np.isnan(read[zone]).all() for zone in schema.ZONES if zone in read):
            schema.refuse_coordinates(csv.header.names, where)

    if empty:
        raise TipcastError(
            "D012",
            where,
            f"column {columns[empty[0]]!r} has no value in the rows that were checked",
            WITH_VALUES,
        )

    return TripScan(uri, parts, period, csv.digest, (*notes, *csv.notes), colour)


def _columns(
    names: Sequence[tuple[str, str]], uri: str, request: ScanRequest, wanted: str | None
) -> tuple[dict[str, str], str | None, list[str]]:
    """Return canonical name -> a file's own, its colour, and remarks on names that are not the
    TLC's or the user's.

    Raises D007 if it is not of the colour that is wanted.
    """
    spellings = dict(names)
    where = address.shown(uri)
    mapping = schema.map_columns(
        [name for name, _ in names], where, request.columns, request.optional, request.key
    )
    colour = schema.colour_of(spellings)

    if colour and wanted and colour != wanted:
        lacks = schema.tlc_name("pickup", wanted)
        has = schema.tlc_name("pickup", colour)
        what = f"missing column {lacks!r}: it has {has!r}, so it is a {colour}-taxi file"
        raise TipcastError(
            "D007", where, what, f"set the colour to {colour}, or use {wanted}-taxi files"
        )

    colour = colour or next(
        (colour for colour in schema.COLOURS if colour in address.last_name(uri).lower()), None
    )
    columns = {name: spellings[mapped] for name, mapped in mapping.items()}
    return columns, colour, schema.remarks(mapping)


SCANS = {"parquet": _scan_parquet, "csv": _scan_csv}
"""Format -> how a file of trips is looked at."""


def months_of(data: TlcData, which: str) -> dict[Path, str]:
    """Return where the cache keeps each month of one side -> its address.

    Raises C003 for the colour, months or pattern, C004 for a key without a value.
    """
    colour = schema.check_colour(data.colour)
    ending = next(
        (ending for ending in endings_of(USUAL) if address.last_name(data.url).endswith(ending)),
        None,
    )
    if "{month}" not in data.url or ending is None:
        fix = "include {month} in it, and end it with .parquet, .csv or .csv.gz"
        raise TipcastError("C003", "data.url", "is not an address of monthly files", fix)

    folder = Path(data.cache).expanduser().absolute()
    months = parse_months(named_by(data, which), f"data.{which}")
    url = data.url.replace("{colour}", colour)
    return {
        folder / f"{colour}_tripdata_{month}{ending}": url.replace("{month}", month)
        for month in months
    }


def fetch(file: Path, url: str) -> str:
    """Return the path of a month, downloaded whole or not at all if it is not there.

    Raises D001 if it is not published, D022 if the server does not answer.
    """
    if file.exists():
        return str(file)

    # A file of this job alone: other jobs may fetch the month too.
    part = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as out, address.opened(url, address.storage(url, {})) as remote:
            shutil.copyfileobj(remote, out, 1 << 20)
        return str(part.replace(file))  # at once, so that no other job sees half a month
    except OSError as problem:
        fix = "set data.cache to a writable folder"
        raise failed_to(
            "written", file.parent, problem.strerror or problem, fix, "D001"
        ) from problem
    except TipcastError as problem:
        fix = f"check the network, the month and data.url, or put the file at {file}"
        raise TipcastError(problem.code, problem.where, problem.what, fix) from problem
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
