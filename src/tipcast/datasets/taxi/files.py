"""Trip files before they are read: those that a user names, and months as the TLC publishes them, in a local cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import requests

from tipcast.compute.base import Array
from tipcast.compute.cpu import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.datasets import address, delimited, parquet, split
from tipcast.datasets.base import FileScan, Listing, Period, ScanRequest, timed
from tipcast.datasets.listing import CSV, PARQUET, check_format, gather, read_fragment, scan_files
from tipcast.datasets.taxi import schema
from tipcast.datasets.taxi.features import FIRST_PICKUP, LAST_PICKUP

_UTC = ("UTC", "Etc/UTC", "+00:00", "GMT")
"""What writers without zoneless timestamps (Spark) put on the TLC's wall-clock values."""
SHARE = 0.01
"""A month with a smaller share of a file's rows is not what the file is about."""
TRIES = 3
ANSWER_S = 5.0
"""How long a server of months may take to answer."""
_CACHE = "set data.cache to a folder you may write"
MONTHS = "write months as 2019-01, 2019-01..2019-03 or a list of them"
_MONTH = re.compile(r"(?<!\d)20\d\d-(?:0[1-9]|1[0-2])(?!\d)")
_FIRST, _END = np.array([FIRST_PICKUP, LAST_PICKUP], "datetime64[us]").astype("datetime64[M]")
_STARTS = np.arange(_FIRST, _END + 1).astype("datetime64[us]").astype(np.int64)
"""Of all months, and the end of the last: other pickup times are clocks gone wrong, and tell nothing of a period."""


def parse_months(wanted: Any, key: str) -> list[str]:
    """Read months like ``2019-01``, ranges like ``2019-01..2019-03`` or a list of them, as the configuration's ``key``.

    Returns ``YYYY-MM``, sorted, each once; C003 anything else.
    """
    items = [wanted] if isinstance(wanted, str) else list(wanted) if isinstance(wanted, Iterable) else [str(wanted)]
    found: set[str] = set()
    for item in items:
        first, dots, last = (text.strip() for text in str(item).partition(".."))
        last = last if dots else first
        if not (_MONTH.fullmatch(first) and _MONTH.fullmatch(last)):
            raise TipcastError("C003", key, f"{str(item)!r} is not a month", MONTHS)
        if last < first:
            raise TipcastError("C003", key, f"{str(item)!r} ends before it starts", "write the earlier month first")
        found.update(map(str, np.arange(np.datetime64(first), np.datetime64(last) + 1)))
    if not found:
        raise TipcastError("C003", key, "names no month", MONTHS)
    return sorted(found)


def _period_in_name(name: str) -> Period | None:
    """Return the period from the first to the last ``YYYY-MM`` in a file's name."""
    months = sorted(_MONTH.findall(name))
    return split.of_months(months[0], months[-1]) if months else None


def _per_month(pickup: Array) -> Array:
    """Count (rows,) times in microseconds: int64 for each month, and around them for what lies before and after all."""
    return np.bincount(np.searchsorted(_STARTS, pickup, side="right"), minlength=len(_STARTS) + 1)


def _period_of(rows: Array, where: str) -> Period:
    """Return the period from the first to the last month with at least 1 % of the rows counted; D010 no such month."""
    inside = rows[1:-1]
    months = np.flatnonzero(inside > max(SHARE * rows.sum(), 1) - 1e-9)
    if not len(months):
        between = f"between {str(_FIRST)[:4]} and {str(_END - 1)[:4]}"
        what = f"{inside.sum()} of {rows.sum()} pickup times lie {between}, too few for a month"
        raise TipcastError("D010", where, what, "check the pickup column")
    return int(_STARTS[months[0]]), int(_STARTS[months[-1] + 1])


