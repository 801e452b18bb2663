"""Parquet files of one schema as one file: row groups are copied as they are, only the footer is written anew.

So every worker encodes its own rows, and putting them together costs no more than copying bytes. Field numbers are
those of Parquet's ``parquet.thrift``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, BinaryIO

from tipcast.data import thrift

MAGIC = b"PAR1"
PIECE = 8 << 20
"""Bytes copied at a time."""
SCHEMA, ROWS, ROW_GROUPS = 2, 3, 4
"""Fields of FileMetaData."""
COLUMNS, GROUP_OFFSET, ORDINAL = 1, 5, 7
"""Fields of RowGroup."""
CHUNK_OFFSET, CHUNK_META, OFFSET_INDEX, COLUMN_INDEX = 2, 3, 4, 6
"""Fields of ColumnChunk."""
PAGE_OFFSETS = (9, 10, 11, 14)
"""Fields of ColumnMetaData: data pages, index pages, dictionary page, bloom filter."""
MOST_ORDINAL = 2**15 - 1


@dataclass(frozen=True)
class Joined:
    """A file that was put together."""

    rows: int
    row_groups: int
    bytes: int
    sha256: str


class _Out:
    """Counts and digests what is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest, self.at = file, hashlib.sha256(), 0

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self._digest.update(content)
        self.at += len(content)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def concatenate(parts: Iterable[AbstractContextManager[BinaryIO]], target: BinaryIO) -> Joined:
    """Write the row groups of Parquet files, in their order, as one file.

    Parameters
    ----------
    parts
        The files, opened one after another; at least one, all of one schema.
    target
        A file open for writing.

    Returns
    -------
    Joined

    Raises
    ------
    ValueError
        A part is no Parquet file, or its schema is another one.

    """
    out = _Out(target)
    out.write(MAGIC)
    whole: list[thrift.Field] = []
    for part in parts:
        with part as file:
            footer, stop = _footer(file)
            _shift(footer, out.at - len(MAGIC))
            file.seek(len(MAGIC))
            for start in range(len(MAGIC), stop, PIECE):
                out.write(file.read(min(PIECE, stop - start)))
        if not whole:
            whole = footer
            continue
        if thrift.get(footer, SCHEMA) != thrift.get(whole, SCHEMA):
            raise ValueError("parts of one file have different schemas")
        thrift.get(whole, ROW_GROUPS)[1].extend(thrift.get(footer, ROW_GROUPS)[1])
        thrift.put(whole, ROWS, thrift.get(whole, ROWS) + thrift.get(footer, ROWS))
    groups = thrift.get(whole, ROW_GROUPS)[1]
    for ordinal, group in enumerate(groups):
        group[:] = [field for field in group if field[0] != ORDINAL]
        if len(groups) <= MOST_ORDINAL:
            group.append([ORDINAL, thrift.I16, ordinal])
    end = thrift.write(whole)
    out.write(end + len(end).to_bytes(4, "little") + MAGIC)
    return Joined(thrift.get(whole, ROWS), len(groups), out.at, out.sha256)


def _footer(file: BinaryIO) -> tuple[list[thrift.Field], int]:
    """Return a file's metadata, and where they begin."""
    size = file.seek(0, 2)
    file.seek(max(size - 8, 0))
    tail = file.read(8)
    start = size - 8 - int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or start < len(MAGIC):
        raise ValueError("a part is no Parquet file")
    file.seek(start)
    return thrift.Reader(file.read(size - 8 - start)).struct(), start


def _shift(footer: list[thrift.Field], by: int) -> None:
    """Add to every offset of a footer."""
    for group in thrift.get(footer, ROW_GROUPS)[1]:
        _add(group, (GROUP_OFFSET,), by)
        for chunk in thrift.get(group, COLUMNS)[1]:
            _add(chunk, (CHUNK_OFFSET, OFFSET_INDEX, COLUMN_INDEX), by)
            _add(thrift.get(chunk, CHUNK_META), PAGE_OFFSETS, by)


def _add(fields: list[thrift.Field], numbers: tuple[int, ...], by: int) -> None:
    for field in fields:
        if field[0] in numbers and _is_offset(field):
            field[2] += by


def _is_offset(field: list[Any]) -> bool:
    """Whether an offset points anywhere: writers leave some at 0."""
    return bool(field[2])
