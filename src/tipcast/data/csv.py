"""CSV files as the TLC and others wrote them: oddities of the header, cutting into blocks, the line at fault."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tipcast.config.errors import TipcastError

GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_SLASHES = re.compile(rb'(?:^|,)"?\d{1,2}/\d{1,2}/\d{2,4}[ T]', re.MULTILINE)


@dataclass(frozen=True)
class Head:
    """What the beginning of a CSV file tells."""

    names: tuple[str, ...]
    """Names of the header line, without blanks around them."""
    header: tuple[str, ...]
    """One distinct name per field of a row: ``names`` and fillers for empty trailing fields."""
    start: int
    """Offset of the first row."""
    line: int
    """Its line number, from 1."""


def read_head(raw: bytes, where: str) -> Head:
    """Read the header from the first bytes of a (decompressed) CSV file.

    A byte order mark, blanks around names, blank lines below the header and extra empty fields at the end of each row
    are the TLC's own habits and are understood.

    Raises
    ------
    TipcastError
        D003 empty, D004 not a CSV file, D005 a web page, D007 no commas, D016 not UTF-8.

    """
    if raw.startswith(GZIP):
        raise TipcastError(
            "D004", where, "is compressed with gzip but its name does not end in .gz", "rename it to end in .csv.gz"
        )
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise TipcastError(
            "D016", where, "line 1 is UTF-16, not UTF-8", "convert it, e.g. with iconv -f UTF-16 -t UTF-8"
        )
    if raw.startswith(b"PAR1") or b"\0" in raw[:1024]:
        raise TipcastError(
            "D004", where, "is no CSV file (it holds binary data)", "give the file the ending of its format"
        )
    start = len(_BOM) if raw.startswith(_BOM) else 0
    if not raw[start:].strip():
        raise TipcastError("D003", where, "is empty", "remove it or download it again")
    start, line = _skip_blank(raw, start, 1)
    end = raw.find(b"\n", start) + 1 or len(raw)
    text = _decode(raw[start:end], where, line)
    if text.lstrip().startswith("<"):
        raise TipcastError("D005", where, "is a web page, not a CSV file", "download it again")
    names = tuple(name.strip() for name in next(csv.reader([text.strip("\r\n")])))
    if len(names) < 3:
        used = next((mark for mark in ";\t|" if mark in text), None)
        hint = f"; the delimiter seems to be {used!r}" if used else ""
        raise TipcastError(
            "D007", where, f"{len(names)} columns found between commas{hint}", "write it as CSV with commas"
        )
    start, line = _skip_blank(raw, end, line + 1)
    first = raw[start : raw.find(b"\n", start) + 1 or len(raw)].decode(errors="replace").strip("\r\n")
    fields = next(csv.reader([first]), [])
    extra = len(fields) - len(names) if not any(fields[len(names) :]) else 0
    header = tuple(
        name if name and names.index(name) == at else f"_{at}" for at, name in enumerate(names + ("",) * max(extra, 0))
    )
    return Head(names, header, start, line)


def _skip_blank(raw: bytes, start: int, line: int) -> tuple[int, int]:
    while start < len(raw):
        end = raw.find(b"\n", start) + 1 or len(raw)
        if raw[start:end].strip():
            break
        start, line = end, line + 1
    return start, line


def _decode(raw: bytes, where: str, line: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as problem:
        raise TipcastError(
            "D016",
            where,
            f"line {line} is not UTF-8 (byte {raw[problem.start]:#04x})",
            "convert it, e.g. with iconv -f LATIN1 -t UTF-8",
        ) from problem


def has_slashes(raw: bytes) -> bool:
    """Whether dates like 01/31/2021 stand anywhere in the bytes."""
    return b"/" in raw and _SLASHES.search(raw) is not None


def blocks(start: int, size: int, block_bytes: int, next_line: Callable[[int], int]) -> list[tuple[int, int]]:
    """Cut rows into blocks of about ``block_bytes`` that end at newlines.

    Parameters
    ----------
    start, size
        Offset of the first row, bytes of the file.
    block_bytes
        Wanted bytes of a block.
    next_line
        Offset -> offset after the next newline from there, or ``size``.

    Returns
    -------
    list of tuple
        Offset and length of each block.

    """
    cut = []
    while start < size:
        aim = start + max(block_bytes, 1)
        stop = size if aim >= size else next_line(aim - 1)
        cut.append((start, stop - start))
        start = stop
    return cut


@dataclass(frozen=True)
class Fault:
    """The first row of a block that does not parse."""

    line: int
    """Lines of the block before it."""
    column: str | None
    what: str
    encoding: bool
    """Whether bytes that are not UTF-8 are the cause."""


def find_fault(
    block: bytes, header: Sequence[str], columns: Sequence[str], parse: Callable[[bytes, Sequence[str]], object]
) -> Fault | None:
    """Find the first row that ``parse`` refuses, by halving; None where it refuses none alone.

    Parameters
    ----------
    block
        Whole lines.
    header, columns
        All columns, and those that were asked for.
    parse
        Parses bytes for some columns, or raises ValueError.

    """
    lines = block.splitlines(keepends=True)
    low, high = 0, len(lines)
    if not _refused(parse, block, columns):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if _refused(parse, b"".join(lines[low:middle]), columns):
            high = middle
        else:
            low = middle
    return _explain(lines[low], low, header, columns, parse)


def _explain(
    row: bytes, at: int, header: Sequence[str], columns: Sequence[str], parse: Callable[[bytes, Sequence[str]], object]
) -> Fault:
    fields = next(csv.reader([row.decode(errors="replace").strip("\r\n")]), [])
    if len(fields) != len(header):
        return Fault(at, None, f"has {len(fields)} fields, not {len(header)}", False)
    column = next((name for name in columns if _refused(parse, row, [name])), None)
    if column is None:
        return Fault(at, None, "does not parse", False)
    value = fields[header.index(column)]
    return Fault(at, column, f"cannot read {value[:40]!r}", "\ufffd" in value)


def _refused(parse: Callable[[bytes, Sequence[str]], object], block: bytes, columns: Sequence[str]) -> bool:
    try:
        parse(block, columns)
    except ValueError:
        return bool(block.strip())
    return False
