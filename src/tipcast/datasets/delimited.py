"""CSV files: header, both ends, how dates are written, digest and blocks; reading these, and the line at fault."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from fsspec.utils import seek_delimiter

from tipcast.compute.base import Array, Frames
from tipcast.config.errors import TipcastError
from tipcast.datasets import address
from tipcast.datasets.base import COLUMN_NAMES, Fragment, Period, ScanRequest, seen_names

MISSING = [
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "None", "n/a", "nan", "null", "\\N",
]  # fmt: skip
"""What a CSV cell without a value may say: what pandas takes so, and PostgreSQL's."""
CSV_CHUNK = 8 << 20
"""Bytes that the CSV parser works on at once."""
_CLOCKS = (" %H:%M", " %H:%M:%S", " %I:%M:%S %p", " %I:%M %p", "")
_YEAR_FIRST = [pa.csv.ISO8601, "%Y-%m-%d %H:%M:%S UTC", *(f"%Y/%m/%d{clock}" for clock in _CLOCKS)]
DATES = {
    "iso": _YEAR_FIRST,
    "month_first": [*_YEAR_FIRST, *(f"%m/%d/%Y{clock}" for clock in _CLOCKS)],
    "day_first": [*_YEAR_FIRST, *(f"%d/%m/%Y{clock}" for clock in _CLOCKS)],
}
"""How a CSV file writes its dates -> the formats tried in order on every cell."""
GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_SLASHES = re.compile(rb'(?:^|,)"?\d{1,2}/\d{1,2}/\d{2,4}(?=[ T",\r]|$)', re.MULTILINE)
ENDS = 256 << 10
"""Bytes read at each end of a file before any worker sees it."""
WHOLE = 64 << 20
"""A local file up to this size is read whole for its digest."""
_WINDOW = 64 << 10
_DATE = re.compile(rb'(?:^|,)"?(\d{1,2})/(\d{1,2})/(\d{4})(?=[ T",\r]|$)', re.MULTILINE)
_FAULT = re.compile(
    r"(?:CSV column #(?P<column>\d+): )?(?:CSV parse error: )?Row #(?P<row>\d+): "
    r"(?:Expected (?P<expected>\d+) columns, got (?P<fields>\d+)|.*invalid (?:UTF8 data|value '(?P<value>.*)'))",
    re.DOTALL,
)
"""What pyarrow says of the first row that does not parse."""


@dataclass(frozen=True)
class Look:
    """What a first look at a CSV file tells."""

    uri: str
    storage: Mapping[str, Any]
    size: int
    packed: bool
    """Whether it is compressed with gzip."""
    head: Head
    digest: str
    dates: str
    """``iso``, ``month_first`` or ``day_first``."""
    slashed: frozenset[tuple[int, ...]]
    """Its distinct dates with slashes, as their three numbers."""
    notes: tuple[str, ...]
    request: ScanRequest
    """What is asked of the file."""
    quoted: bool
    """Whether it has quotes, within which lines may break."""

    @property
    def names(self) -> list[tuple[str, str]]:
        """Name that the dataset sees, and the file's own, of all columns."""
        return seen_names(self.head.names, self.request, address.shown(self.uri))

    def fragment(self, columns: Mapping[str, str], times: Sequence[str], period: Period | None) -> Fragment:
        """Return the whole file as one fragment; ``times`` are the canonical columns that hold dates and times."""
        options = {
            "storage": self.storage,
            "header": self.head.header,
            "dates": self.dates,
            "start": self.head.start,
            "times": tuple(times),
            "quoted": self.quoted,
            COLUMN_NAMES: dict(self.request.names),
        }
        return Fragment(self.uri, "csv", (0, -1), columns, period, self.digest, options=options)

    def cut(self, whole: Fragment, block_bytes: int) -> tuple[Fragment, ...]:
        """Cut the file into blocks; a compressed one stays whole."""
        if self.packed:
            return (whole,)
        with self._opened() as file:
            cuts = blocks(file, self.head.start, self.size, block_bytes, quoted=self.quoted)
        return tuple(replace(whole, part=cut) for cut in cuts)

    def ends(self, whole: Fragment) -> tuple[Fragment, ...]:
        """Return the first rows, and the last where those are others; nothing of a compressed file."""
        if self.packed:
            return ()
        start = self.head.start
        with self._opened() as file:
            stop = _next_line(file, min(start + ENDS, self.size) - 1)
            last = _next_line(file, max(stop, self.size - ENDS) - 1)
        found = [replace(whole, part=(start, stop - start))]
        if stop < self.size and last < self.size:
            found.append(replace(whole, part=(last, self.size - last)))
        return tuple(found)

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        with address.opened(self.uri, self.storage) as file, address.reaching(self.uri):
            address.seekable(self.uri, file)
            yield file


