"""CSV files before they are read: header, separator, how dates are written, digest, and the parts
to cut them into.
"""

import codecs
import csv
import functools
import hashlib
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tipcast.config.errors import TipcastError
from tipcast.datasets import address
from tipcast.datasets.csv_bytes import blocks, is_converted, pieces
from tipcast.datasets.csv_part import CsvPart
from tipcast.datasets.csv_rows import after_blanks, likely_separators, named_separator, row_at
from tipcast.datasets.dialect import NAME_ENCODING, SEPARATORS, Dialect
from tipcast.datasets.listing import ScanRequest, seen_names
from tipcast.datasets.packing import PACKINGS, packing_of, with_packings
from tipcast.datasets.parts import Period

_BOM = b"\xef\xbb\xbf"
_TABS = with_packings((".tsv",))
"""Endings of names that say that tabs separate fields."""


@dataclass(frozen=True)
class CsvHeader:
    """What the beginning of a CSV file tells."""

    names: tuple[str, ...]
    """Names of the header line, without blanks around them."""
    fields: tuple[str, ...]
    """One distinct name per field of a row: ``names`` and fillers for empty trailing fields."""
    start: int
    """Offset of the first row."""
    written: tuple[str, ...] = ()
    """The names as they stand there, with blanks and line breaks."""
    separator: str = ","
    """What parts the fields of a row."""
    rivals: tuple[str, ...] = ()
    """Other separators that would fit."""

    @property
    def notes(self) -> tuple[str, ...]:
        """A line on the separator where a user may not expect it, or nothing."""
        note = f"fields are separated by {SEPARATORS[self.separator]}"
        if self.rivals:
            rivals = " and ".join(SEPARATORS[rival] for rival in self.rivals)
            note += f", although {rivals} would fit too: a first line such as sep=; decides"
        return (note,) if self.rivals or self.separator != "," else ()


@dataclass(frozen=True)
class CsvScan:
    """What is learned of a CSV file before any part of it is read."""

    uri: str
    request: ScanRequest
    """What is asked of the file."""
    header: CsvHeader
    size: int
    digest: str
    dates: str
    """``iso``, ``month_first`` or ``day_first``."""
    slashed: frozenset[tuple[int, ...]]
    """Its distinct dates with slashes, as their three numbers."""
    dates_note: str
    """A line on how dates with slashes are read; empty where there are none."""
    quoted: bool
    """Whether it has quotes, within which lines may break."""

    @property
    def dialect(self) -> Dialect:
        """How it is written: its own separator, and what is asked for."""
        return replace(self.request.dialect, separator=self.header.separator)

    @property
    def converted(self) -> bool:
        """Whether it is compressed or of another encoding: it is read from its beginning."""
        return is_converted(self.uri, self.request.dialect.encoding)

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines on what was found."""
        return tuple(filter(None, (*self.header.notes, self.dates_note)))

    @property
    def names(self) -> list[tuple[str, str]]:
        """Name that the dataset sees, and the file's own, of all columns."""
        return seen_names(self.header.names, self.request, address.shown(self.uri))

    def parts(
        self, columns: Mapping[str, str], period: Period | None, times: Sequence[str] = ()
    ) -> tuple[CsvPart, ...]:
        """Cut the file into blocks, one that is ``converted`` stays whole.

        ``times`` are canonical columns that hold times.
        """
        storage = address.storage(self.uri, self.request.storage)
        start = self.header.start
        cuts = [(start, -1)]

        if not self.converted:
            with address.opened(self.uri, storage) as file:
                address.seekable(self.uri, file)
                cuts = blocks(
                    file,
                    start,
                    self.size,
                    self.request.block_bytes,
                    quoted=self.quoted,
                    separator=self.header.separator,
                )

        parts = tuple(
            CsvPart(
                uri=self.uri,
                digest=self.digest,
                columns=columns,
                period=period,
                storage=storage,
                column_names=dict(self.request.names),
                offset=offset,
                length=length,
                header=self.header.fields,
                dates=self.dates,
                times=tuple(times),
                quoted=self.quoted,
                dialect=self.dialect,
            )
            for offset, length in cuts
        )
        if self.quoted and not self.converted:  # no other block ends within quotes
            parts[-1].refuse_open_quote(parts[-1].block())

        return parts


