"""CSV files: header, how dates are written, digest and blocks; reading these, and the line at
fault.
"""

import codecs
import csv
import gzip
import hashlib
import io
import itertools
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv

from tipcast.config.errors import TipcastError
from tipcast.datasets import address, csv_cells
from tipcast.datasets.base import COLUMN_NAMES, Fragment, Period, ScanRequest, seen_names

GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
PIECE = 4 << 20
"""Bytes read at once to look at a file; a header is shorter."""
_SEPARATOR = re.compile(rb'"?sep=([,;|\t])"?[ \t,;|]*(?:\r?\n|$)', re.IGNORECASE)
"""A first line that Excel reads and writes."""
_DATE = re.compile(rb'(?:^|,)"?(\d{1,2})/(\d{1,2})/(\d{4})(?=[ T",\r]|$)', re.MULTILINE)
_QUOTED = re.compile(rb'(?:^|(?<=[,\n]))"(?:[^"]++|"")*+("?)')
"""A field in quotes, whose group is empty where it goes on after the end."""
_NO_BREAKS = bytes.maketrans(b"\r\n", b"  ")


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


@dataclass(frozen=True)
class Look:
    """What a first look at a CSV file tells."""

    uri: str
    request: ScanRequest
    """What is asked of the file."""
    head: Head
    size: int
    digest: str
    dates: str
    """``iso``, ``month_first`` or ``day_first``."""
    slashed: frozenset[tuple[int, ...]]
    """Its distinct dates with slashes, as their three numbers."""
    notes: tuple[str, ...]
    quoted: bool
    """Whether it has quotes, within which lines may break."""

    @property
    def packed(self) -> bool:
        """Whether it is compressed with gzip."""
        return _is_packed(self.uri)

    @property
    def names(self) -> list[tuple[str, str]]:
        """Name that the dataset sees, and the file's own, of all columns."""
        return seen_names(self.head.names, self.request, address.shown(self.uri))

    def fragments(
        self, columns: Mapping[str, str], period: Period | None, times: Sequence[str] = ()
    ) -> tuple[Fragment, ...]:
        """Cut the file into blocks, a compressed one stays whole; ``times`` are canonical columns
        that hold times.
        """
        storage = address.storage(self.uri, self.request.storage)
        start = self.head.start
        options = {
            "storage": storage,
            "header": self.head.header,
            "dates": self.dates,
            "times": tuple(times),
            "quoted": self.quoted,
            COLUMN_NAMES: dict(self.request.names),
        }
        cuts = [(start, -1)]

        if not self.packed:
            with address.opened(self.uri, storage) as file:
                address.seekable(self.uri, file)
                cuts = blocks(file, start, self.size, self.request.block_bytes, quoted=self.quoted)

        parts = tuple(
            Fragment(self.uri, "csv", cut, columns, period, self.digest, options=options)
            for cut in cuts
        )
        if self.quoted and not self.packed:  # no other block ends within quotes
            _refuse_open_quote(parts[-1], _bytes(parts[-1], *parts[-1].part))

        return parts


def look(uri: str, request: ScanRequest, period: Period | None) -> Look:
    """Look at a CSV file's header, its beginning, and all of its dates that are written with
    slashes.

    The period that the file's name tells decides between month/day and day/month. D003 to D005,
    D007, D016 not the CSV it should be, D009 no rows.
    """
    where = address.shown(uri)
    storage = address.storage(uri, request.storage)
    packed = _is_packed(uri)
    size = address.size(uri, storage)
    stream = pieces(uri, storage) if size else iter(())
    first = next(stream, b"")
    address.refuse_pointer(uri, first)
    head = read_head(first, where)

    if not first[head.start :].strip():
        raise TipcastError(
            "D009", where, "has a header but no rows", "remove it or download it again"
        )

    told = ""
    partly = packed or bool(address.scheme(uri))
    if partly:  # which costs too much to read without need: the store and the beginning tell
        with address.reaching(uri):
            told = f"{address.filesystem(uri, storage).ukey(uri)} {size}"

    digest = hashlib.sha256(told.encode())
    quoted = packed
    slashed = set[tuple[bytes, ...]]()
    rest = b""

    for number, piece in enumerate(itertools.chain([first], stream)):
        if number == 0 or not partly:
            digest.update(piece)
        quoted = quoted or b'"' in piece
        lines, _, rest = (rest + piece).rpartition(b"\n")
        if b"/" in lines:
            slashed.update(_DATE.findall(lines))
        if partly and not slashed:
            break

    slashed.update(_DATE.findall(rest))
    found = frozenset(tuple(map(int, date)) for date in slashed)
    dates, *notes = reading(found, period) if found else ("iso",)
    return Look(uri, request, head, size, digest.hexdigest(), dates, found, tuple(notes), quoted)


