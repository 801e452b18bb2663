"""Parquet files of one schema as one file, row group by row group, so that one of them is in memory at a time."""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow.parquet as pq


@dataclass(frozen=True)
class Joined:
    """A file that was put together."""

    rows: int
    bytes: int
    sha256: str


class _Counted(io.RawIOBase):
    """Counts and digests what is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest, self._at = file, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, content: Any) -> int:
        self._file.write(content)
        self._digest.update(content)
        self._at += len(content)
        return len(content)

    def joined(self, rows: int) -> Joined:
        return Joined(rows, self._at, self._digest.hexdigest())


def concatenate(parts: Sequence[AbstractContextManager[BinaryIO]], target: BinaryIO, compression: str) -> Joined:
    """Write the rows of Parquet files, in their order, as one file.

    Parameters
    ----------
    parts
        The files, opened one after another; at least one, all of one schema. A single one is copied as it is.
    target
        A file open for writing.
    compression
        Of the new file, as pyarrow names it.

    Returns
    -------
    Joined

    Raises
    ------
    ValueError
        A part is no Parquet file, or its schema is another one.

    """
    out = _Counted(target)
    writer: pq.ParquetWriter | None = None
    rows = 0
    try:
        for part in parts:
            with part as file:
                source = pq.ParquetFile(file, page_checksum_verification=True)
                rows += source.metadata.num_rows
                if len(parts) == 1:
                    file.seek(0)
                    shutil.copyfileobj(file, out)
                    break
                if writer is None:
                    writer = pq.ParquetWriter(
                        out, source.schema_arrow, compression=compression, write_page_checksum=True
                    )
                for at in range(source.num_row_groups):
                    writer.write_table(source.read_row_group(at))
    finally:
        if writer is not None:
            writer.close()
    return out.joined(rows)