def list_files(named: Any, request: ScanRequest, key: str) -> Listing:
    """Find trip files and the fragments in them, in time order, then by name.

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
    """Look at one Parquet file's footer, or at one CSV file's header, its first and last rows and its dates.

    D001 missing, D003 to D005, D016 not the file it should be, D006 D007 D017 columns, D008 types, D009 no rows, D010
    no usable pickup time, D012 a column without values.
    """
    return _scan_parquet(uri, request) if check_format(uri, request) == "parquet" else _scan_csv(uri, request)


def _scan_parquet(uri: str, request: ScanRequest) -> FileScan:
    where = address.shown(uri)
    footer = parquet.read_footer(uri, request)
    columns, colour, remarks = _columns(footer.names, uri, request)
    notes = (*remarks, *_check_types(footer.schema, columns, where))
    footer.check_rows()
    _check_nulls(footer, {name: own for name, own in columns.items() if name not in request.nullable}, where)
    ranges = footer.time_ranges(columns["pickup"])
    period = _period_in_name(address.last_name(uri))
    if period is None:
        period = _inferred(footer, columns["pickup"], ranges, where)
    elif all(found and (found[1] < period[0] or found[0] >= period[1]) for found in ranges):
        what = f"column {columns['pickup']!r}: all {footer.rows} rows lie outside the period in the file's name"
        raise TipcastError("D010", where, what, "rename the file, or check its pickup column")
    return FileScan(uri, footer.fragments(columns, period), period, footer.digest, {"colour": colour}, notes)


def _scan_csv(uri: str, request: ScanRequest) -> FileScan:
    where = address.shown(uri)
    period = _period_in_name(address.last_name(uri))
    look = delimited.look(uri, request, period)
    columns, colour, remarks = _columns(look.names, uri, request)
    whole = look.fragment(columns, schema.TIMES, period or (0, 0))
    for at, end in enumerate(look.ends(whole)):  # so that most damage shows before a cluster starts
        read = read_fragment(end, CpuFrames())
        empty = any(np.isnan(read[zone]).all() for zone in schema.ZONES if zone in read)
        if at == 0 and empty:
            schema.refuse_coordinates(look.head.names, where)
    if period is None:
        parts = look.cut(whole, request.block_bytes)
        pickups = (read_fragment(part, CpuFrames(), ("pickup",))["pickup"] for part in parts)
        period = _period_of(sum(map(_per_month, pickups), _per_month(np.empty(0))), where)
        whole = look.fragment(columns, schema.TIMES, period)
    parts, notes = look.cut(whole, request.block_bytes), (*remarks, *look.notes)
    return FileScan(uri, parts, period, look.digest, {"colour": colour}, notes)


def _columns(
    names: Sequence[tuple[str, str]], uri: str, request: ScanRequest
) -> tuple[dict[str, str], str | None, Sequence[str]]:
    """Return canonical name -> a file's own, its colour, and remarks on names that are not the TLC's or the user's."""
    own, where = dict(names), address.shown(uri)
    seen = [name for name, _ in names]
    found = schema.map_columns(seen, where, request.columns, request.optional, request.key)
    colour = schema.colour_in(own, uri, where, request.facts.get("colour"))
    return {name: own[mapped] for name, mapped in found.items()}, colour, schema.remarks(found)


def _check_types(arrow: pa.Schema, columns: Mapping[str, str], where: str) -> Sequence[str]:
    notes = []
    for canonical, own in columns.items():
        kind = arrow.field(own).type
        if canonical in schema.TIMES:
            if not pa.types.is_timestamp(kind):
                what = f"column {own!r} is {kind}, not a timestamp"
                raise TipcastError("D008", where, what, "write it as a timestamp, in New York time")
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
        if canonical in schema.ZONES:
            schema.refuse_coordinates(footer.schema.names, where)
        what = f"column {columns[canonical]!r} has no value in {footer.rows} rows"
        fix = "use a file that has it, or leave the column out of task.features"
        raise TipcastError("D010" if canonical == "pickup" else "D012", where, what, fix)


def _inferred(footer: parquet.Footer, own: str, ranges: Sequence[Period | None], where: str) -> Period:
    """Infer the period from the footer's ranges, reading the pickup column of those row groups that span months."""
    counts = _per_month(np.empty(0))
    for group, (found, rows) in enumerate(zip(ranges, footer.group_rows, strict=True)):
        month = _per_month(np.array(found or ())) // 2  # 1 where both ends lie
        if month[1:-1].any():
            counts += month * rows
            continue
        try:
            with address.reaching(footer.uri):
                counts += _per_month(CpuFrames().read_parquet(footer.uri, [group], [own], footer.storage)[own])
        except (OSError, ValueError) as problem:
            raise TipcastError("D005", where, f"column {own!r} is damaged", "download or write it again") from problem
    return _period_of(counts, where)


def list_months(months: object, url: str, cache: str, request: ScanRequest, key: str) -> Listing:
    """Fetch the months that the cache lacks, and list them all.

    ``url`` has ``{colour}`` and ``{month}`` in it, ``cache`` is a folder, ``key`` what messages call ``months``. C003
    colour, months or pattern; D001 a month that is not published, D022 no network; those of ``list_files``.
    """
    files = [_fetch(*month) for month in _addresses(months, url, cache, request.facts.get("colour"), key)]
    return list_files([str(file) for file in files], request, key)