def pieces(uri: str, storage: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield a file's bytes, those of a ``.gz`` decompressed, ``PIECE`` at a time; D004 D005, and as
    ``reaching``.
    """
    where = address.shown(uri)
    begun = False
    with address.opened(uri, storage) as file:
        try:
            stream: Any = gzip.GzipFile(fileobj=file) if _is_packed(uri) else file
            while data := stream.read(PIECE):
                begun = True
                yield data
        except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
            if isinstance(problem, gzip.BadGzipFile) and not begun:
                file.seek(0)
                address.refuse_pointer(uri, file.read(address.POINTER_BYTES))
                what = "is not compressed with gzip though its name ends in .gz"
                raise TipcastError("D004", where, what, "rename it to end in .csv") from problem
            what = "is a gzip file that was cut off or damaged"
            raise TipcastError("D005", where, what, "download it again") from problem


def _is_packed(uri: str) -> bool:
    return address.last_name(uri).lower().endswith(".gz")


def reading(dates: Collection[tuple[int, ...]], period: Period | None) -> tuple[str, str]:
    """Decide between month/day and day/month: by which dates exist, by the file's month, then as
    Americans do.

    Returns a key of ``csv_cells.DATES``, and a line that says what was decided.
    """
    first, stop = np.array(period or (0, 0), "datetime64[us]").astype("datetime64[M]").tolist()

    def fit(month: int) -> tuple[int, int]:
        months = [(date[2], date[month]) for date in dates]
        within = sum((first.year, first.month) <= each < (stop.year, stop.month) for each in months)
        return sum(1 <= number <= 12 for _, number in months), within

    month_first = fit(0)
    day_first = fit(1)
    name, order = (
        ("day_first", "day/month/year")
        if day_first > month_first
        else ("month_first", "month/day/year")
    )
    # else one of them will not be read
    either = month_first == day_first and day_first[0] == len(dates)
    both = ", though all fit either order: write them as 2019-02-01" if either else ""
    return name, f"dates with slashes read as {order}{both}"


def read_head(raw: bytes, where: str) -> Head:
    """Read the header from the first bytes of a (decompressed) CSV file.

    A byte order mark, blanks around names, blank lines below the header and extra empty fields at
    the end of each row are habits of public data and are understood. D003 empty, D004 not a CSV
    file, D005 a web page, D007 no commas, D016 not UTF-8.
    """
    if raw.startswith(GZIP):
        what = "is compressed with gzip but its name does not end in .gz"
        raise TipcastError("D004", where, what, "rename it to end in .csv.gz")
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or _is_utf16(raw):
        fix = "save it as CSV UTF-8, or convert it with iconv -f UTF-16 -t UTF-8"
        raise TipcastError("D004", where, "is UTF-16, as Excel's Unicode text is, not UTF-8", fix)
    if b"\0" in raw[:1024]:
        fix = "convert it to UTF-8, or give it the ending of its format"
        raise TipcastError("D004", where, "is not a CSV file of UTF-8 (it holds binary data)", fix)

    start = len(_BOM) if raw.startswith(_BOM) else 0
    if not raw[start:].strip():
        raise TipcastError("D003", where, "is empty", "remove it or download it again")

    start = _after_separator(raw, _row_at(raw, start), where)
    try:
        written, end = _row(raw, start)
    except UnicodeDecodeError as problem:
        line = raw.count(b"\n", 0, start) + 1
        bad = problem.object[problem.start]
        what = f"line {line} is not UTF-8 (byte {bad:#04x})"
        raise TipcastError(
            "D016", where, what, "convert it, e.g. with iconv -f LATIN1 -t UTF-8"
        ) from problem
    except csv.Error as problem:
        raise TipcastError(
            "D005", where, f"its header does not parse: {problem}", "correct it"
        ) from problem

    text = ",".join(written)
    if text.lstrip().startswith("<"):
        raise TipcastError("D005", where, "is a web page, not a CSV file", "download it again")

    # as pandas has them
    names = tuple(" ".join(name.split()) or f"Unnamed: {at}" for at, name in enumerate(written))
    other = next((mark for mark in ";\t|" if mark in text), None)
    if len(names) == 1 and other:
        what = f"1 column found between commas; the delimiter seems to be {other!r}"
        raise TipcastError("D007", where, what, "write it as CSV with commas")

    start = _row_at(raw, end)
    fillers = tuple[str, ...]()
    with suppress(UnicodeDecodeError, csv.Error):  # whoever reads the row says which line it is
        fields, _ = _row(raw, start)
        if not any(fields[len(names) :]):
            fillers = tuple(f"_{at}" for at in range(len(names), len(fields)))

    return Head(names, names + fillers, start, tuple(written))


def _is_utf16(raw: bytes) -> bool:
    """Whether every other byte of the first ones is zero, as in Latin letters of UTF-16."""
    begin = raw[:64]
    halves = (begin[::2], begin[1::2])
    return any(half and not any(half) for half in halves) and any(map(any, halves))


def _after_separator(raw: bytes, start: int, where: str) -> int:
    """Return the offset after a line that tells Excel the delimiter, as sep=,; D003 nothing
    follows, D007 another.
    """
    told = _SEPARATOR.match(raw, start)
    if told is None:
        return start
    if told[1] != b",":
        what = f"its first line says that the delimiter is {told[1].decode()!r}"
        raise TipcastError(
            "D007", where, what, "write it as CSV with commas, and without that line"
        )
    if not raw[told.end() :].strip():
        raise TipcastError("D003", where, "is empty", "remove it or download it again")

    return _row_at(raw, told.end())


def _row(raw: bytes, start: int) -> tuple[list[str], int]:
    """Return the fields of the row at an offset, and the offset after it; UnicodeDecodeError,
    csv.Error.
    """
    stream = io.BytesIO(raw)
    stream.seek(start)
    return next(csv.reader(line.decode() for line in iter(stream.readline, b"")), []), stream.tell()


def _row_at(raw: bytes, start: int) -> int:
    """Return the offset of the first line from ``start`` on that is not blank."""
    return max(raw.rfind(b"\n", start, len(raw) - len(raw[start:].lstrip())) + 1, start)


def blocks(
    file: BinaryIO, start: int, size: int, block_bytes: int, *, quoted: bool = False
) -> list[tuple[int, int]]:
    """Cut the rows from ``start`` on into offsets and lengths of about ``block_bytes`` that end at
    newlines.

    With ``quoted`` the file is read, and no newline within quotes ends a block.
    """
    cut = []
    while start < size:
        file.seek(start if quoted else min(start + block_bytes, size) - 1)
        text = (file.read(block_bytes) if quoted else b"") + file.readline()
        within = quoted and _ends_within_quotes(text)
        while within and (line := file.readline()):
            within = _ends_within_quotes(b'"' + line)
        stop = file.tell()
        cut.append((start, stop - start))
        start = stop

    return cut


def _refuse_open_quote(fragment: Fragment, block: bytes) -> None:
    """Refuse rows that end within quotes, of which pyarrow takes all that follows for one field;
    D005.
    """
    if _ends_within_quotes(block):
        opening = max(
            (field.start() for field in _QUOTED.finditer(block) if not field[1]), default=0
        )
        line = _bytes(fragment, 0, fragment.part[0]).count(10) + block[:opening].count(10) + 1
        what = f"line {line}: a quote opens that is never closed"
        fix = "close it, or write it twice within quotes"
        raise TipcastError("D005", address.shown(fragment.uri), what, fix)


def _ends_within_quotes(lines: bytes) -> bool:
    """Whether a field in quotes goes on after whole lines; a quote amid a field without quotes is a
    character.
    """
    values = np.frombuffer(b"\n" + lines, np.uint8)
    quotes = np.flatnonzero(values == ord('"'))
    # all of them quote, as nearly always: counting is faster
    if np.isin(values[quotes[::2] - 1], [*b',\n"']).all():
        return len(quotes) % 2 == 1
    return any(not field[1] for field in _QUOTED.finditer(lines))


def read_table(
    fragment: Fragment, names: Sequence[str], types: Mapping[str, pa.DataType]
) -> pa.Table:
    """Read columns of a fragment on the host, by one thread: Dask runs one call per core.

    Numbers and times are null where a cell says one of ``csv_cells.MISSING``, blanks around it
    apart; texts are as they stand there. Where a cell is not written as most are, numbers and times
    are read from texts. D001 gone, D005 changed, damaged or a cell or row that does not parse, D016
    not UTF-8, D022 not reached.
    """
    block = _bytes(fragment, *fragment.part)
    # a compressed file is looked at as it is read
    if fragment.options.get("quoted") and fragment.part[1] < 0:
        _refuse_open_quote(fragment, block)

    timeless = {
        name: pa.string() if pa.types.is_timestamp(kind) else kind for name, kind in types.items()
    }
    for asked in (types, timeless, dict.fromkeys(types, pa.string())):
        try:
            table = _parse(fragment, block, names, asked)
        except ValueError as problem:
            fault = problem
            continue
        columns = [_of_cells(fragment, block, name, table[name], types.get(name)) for name in names]
        return pa.Table.from_arrays(columns, names=list(names)) if names else table

    raise _at_fault(fragment, block, fault) from fault


def _parse(
    fragment: Fragment, block: bytes, names: Sequence[str], types: Mapping[str, pa.DataType]
) -> pa.Table:
    """Parse rows, times as ISO 8601 has them; ValueError for a row or a cell that does not parse
    so.
    """
    reading = pa.csv.ReadOptions(
        use_threads=False,
        block_size=csv_cells.CSV_CHUNK,
        column_names=list(fragment.options["header"]),
    )
    convert = pa.csv.ConvertOptions(
        include_columns=list(names),
        column_types=dict(types),
        null_values=csv_cells.MISSING,
        strings_can_be_null=False,
        true_values=[],
        false_values=[],
        timestamp_parsers=[pa.csv.ISO8601],  # which alone knows how long months are
    )
    form = pa.csv.ParseOptions(newlines_in_values=bool(fragment.options.get("quoted")))
    return pa.csv.read_csv(pa.BufferReader(block), reading, form, convert)


def _of_cells(
    fragment: Fragment, block: bytes, name: str, column: pa.ChunkedArray, kind: pa.DataType | None
) -> pa.ChunkedArray:
    """Return a column as the type that is asked for, where it was read as text; D005 names line,
    column and cell.
    """
    if kind is None or column.type == kind:
        return column
    number = pa.types.is_floating(kind)
    values, row = (
        csv_cells.numbers(column) if number else csv_cells.times(column, fragment.options["dates"])
    )
    if row is None:
        return values

    text = column[row].as_py()
    what = f"cannot read {text[:40]!r}"
    fix = "correct or remove that row, or download the file again"
    if number:
        what = f"{what} as a number"
        fix = "correct it, or leave it empty"
    elif csv_cells.OTHER_ZONE.search(text):
        what = f"{what}, a time of another zone than UTC"
        fix = "write wall-clock time without a zone, as 2019-02-01 18:30:00"
    elif values is not None:
        what = f"{what}: there is no such time"
    what = f"{_line(fragment, block, row)}: column {name!r}: {what}"
    raise TipcastError("D005", address.shown(fragment.uri), what, fix)


def _bytes(fragment: Fragment, start: int, length: int) -> bytes:
    storage = fragment.options["storage"]
    if fragment.part[1] < 0:  # gzip can only be read from its beginning
        return b"".join(pieces(fragment.uri, storage))[
            start : None if length < 0 else start + length
        ]
    block = address.read_range(fragment.uri, storage, start, length)
    if len(block) != length:
        raise address.changed(fragment.uri)
    return block


def line_of(fragment: Fragment, row: int) -> str:
    """Return in words the file's line at which a fragment's row, counted from 0, begins."""
    return _line(fragment, _bytes(fragment, *fragment.part), row)


def _line(fragment: Fragment, block: bytes, row: int) -> str:
    before = _bytes(fragment, 0, fragment.part[0])
    plain = block
    if fragment.options.get("quoted"):
        plain = _QUOTED.sub(lambda field: field[0].translate(_NO_BREAKS), block)

    starts = list[int]()
    start = 0
    for line in plain.splitlines(keepends=True):
        if line.strip(b"\r\n"):  # pyarrow counts no empty lines
            starts.append(start)
        start += len(line)

    within = block[: starts[row]].splitlines()
    return f"line {before.count(10) + len(within) + 1}"


def _at_fault(fragment: Fragment, block: bytes, problem: ValueError) -> TipcastError:
    """Return the error of a block that does not parse, which names the line and the column."""
    where = address.shown(fragment.uri)
    fault = csv_cells.FAULT.search(str(problem))
    if fault is None:
        return TipcastError("D005", where, f"does not parse: {problem}", "download it again")

    line = _line(fragment, block, int(fault["row"]) - 1)
    fix = "correct or remove that row, or download the file again"
    if not fault["column"]:
        return TipcastError(
            "D005", where, f"{line} has {fault['fields']} fields, not {fault['expected']}", fix
        )

    column = f"column {fragment.options['header'][int(fault['column'])]!r}"
    if fault["value"] is None or "\ufffd" in fault["value"]:
        fix = "convert the file, e.g. with iconv -f LATIN1 -t UTF-8"
        return TipcastError("D016", where, f"{line}: {column} is not UTF-8", fix)

    return TipcastError(
        "D005", where, f"{line}: {column}: cannot read {fault['value'][:40]!r}", fix
    )
