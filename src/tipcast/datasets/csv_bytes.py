"""Bytes of text files: what is compressed or of another encoding in pieces, blocks that end where
rows do, and quotes.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from tipcast.config.errors import TipcastError
from tipcast.datasets import address
from tipcast.datasets.decoding import decoded
from tipcast.datasets.dialect import Dialect
from tipcast.datasets.packing import packing_of

PIECE = 4 << 20
"""Bytes read at once to look at a file; a header is shorter."""


def pieces(uri: str, storage: Mapping[str, Any], encoding: str = "utf-8") -> Iterator[bytes]:
    """Yield a text file's bytes in UTF-8, decompressed, about ``PIECE`` at a time.

    The bytes of a text that is said to be UTF-8 are not looked at. Raises D004, D005, what
    ``decoded`` raises for another encoding, and what ``reaching`` raises.
    """
    with address.opened(uri, storage) as file:
        stored = _unpacked(uri, storage, file)
        if Dialect(encoding=encoding).is_utf8:
            yield from stored
        else:
            yield from decoded(stored, encoding, address.shown(uri))


def _unpacked(uri: str, storage: Mapping[str, Any], file: BinaryIO) -> Iterator[bytes]:
    """Yield the bytes of an open file, decompressed as its name says.

    Raises D004 if it is not compressed so, D005 if it is damaged.
    """
    packing = packing_of(uri)
    if packing is None:
        while data := file.read(PIECE):
            yield data
        return

    where = address.shown(uri)
    begun = False
    try:
        stream = packing.open(file, uri)
        while data := stream.read(PIECE):
            begun = True
            yield data
    except packing.faults as problem:
        if address.scheme(uri):
            address.size(uri, storage)  # a remote end that fails looks like damage

        with address.opened(uri, storage) as again:  # some servers do not let one seek back
            begin = again.read(address.POINTER_BYTES)
        address.refuse_pointer(uri, begin)
        if not begun and not begin.startswith(packing.magic):
            what = f"is not compressed with {packing.name} though its name ends in {packing.ending}"
            fix = f"rename it to end without {packing.ending}"
            raise TipcastError("D004", where, what, fix) from problem

        what = f"is a {packing.name} file that is truncated or damaged"
        raise TipcastError("D005", where, what, "download it again") from problem


def is_converted(uri: str, encoding: str) -> bool:
    """Whether the text of a file is other bytes than the file: it is read from its beginning."""
    return packing_of(uri) is not None or not Dialect(encoding=encoding).is_utf8


def blocks(
    file: BinaryIO,
    start: int,
    size: int,
    block_bytes: int,
    *,
    quoted: bool = False,
    separator: str = ",",
) -> list[tuple[int, int]]:
    """Cut the rows from ``start`` on into offsets and lengths of about ``block_bytes`` that end at
    newlines.

    With ``quoted`` the file is read, and no newline within quotes ends a block.
    """
    cut = []
    while start < size:
        file.seek(start if quoted else min(start + block_bytes, size) - 1)
        text = (file.read(block_bytes) if quoted else b"") + file.readline()
        within = quoted and ends_within_quotes(text, separator)
        while within and (line := file.readline()):
            within = ends_within_quotes(b'"' + line, separator)
        stop = file.tell()
        cut.append((start, stop - start))
        start = stop

    return cut


@functools.cache
def quoted_field(separator: str) -> re.Pattern[bytes]:
    """Return the pattern of a field in quotes, whose group is empty where it goes on after the
    end.
    """
    before = re.escape(separator).encode()
    return re.compile(rb"(?:^|(?<=[" + before + rb'\n]))"(?:[^"]++|"")*+("?)')


def ends_within_quotes(lines: bytes, separator: str = ",") -> bool:
    """Whether a field in quotes goes on after whole lines; a quote amid a field without quotes is a
    character.
    """
    values = np.frombuffer(b"\n" + lines, np.uint8)
    quotes = np.flatnonzero(values == ord('"'))
    # all of them quote, as nearly always: counting is faster
    if np.isin(values[quotes[::2] - 1], [ord(separator), *b'\n"']).all():
        return len(quotes) % 2 == 1
    return any(not field[1] for field in quoted_field(separator).finditer(lines))


def last_open_quote(lines: bytes, separator: str = ",") -> int:
    """Return the offset of the last quote that is never closed; 0 where all are closed."""
    fields = quoted_field(separator).finditer(lines)
    return max((field.start() for field in fields if not field[1]), default=0)