def _addresses(months: object, url: str, cache: str, colour: str | None, key: str) -> list[tuple[str, Path]]:
    """Return where each month is published and where the cache has it."""
    chosen = schema.check_colour(colour)
    ending = next((ending for ending in (*PARQUET, *CSV) if address.last_name(url).endswith(ending)), None)
    if "{month}" not in url or ending is None:
        fix = "write {month} in it, and end it in .parquet, .csv or .csv.gz"
        raise TipcastError("C003", "data.url", "is not an address of months", fix)
    folder = Path(cache).expanduser().absolute()
    return [
        (url.replace("{colour}", chosen).replace("{month}", month), folder / f"{chosen}_tripdata_{month}{ending}")
        for month in parse_months(months, key)
    ]


def _fetch(url: str, file: Path) -> Path:
    """Return ``file``, downloaded from ``url`` unless it is there with the SHA-256 recorded beside it.

    A file without a record, put there by hand, is taken as it is and recorded. D001 not published, D022 not reached.
    """
    record = file.with_name(f"{file.name}.sha256")
    digest = _sha256(file) if file.exists() else ""
    recorded = record.read_text().split()[:1] if record.exists() else []
    if digest and recorded == [digest]:
        return file
    if not digest or record.exists():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise TipcastError("D001", file.parent, "the cache folder cannot be made", _CACHE) from problem
        digest = _download(url, file)
    with contextlib.suppress(PermissionError):  # a shared cache may be read-only; the record is a convenience
        record.write_text(f"{digest}  {file.name}\n")
    return file


def _download(url: str, file: Path, tries: int = TRIES) -> str:
    """Download into another file of the same folder and rename that; return its SHA-256."""
    part = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}")
    try:
        with part.open("wb") as out, address.opened(url, address.storage(url, {})) as remote, address.reaching(url):
            shutil.copyfileobj(remote, out, 1 << 20)
            out.flush()
            os.fsync(out.fileno())
        digest = _sha256(part)
        part.replace(file)
        return digest
    except TipcastError as problem:
        if problem.code == "D001":
            raise _unpublished(problem.where) from problem
        if problem.code == "D022" and tries > 1:
            return _download(url, file, tries - 1)
        fix = f"check the network, or put the file at {file}"
        raise TipcastError(problem.code, problem.where, problem.what, fix) from problem
    finally:
        part.unlink(missing_ok=True)


def _unpublished(where: str) -> TipcastError:
    return TipcastError("D001", where, "this month is not published there", "choose other months, or mend data.url")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_files(listing: Listing) -> str:
    """Say how many files, rows and parts there are, of which colour and time."""
    return f"{listing.size}, {listing.facts['colour']}, {split.describe(timed(listing.period))}"


def describe_months(months: object, url: str, cache: str, request: ScanRequest, key: str) -> str:
    """Tell which months the cache has; look at those, and ask the server for the first of the others.

    Parameters and errors as ``list_months``; also D001 and D022 for a month that is neither cached nor to be had.
    """
    found = _addresses(months, url, cache, request.facts.get("colour"), key)
    cached = [str(file) for _, file in found if file.exists()]
    missing = [source for source, file in found if not file.exists()]
    folder = Path(cache).expanduser()
    told = f"{len(cached)} of {len(found)} months in {folder}"
    if cached:
        told = f"{told} ({describe_files(list_files(cached, request, 'data.cache'))})"
    if not missing:
        return told
    size = answer(missing[0])
    each = f", {size / 1e6:,.0f} MB," if size else ""
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise TipcastError("D001", folder.absolute(), "the cache folder cannot be written", _CACHE)
    return f"{told}; {address.shown(missing[0])}{each} answers: {len(missing)} to download"


def answer(url: str, limit_s: float = ANSWER_S) -> int:
    """Return how many bytes an address says it has; D001 nothing there, D021 D022 not read, no answer or a refusal."""
    if not address.scheme(url).startswith("http"):
        return address.size(url, address.storage(url, {}))
    try:
        response = requests.head(url, timeout=limit_s, allow_redirects=True)
        what = "" if response.ok else f"answers {response.status_code} {response.reason}"
    except requests.RequestException as problem:
        what = f"cannot be reached ({type(problem).__name__})"
    else:
        if response.status_code == requests.codes.not_found:
            raise _unpublished(address.shown(url))
    if what:
        fix = "check network and months, or put the files into data.cache"
        raise TipcastError("D022", address.shown(url), what, fix)
    return int(response.headers.get("Content-Length") or 0)