def scan_csv(uri: str, request: ScanRequest, period: Period | None) -> CsvScan:
    """Scan a CSV file for its header, separator, digest, quotes and dates with slashes.

    A local file is read whole. Of a compressed or remote one the first ``PIECE`` is read; the rest
    is read only if the first piece has dates with slashes. ``CsvScan.parts`` reads a file with
    quotes once more. The period that the file's name tells decides between month/day and day/month.

    Raises D003 to D005 and D016 where it is not the CSV it should be, D009 without rows.
    """
    where = address.shown(uri)
    storage = address.storage(uri, request.storage)
    size = address.size(uri, storage)
    dialect = request.dialect
    stream = pieces(uri, storage, dialect.encoding) if size else iter(())
    first = next(stream, b"")
    address.refuse_pointer(uri, first)
    named = "\t" if address.last_name(uri).lower().endswith(_TABS) else ""
    header = read_header(first, where, dialect.decimal, named)

    if after_blanks(first, header.start, header.separator) == len(first):
        raise TipcastError(
            "D009", where, "has a header but no rows", "remove it or download it again"
        )

    partly = packing_of(uri) is not None or bool(address.scheme(uri))
    identity = address.identity(uri, storage) if partly else ""
    text = _read_text(
        itertools.chain([first], stream), identity, _slashed_date(header.separator), partly=partly
    )

    dates, note = reading(text.slashed, period) if text.slashed else ("iso", "")
    quoted = is_converted(uri, dialect.encoding) or text.quoted
    return CsvScan(uri, request, header, size, text.digest, dates, text.slashed, note, quoted)


@dataclass(frozen=True)
class _Text:
    """What the text of a CSV file tells, its header too."""

    digest: str
    slashed: frozenset[tuple[int, ...]]
    """Distinct dates with slashes, as in ``CsvScan.slashed``."""
    quoted: bool
    """Whether a quote was read."""


@functools.cache
def _slashed_date(separator: str) -> re.Pattern[bytes]:
    """Return the pattern of a field that begins with a date with slashes, after any blanks."""
    sign = re.escape(separator).encode()
    return re.compile(
        rb"(?:^|" + sign + rb') *+"? *+(\d{1,2})/(\d{1,2})/(\d{4})(?=[ T"\r' + sign + rb"]|$)",
        re.MULTILINE,
    )


def _read_text(
    text: Iterable[bytes], identity: str, date: re.Pattern[bytes], *, partly: bool
) -> _Text:
    """Read pieces of a file's text for its digest, and for dates with slashes.

    With ``partly`` the digest is of ``identity`` and the first piece, and reading ends where no
    date has slashes so far.
    """
    digest = hashlib.sha256(identity.encode())
    quoted = False
    dates = set[tuple[bytes, ...]]()
    rest = b""

    for number, piece in enumerate(text):
        if number == 0 or not partly:
            digest.update(piece)
        quoted = quoted or b'"' in piece

        lines, _, rest = (rest + piece).rpartition(b"\n")
        if b"/" in lines:
            dates.update(date.findall(lines))
        if partly and not dates:
            break

    dates.update(date.findall(rest))
    slashed = frozenset(tuple(map(int, numbers)) for numbers in dates)
    return _Text(digest.hexdigest(), slashed, quoted)


def reading(dates: Collection[tuple[int, ...]], period: Period | None) -> tuple[str, str]:
    """Decide between month/day and day/month: by which dates exist, by the file's month, then as
    Americans do.

    Returns a key of ``csv_cells.DATES``, and a line that says what was decided.
    """
    first, stop = np.array(period or (0, 0), "datetime64[us]").astype("datetime64[M]").tolist()

    def fit(month: int) -> tuple[int, int]:
        months = [(date[2], date[month]) for date in dates]
        within = [
            date for date in months if (first.year, first.month) <= date < (stop.year, stop.month)
        ]
        return sum(1 <= number <= 12 for _, number in months), len(within)

    month_first = fit(0)
    day_first = fit(1)
    name, order = (
        ("day_first", "day/month/year")
        if day_first > month_first
        else ("month_first", "month/day/year")
    )
    # Otherwise one of the two is not read.
    either = month_first == day_first and day_first[0] == len(dates)
    both = ", although all fit either order: write them as 2019-02-01" if either else ""
    return name, f"dates with slashes read as {order}{both}"