def look(uri: str, request: ScanRequest, period: Period | None) -> Look:
    """Look at a CSV file's header, its beginning, and all of its dates that are written with slashes.

    The period that the file's name tells decides between month/day and day/month. D003 to D005, D007, D016 not the CSV
    it should be, D009 no rows.
    """
    where = address.shown(uri)
    storage = address.storage(uri, request.storage)
    size = address.size(uri, storage)
    packed = _is_packed(uri)
    beginning = pieces(uri, storage) if size else iter(())
    first = next(beginning, b"")
    head = read_head(first, where)
    while not first[head.start :].strip():  # the header may be longer than what is read at once
        more = next(beginning, b"")
        if not more:
            raise TipcastError("D009", where, "has a header but no rows", "remove it or download it again")
        first += more
        head = read_head(first, where)
    whole = address.read_range(uri, storage, 0, -1) if size <= WHOLE and not (packed or address.scheme(uri)) else None
    dates, slashed, notes = "iso", frozenset[tuple[int, ...]](), list[str]()
    if b"/" in (whole or first) and _SLASHES.search(whole or first):
        slashed = _slashed(pieces(uri, storage))
        dates, *notes = reading(slashed, period)
    # Of a remote file the beginning tells; a local one is read, a second a gigabyte.
    large = whole is None and not (packed or address.scheme(uri))
    quoted = packed or b'"' in (whole or first) or (large and any(b'"' in piece for piece in pieces(uri, storage)))
    digest = _digest(uri, storage, whole, size, first)
    return Look(uri, storage, size, packed, head, digest, dates, slashed, tuple(notes), request, quoted)


