"""The first rows of a CSV file, and the separator that they are written with."""

import contextlib
import csv
import io
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

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


@dataclass(frozen=True, order=True)
class _Merit:
    """What speaks for a separator, the most decisive first."""

    is_named: bool
    """Whether it is the one that the file's name says, and parts the header."""
    fits: bool
    """Whether it parts the header and the rows below it into equally many fields."""
    fields: int
    """Those of the header."""
    is_no_decimal: bool
    is_tight: bool
    """Whether no blank follows it in the header, as one does within names such as City, State."""
    is_rare: bool
    """Whether it parts the header and is not the comma, which names have within them too."""


def likely_separators(raw: bytes, start: int, decimal: str = ".", named: str = "") -> list[str]:
    """Return the separator of the rows from the header at an offset on, the one with the most of
    ``_Merit``, and after it the others that fit.

    ``named`` is the one that the file's name says, as .tsv does. Of equals it is the one that
    ``SEPARATORS`` names first.
    """
    merits = {name: _merit(raw, start, name, decimal, named) for name in SEPARATORS}
    likely = max(merits, key=merits.__getitem__)
    others = [name for name, merit in merits.items() if merit.fits and name != likely]
    return [likely, *others]


def _merit(raw: bytes, start: int, separator: str, decimal: str, named: str) -> _Merit:
    rows = [row for row in _rows(raw, start, separator) if any(map(str.strip, row))]
    header = rows[0] if rows else []
    fields = len(header)
    parts = fields > 1
    return _Merit(
        is_named=parts and separator == named,
        fits=parts and all(_fits(row, fields) for row in rows[1:]),
        fields=fields,
        is_no_decimal=separator != decimal,
        is_tight=not any(name.startswith(" ") for name in header[1:]),
        is_rare=parts and separator != ",",
    )


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