def read_header(raw: bytes, where: str, decimal: str = ".", named: str = "") -> CsvHeader:
    """Read the header from the first bytes of a CSV file, decompressed and in UTF-8.

    A byte order mark, blanks around names, blank lines below the header and extra empty fields at
    the end of each row are habits of public data and are understood. ``named`` is the separator
    that the file's name says.

    Raises D003 for an empty file, D004 for one that is not CSV, D005 for a web page, D016 for a
    text that is not UTF-8.
    """
    _refuse_other_formats(raw, where)
    start = len(_BOM) if raw.startswith(_BOM) else 0
    if not raw[start:].strip():
        raise TipcastError("D003", where, "is empty", "remove it or download it again")

    start, separators = _separators_at(raw, after_blanks(raw, start), where, decimal, named)
    separator, *rivals = separators
    written, stop = _header_row(raw, start, where, separator)
    if written[0].lstrip().startswith("<"):
        raise TipcastError("D005", where, "is a web page, not a CSV file", "download it again")

    # Names as pandas has them.
    names = tuple(" ".join(name.split()) or f"Unnamed: {at}" for at, name in enumerate(written))

    start = after_blanks(raw, stop, separator)
    fillers = _fillers(raw, start, len(names), separator)
    return CsvHeader(names, names + fillers, start, tuple(written), separator, tuple(rivals))


def _refuse_other_formats(raw: bytes, where: str) -> None:
    """Refuse bytes that are not those of a text in UTF-8. Raises D004."""
    for packing in PACKINGS:
        if raw.startswith(packing.magic):
            what = (
                f"is compressed with {packing.name} but its name does not end in {packing.ending}"
            )
            raise TipcastError("D004", where, what, f"rename it to end in .csv{packing.ending}")
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or _is_utf16(raw):
        fix = (
            "save it as CSV UTF-8, convert it with iconv -f UTF-16 -t UTF-8, or, for a table, set "
            "data.encoding=utf-16"
        )
        raise TipcastError("D004", where, "is UTF-16, like Excel's Unicode text, not UTF-8", fix)
    if b"\0" in raw[:1024]:
        fix = "convert it to UTF-8, or rename it with the ending of its format"
        raise TipcastError("D004", where, "is not a UTF-8 CSV file (it contains binary data)", fix)


def _is_utf16(raw: bytes) -> bool:
    """Whether every other byte of the first ones is zero, as in Latin letters of UTF-16."""
    begin = raw[:64]
    halves = (begin[::2], begin[1::2])
    return any(half and not any(half) for half in halves) and any(map(any, halves))


def _separators_at(
    raw: bytes, start: int, where: str, decimal: str, named: str
) -> tuple[int, list[str]]:
    """Return the offset of the header and ``likely_separators``, or the one of a line for Excel,
    as ``sep=;``, before the header if there is one.

    Raises D003 if nothing follows such a line.
    """
    of_excel = named_separator(raw, start)
    if of_excel is None:
        return start, likely_separators(raw, start, decimal, named)

    separator, stop = of_excel
    if not raw[stop:].strip():
        raise TipcastError("D003", where, "is empty", "remove it or download it again")

    return after_blanks(raw, stop, separator), [separator]


def _header_row(raw: bytes, start: int, where: str, separator: str) -> tuple[list[str], int]:
    """Return the fields of the header at an offset, and the offset after it.

    Raises D005 if it does not parse, D016 if it is not UTF-8.
    """
    try:
        return row_at(raw, start, separator)
    except UnicodeDecodeError as problem:
        line = raw.count(b"\n", 0, start) + 1
        bad = problem.object[problem.start]
        what = f"line {line} is not UTF-8 (byte {bad:#04x})"
        raise TipcastError("D016", where, what, NAME_ENCODING) from problem
    except csv.Error as problem:
        what = f"its header cannot be parsed: {problem}"
        raise TipcastError("D005", where, what, "correct it") from problem


def _fillers(raw: bytes, start: int, columns: int, separator: str) -> tuple[str, ...]:
    """Return names for the fields that the row at an offset has beyond the columns, if all are
    empty.
    """
    try:
        fields, _ = row_at(raw, start, separator)
    except (UnicodeDecodeError, csv.Error):  # whoever reads the row says which line it is
        return ()
    if any(fields[columns:]):
        return ()
    return tuple(f"_{at}" for at in range(columns, len(fields)))