def pieces(uri: str, storage: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield a file's bytes, those of a ``.gz`` decompressed, ``ENDS`` at a time; D004 D005, and as ``reaching``."""
    where, begun = address.shown(uri), False
    with address.opened(uri, storage) as file, address.reaching(uri):
        try:
            stream: Any = gzip.GzipFile(fileobj=file) if _is_packed(uri) else file
            while data := stream.read(ENDS):
                begun = True
                yield data
        except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
            if isinstance(problem, gzip.BadGzipFile) and not begun:
                what = "is not compressed with gzip though its name ends in .gz"
                raise TipcastError("D004", where, what, "rename it to end in .csv") from problem
            what = "is a gzip file that was cut off or damaged"
            raise TipcastError("D005", where, what, "download it again") from problem


def _is_packed(uri: str) -> bool:
    return address.last_name(uri).lower().endswith(".gz")


def _slashed(pieces: Iterable[bytes]) -> frozenset[tuple[int, ...]]:
    """Return the distinct dates written with slashes, as their three numbers."""
    found: set[tuple[bytes, ...]] = set()
    rest = b""
    for piece in pieces:
        lines, _, rest = (rest + piece).rpartition(b"\n")
        found.update(_DATE.findall(lines))
    found.update(_DATE.findall(rest))
    return frozenset(tuple(map(int, date)) for date in found)


def reading(dates: Collection[tuple[int, ...]], period: Period | None) -> tuple[str, str]:
    """Decide between month/day and day/month: by which dates exist, by the file's month, then as Americans do.

    Returns a key of ``DATES``, and a line that says what was decided.
    """
    first, stop = np.array(period or (0, 0), "datetime64[us]").astype("datetime64[M]").tolist()

    def fit(month: int) -> tuple[int, int]:
        months = [(date[2], date[month]) for date in dates]
        within = sum((first.year, first.month) <= each < (stop.year, stop.month) for each in months)
        return sum(1 <= number <= 12 for _, number in months), within

    month_first, day_first = fit(0), fit(1)
    name, order = ("day_first", "day/month/year") if day_first > month_first else ("month_first", "month/day/year")
    either = month_first == day_first and day_first[0] == len(dates)  # else one of them will not be read
    both = ", though all fit either order: write them as 2019-02-01" if either else ""
    return name, f"dates with slashes read as {order}{both}"


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


@dataclass(frozen=True)
class Head:
    """What the beginning of a CSV file tells."""

    names: tuple[str, ...]
    """Names of the header line, without blanks around them."""
    header: tuple[str, ...]
    """One distinct name per field of a row: ``names`` and fillers for empty trailing fields."""
    start: int
    """Offset of the first row."""
    written: tuple[str, ...] = ()
    """The names as they stand there, with blanks and line breaks."""


def read_head(raw: bytes, where: str) -> Head:
    """Read the header from the first bytes of a (decompressed) CSV file.

    A byte order mark, blanks around names, blank lines below the header and extra empty fields at the end of each row
    are habits of public data and are understood. D003 empty, D004 not a CSV file, D005 a web page, D007 no commas, D016
    not UTF-8.
    """
    if raw.startswith(GZIP):
        what = "is compressed with gzip but its name does not end in .gz"
        raise TipcastError("D004", where, what, "rename it to end in .csv.gz")
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        fix = "convert it, e.g. with iconv -f UTF-16 -t UTF-8"
        raise TipcastError("D016", where, "line 1 is UTF-16, not UTF-8", fix)
    if raw.startswith((b"PAR1", b"\x89PNG")) or b"\0" in raw[:1024]:
        fix = "give the file the ending of its format"
        raise TipcastError("D004", where, "is not a CSV file (it holds binary data)", fix)
    start = len(_BOM) if raw.startswith(_BOM) else 0
    if not raw[start:].strip():
        raise TipcastError("D003", where, "is empty", "remove it or download it again")
    start = _skip_blank(raw, start)
    try:
        written, end = _row(raw, start)
    except UnicodeDecodeError as problem:
        line, bad = raw.count(b"\n", 0, start) + 1, problem.object[problem.start]
        what = f"line {line} is not UTF-8 (byte {bad:#04x})"
        raise TipcastError("D016", where, what, "convert it, e.g. with iconv -f LATIN1 -t UTF-8") from problem
    except csv.Error as problem:
        if b"\r" in raw and b"\n" not in raw:
            fix = "write line feeds, e.g. with tr '\\r' '\\n'"
            raise TipcastError("D005", where, "its lines end with carriage returns alone", fix) from problem
        raise TipcastError("D005", where, f"its header does not parse: {problem}", "correct it") from problem
    text = ",".join(written)
    if text.lstrip().startswith("<"):
        raise TipcastError("D005", where, "is a web page, not a CSV file", "download it again")
    names = tuple(" ".join(name.split()) or f"Unnamed: {at}" for at, name in enumerate(written))  # as pandas has them
    other = next((mark for mark in ";\t|" if mark in text), None)
    if len(names) == 1 and other:
        what = f"1 column found between commas; the delimiter seems to be {other!r}"
        raise TipcastError("D007", where, what, "write it as CSV with commas")
    start, fillers = _skip_blank(raw, end), tuple[str, ...]()
    with suppress(UnicodeDecodeError, csv.Error):  # whoever reads the row says which line it is
        fields, _ = _row(raw, start)
        if not any(fields[len(names) :]):
            fillers = tuple(f"_{at}" for at in range(len(names), len(fields)))
    first_of = {name: at for at, name in reversed([*enumerate(names)])}
    header = tuple(name if first_of[name] == at else f"_{at}" for at, name in enumerate(names))
    return Head(names, header + fillers, start, tuple(written))


def _row(raw: bytes, start: int) -> tuple[list[str], int]:
    """Return the fields of the row at an offset, and the offset after it; UnicodeDecodeError, csv.Error."""
    stream = io.BytesIO(raw)
    stream.seek(start)
    return next(csv.reader(line.decode() for line in iter(stream.readline, b"")), []), stream.tell()


def _skip_blank(raw: bytes, start: int) -> int:
    while start < len(raw):
        end = raw.find(b"\n", start) + 1 or len(raw)
        if raw[start:end].strip():
            break
        start = end
    return start


def _next_line(file: BinaryIO, offset: int) -> int:
    """Return the offset after the next newline from ``offset``, or the file's size."""
    file.seek(offset)
    seek_delimiter(file, b"\n", _WINDOW)
    return file.tell()


def blocks(file: BinaryIO, start: int, size: int, block_bytes: int, *, quoted: bool = False) -> list[tuple[int, int]]:
    """Cut the rows from ``start`` on into offsets and lengths of about ``block_bytes`` that end at newlines.

    With ``quoted`` the file is read, and no newline within quotes ends a block.
    """
    cut = []
    while start < size:
        aim = start + block_bytes
        if quoted:
            file.seek(start)
            within = _ends_within_quotes(file.read(block_bytes) + file.readline(), within=False)
            while within and (line := file.readline()):
                within = _ends_within_quotes(line, within=True)
            stop = file.tell()
        else:
            stop = size if aim >= size else _next_line(file, aim - 1)
        cut.append((start, stop - start))
        start = stop
    return cut


def _ends_within_quotes(lines: bytes, *, within: bool) -> bool:
    """Whether a field in quotes goes on after whole lines; a quote amid a field without quotes is a character."""
    values = np.frombuffer(lines, np.uint8)
    quotes = np.flatnonzero(values == ord('"'))
    before = np.where(quotes > 0, values[quotes - 1], ord("\n"))
    opens = (before == ord(",")) | (before == ord("\n"))
    opening = slice(int(within), None, 2)  # if all of them quote
    if (opens | (before == ord('"')))[opening].all():
        return bool((len(quotes) + within) % 2)
    closed = -1
    for at, may_open in zip(quotes.tolist(), opens.tolist(), strict=True):
        if within:
            within, closed = False, at
        else:
            within = may_open or closed == at - 1
    return within


def read(fragment: Fragment, columns: Sequence[str], frames: Frames) -> dict[str, Array]:
    """Read columns of a fragment, times or numbers, onto the frames' device; errors as ``read_table``."""
    times = {fragment.columns[name] for name in fragment.options["times"] if name in fragment.columns}
    types = {name: pa.timestamp("us") if name in times else pa.float64() for name in columns}
    return frames.arrays(read_table(fragment, columns, types), columns)


def read_table(
    fragment: Fragment, names: Sequence[str], types: Mapping[str, pa.DataType], *, threads: bool = False
) -> pa.Table:
    """Read columns of a fragment on the host.

    Numbers and times are null where a cell says one of ``MISSING``, texts are as they stand there.

    ``threads`` parses chunks at once: Dask runs one call per core. D001 gone, D005 changed, damaged or a row that does
    not parse, D016 not UTF-8, D022 not reached.
    """
    header = fragment.options["header"]
    convert = pa.csv.ConvertOptions(
        include_columns=list(names),
        column_types=dict(types),
        null_values=MISSING,
        strings_can_be_null=False,
        true_values=[],
        false_values=[],
        timestamp_parsers=DATES[fragment.options["dates"]],
    )
    form = pa.csv.ParseOptions(newlines_in_values=bool(fragment.options.get("quoted")))
    block = _bytes(fragment)

    def parse(*, threads: bool) -> pa.Table:
        reading = pa.csv.ReadOptions(use_threads=threads, block_size=CSV_CHUNK, column_names=list(header))
        return pa.csv.read_csv(pa.BufferReader(block), reading, form, convert)

    if threads:
        with suppress(ValueError):  # one thread says where the fault is
            return parse(threads=True)
    try:
        return parse(threads=False)
    except ValueError as problem:
        raise _at_fault(fragment, block, problem) from problem


def bare_texts(texts: pa.ChunkedArray, missing: Iterable[str] = ()) -> pa.ChunkedArray:
    """Return texts without blanks around them; null where one says nothing, by ``MISSING`` or by ``missing``."""
    bare = pc.utf8_trim_whitespace(texts)
    return pc.if_else(pc.is_in(bare, pa.array([*MISSING, *missing], pa.string())), None, bare)


def _bytes(fragment: Fragment) -> bytes:
    offset, length = fragment.part
    storage = fragment.options["storage"]
    if length < 0:
        return b"".join(pieces(fragment.uri, storage))[fragment.options["start"] :]
    block = address.read_range(fragment.uri, storage, offset, length)
    if len(block) != length:
        raise address.changed(fragment.uri)
    return block


def _at_fault(fragment: Fragment, block: bytes, problem: ValueError) -> TipcastError:
    """Return the error of a block that does not parse, which names the line and the column."""
    where, fault = address.shown(fragment.uri), _FAULT.search(str(problem))
    if fault is None:
        return TipcastError("D005", where, f"does not parse: {problem}", "download it again")
    storage, (offset, length) = fragment.options["storage"], fragment.part
    if length < 0:
        before = b"".join(pieces(fragment.uri, storage))[: fragment.options["start"]]
    else:
        before = address.read_range(fragment.uri, storage, 0, offset)
    rows = [at for at, line in enumerate(block.splitlines(), 1) if line]  # pyarrow counts no empty lines
    line = f"line {before.count(10) + rows[int(fault['row']) - 1]}"
    fix = "correct or remove that row, or download the file again"
    if not fault["column"]:
        return TipcastError("D005", where, f"{line} has {fault['fields']} fields, not {fault['expected']}", fix)
    column = f"column {fragment.options['header'][int(fault['column'])]!r}"
    if fault["value"] is None or "\ufffd" in fault["value"]:
        fix = "convert the file, e.g. with iconv -f LATIN1 -t UTF-8"
        return TipcastError("D016", where, f"{line}: {column} is not UTF-8", fix)
    return TipcastError("D005", where, f"{line}: {column}: cannot read {fault['value'][:40]!r}", fix)
