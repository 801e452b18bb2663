"""Bytes of CSV files: what is compressed in pieces, blocks that end where rows do, and quotes."""

import gzip
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from tipcast.config.errors import TipcastError
from tipcast.datasets import address

PIECE = 4 << 20
"""Bytes read at once to look at a file; a header is shorter."""
QUOTED = re.compile(rb'(?:^|(?<=[,\n]))"(?:[^"]++|"")*+("?)')
"""A field in quotes, whose group is empty where it goes on after the end."""


def pieces(uri: str, storage: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield a file's bytes, those of a ``.gz`` decompressed, ``PIECE`` at a time.

    Raises D004, D005, and what ``reaching`` raises.
    """
    where = address.shown(uri)
    begun = False

    with address.opened(uri, storage) as file:
        try:
            stream: Any = gzip.GzipFile(fileobj=file) if is_packed(uri) else file
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


def is_packed(uri: str) -> bool:
    """Whether a file is compressed with gzip, as its name says."""
    return address.last_name(uri).lower().endswith(".gz")


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
        within = quoted and ends_within_quotes(text)
        while within and (line := file.readline()):
            within = ends_within_quotes(b'"' + line)
        stop = file.tell()
        cut.append((start, stop - start))
        start = stop

    return cut


def ends_within_quotes(lines: bytes) -> bool:
    """Whether a field in quotes goes on after whole lines; a quote amid a field without quotes is a
    character.
    """
    values = np.frombuffer(b"\n" + lines, np.uint8)
    quotes = np.flatnonzero(values == ord('"'))
    # all of them quote, as nearly always: counting is faster
    if np.isin(values[quotes[::2] - 1], [*b',\n"']).all():
        return len(quotes) % 2 == 1
    return any(not field[1] for field in QUOTED.finditer(lines))


def last_open_quote(lines: bytes) -> int:
    """Return the offset of the last quote that is never closed; 0 where all are closed."""
    return max((field.start() for field in QUOTED.finditer(lines) if not field[1]), default=0)
