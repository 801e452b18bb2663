"""CSV files before they are read: header, both ends, how dates are written, period, digest, blocks for the workers."""

from __future__ import annotations

import datetime
import gzip
import hashlib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tipcast.backends.cpu import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.data import address, schema
from tipcast.data import csv as text
from tipcast.data.fragments import Fragment, Period
from tipcast.data.read import read_fragment
from tipcast.data.sources.found import Found, Wanted, colour_in
from tipcast.data.sources.periods import DayCounts, period_in_name, start_of

HEAD = 256 << 10
"""Bytes read at each end of a file before any worker sees it."""
WHOLE = 64 << 20
"""A local file up to this size is read whole for its digest."""
_WINDOW = 64 << 10
_DATE = re.compile(rb'(?:^|,)"?(\d{1,2})/(\d{1,2})/(\d{4})[ T]', re.MULTILINE)


def find_csv(uri: str, wanted: Wanted) -> Found:
    """Look at a CSV file's header, its first and last rows, its dates.

    Raises
    ------
    TipcastError
        D003 to D005, D016 not the CSV it should be, D006 D007 D017 columns, D009 no rows, D010 no usable pickup time.

    """
    where = address.shown(uri)
    storage = address.storage(uri, wanted.storage)
    size = address.size(uri, storage)
    packed = address.last_name(uri).lower().endswith(".gz")
    first = next(_pieces(uri, storage, packed, where), b"") if size else b""
    head = text.read_head(first, where)
    columns = schema.map_columns(head.names, where, wanted.columns, wanted.optional)
    if not first[head.start :].strip():
        raise TipcastError("D009", where, "has a header but no rows", "remove it or download it again")
    whole = address.read_range(uri, storage, 0, -1) if size <= WHOLE and not (packed or address.scheme(uri)) else None
    period = period_in_name(address.last_name(uri))
    dates, notes = "iso", schema.remarks(columns)
    if text.has_slashes(whole or first):
        dates, note = _reading(_slashed(_pieces(uri, storage, packed, where)), period)
        notes = (*notes, note)
    template = Fragment(
        uri,
        "csv",
        (0, -1),
        columns,
        period or (0, 0),
        _digest(uri, storage, whole, size, first),
        options={"storage": storage, "header": head.header, "delimiter": ",", "dates": dates, "start": head.start},
    )

    def next_line(offset: int) -> int:
        while offset < size:
            window = address.read_range(uri, storage, offset, _WINDOW)
            at = window.find(b"\n")
            if at >= 0:
                return offset + at + 1
            offset += len(window)
        return size

    cuts = [(0, -1)]
    if not packed:
        cuts = text.blocks(head.start, size, wanted.block_bytes, next_line)
        _probe(template, (head.start, size), next_line, head, where)
    fragments = [replace(template, part=cut) for cut in cuts]
    if period is None:
        period = _infer(fragments, where)
        fragments = [replace(fragment, period=period) for fragment in fragments]
    return Found(
        uri, tuple(fragments), period, template.digest, colour_in(head.names, uri, where, wanted.colour), notes
    )


def _pieces(uri: str, storage: Mapping[str, Any], packed: bool, where: str) -> Iterator[bytes]:
    """Yield the file's (decompressed) bytes, ``HEAD`` at a time."""
    with address.opened(uri, storage) as file, address.reaching(uri):
        try:
            stream: Any = gzip.GzipFile(fileobj=file) if packed else file
            while data := stream.read(HEAD):
                yield data
        except gzip.BadGzipFile as problem:
            raise TipcastError(
                "D004", where, "is not compressed with gzip though its name ends in .gz", "rename it to end in .csv"
            ) from problem
        except (EOFError, zlib.error) as problem:
            raise TipcastError(
                "D005", where, "is a gzip file that was cut off or damaged", "download it again"
            ) from problem


def _slashed(pieces: Iterable[bytes]) -> set[tuple[int, int, int]]:
    """Return the distinct dates written with slashes, as their three numbers."""
    found: set[tuple[bytes, ...]] = set()
    rest = b""
    for piece in pieces:
        lines, _, rest = (rest + piece).rpartition(b"\n")
        found.update(_DATE.findall(lines))
    found.update(_DATE.findall(rest))
    return {(int(a), int(b), int(year)) for a, b, year in found}


def _reading(dates: Iterable[tuple[int, int, int]], period: Period | None) -> tuple[str, str]:
    """Decide between month/day and day/month: by which dates exist, by the file's month, then as Americans do."""
    fits = {}
    for name, month, day in (("month_first", 0, 1), ("day_first", 1, 0)):
        starts = [_midnight(date[2], date[month], date[day]) for date in dates]
        inside = sum(period is not None and start is not None and period[0] <= start < period[1] for start in starts)
        fits[name] = (-starts.count(None), inside)
    chosen = "day_first" if fits["day_first"] > fits["month_first"] else "month_first"
    return chosen, f"dates with slashes read as {'month/day/year' if chosen == 'month_first' else 'day/month/year'}"


def _midnight(year: int, month: int, day: int) -> int | None:
    try:
        return start_of(datetime.date(year, month, day))
    except ValueError:
        return None


def _digest(uri: str, storage: Mapping[str, Any], whole: bytes | None, size: int, first: bytes) -> str:
    """Return SHA-256 of the content where it was read, else of what the store or the size, time and beginning tell."""
    if whole is not None:
        return hashlib.sha256(whole).hexdigest()
    if address.scheme(uri):
        with address.reaching(uri):
            told = str(address.filesystem(uri, storage).ukey(uri)).encode()
    else:
        told = str(Path(uri).stat().st_mtime_ns).encode()
    return hashlib.sha256(told + size.to_bytes(8, "little") + first).hexdigest()


def _probe(
    template: Fragment, rows: tuple[int, int], next_line: Callable[[int], int], head: text.Head, where: str
) -> None:
    """Parse the first and the last rows, so that most damage shows before a cluster starts."""
    start, size = rows
    stop = next_line(min(start + HEAD, size) - 1)
    read = read_fragment(replace(template, part=(start, stop - start)), CpuFrames(), tuple(template.columns))
    if schema.has_coordinates(head.names) and any(np.isnan(read[zone]).all() for zone in schema.ZONES if zone in read):
        raise schema.no_zones(where)
    if stop < size and (last := next_line(max(stop, size - HEAD) - 1)) < size:
        read_fragment(replace(template, part=(last, size - last)), CpuFrames(), tuple(template.columns))


def _infer(fragments: Iterable[Fragment], where: str) -> Period:
    counts = DayCounts()
    for fragment in fragments:
        counts.add(read_fragment(fragment, CpuFrames(), ("pickup",))["pickup"])
    return counts.period(where)
