"""The first rows of a CSV file, and the separator that they are written with."""

import contextlib
import csv
import io
import itertools
import re
from collections.abc import Iterator

from tipcast.datasets.dialect import SEPARATORS

_FIRST_LINE = re.compile(rb'"?sep=([,;|\t])"?[ \t,;|]*(?:\r?\n|$)', re.IGNORECASE)
"""A first line that Excel reads and writes."""
_ROWS = 20
"""Rows below the header that tell the separator."""


def named_separator(raw: bytes, start: int) -> tuple[str, int] | None:
    """Return the separator that a line at an offset tells Excel, as ``sep=;``, and the offset after
    it; None: no line does.
    """
    line = _FIRST_LINE.match(raw, start)
    return None if line is None else (line[1].decode(), line.end())


def likely_separator(raw: bytes, start: int, decimal: str = ".") -> str:
    """Return the separator of the rows from the header at an offset on.

    It is the one that parts the header and the rows below it into equally many fields, the most of
    them where several do; otherwise the one that parts the header alone into most. Of equals it is
    one that is not the sign of decimals, and then the one that ``SEPARATORS`` names first.
    """

    def merit(separator: str) -> tuple[bool, int, bool]:
        rows = [row for row in _rows(raw, start, separator) if any(map(str.strip, row))]
        fields = len(rows[0]) if rows else 0
        fits = fields > 1 and all(_fits(row, fields) for row in rows[1:])
        return fits, fields, separator != decimal

    return max(SEPARATORS, key=merit)


def _fits(row: list[str], fields: int) -> bool:
    """Whether a row has as many fields as the header, apart from empty ones at its end."""
    return len(row) >= fields and not any(row[fields:])


def _rows(raw: bytes, start: int, separator: str) -> list[list[str]]:
    """Return the first whole rows, without the last ones where they do not parse."""
    rows = list[list[str]]()
    reader = csv.reader(_lines(raw, start), delimiter=separator)
    with contextlib.suppress(csv.Error):  # whoever reads the row says which line it is
        for row in itertools.islice(reader, _ROWS):
            rows.append(row)  # noqa: PERF402  those before a fault stay
    return rows


def _lines(raw: bytes, start: int) -> Iterator[str]:
    """Yield the lines from an offset on that are whole, or the only one."""
    stream = io.BytesIO(raw)
    stream.seek(start)
    for number, line in enumerate(iter(stream.readline, b"")):
        if number == 0 or line.endswith(b"\n"):
            yield line.decode(errors="replace")


def row_at(raw: bytes, start: int, separator: str) -> tuple[list[str], int]:
    """Return the fields of the row at an offset, and the offset after it; UnicodeDecodeError,
    csv.Error.
    """
    stream = io.BytesIO(raw)
    stream.seek(start)
    lines = (line.decode() for line in iter(stream.readline, b""))
    return next(csv.reader(lines, delimiter=separator), []), stream.tell()


def after_blanks(raw: bytes, start: int, separator: str = "") -> int:
    """Return the offset of the first line from ``start`` on that is not blank; a separator does
    not count as a blank.
    """
    blanks = bytes(set(b" \t\r\n\v\f") - set(separator.encode()))
    rest = raw[start:].lstrip(blanks)
    return max(raw.rfind(b"\n", start, len(raw) - len(rest)) + 1, start)
