"""Feather files, which are Arrow's IPC files, and IPC streams, which end in ``.arrow`` too."""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import pyarrow as pa
import pyarrow.ipc

from tipcast.config.errors import TipcastError
from tipcast.datasets import address
from tipcast.datasets.arrow_part import ArrowPart
from tipcast.datasets.csv_bytes import pieces
from tipcast.datasets.listing import ScanRequest, seen_names
from tipcast.datasets.parquet import MERGED_ROWS
from tipcast.datasets.parts import Part, can_join, merged

_IPC_FILE = b"ARROW1"
_OLD_FEATHER = b"FEA1"


@dataclass(frozen=True, kw_only=True)
class FeatherPart(ArrowPart):
    """Some row batches of an IPC file, or all rows of an IPC stream."""

    batches: tuple[int, ...]
    """Numbers of the batches; empty for a stream."""
    file_format = "feather"

    @property
    def extent(self) -> tuple[int, ...]:
        return self.batches

    def joined_with(self, other: Part) -> Self | None:
        if not isinstance(other, FeatherPart) or not can_join(self, other):
            return None
        rows = (self.rows or 0) + (other.rows or 0)
        return replace(self, batches=(*self.batches, *other.batches), rows=rows)

    def table(self, names: Sequence[str]) -> pa.Table:
        fields = [self.names.index(name) for name in names]
        with _reader(self.uri, self.storage, fields) as reader:
            if self.batches:
                batches = [reader.get_batch(number) for number in self.batches]
                table = pa.Table.from_batches(batches)
            else:
                table = reader.read_all()

        if table.num_rows != self.rows:
            raise address.changed(self.uri)
        return table.select(list(names))


@dataclass(frozen=True)
class FeatherScan:
    """What is learned of a Feather file before any part of it is read."""

    digest: str
    schema: pa.Schema
    names: list[tuple[str, str]]
    """Name that the dataset sees, and the file's own, of all columns."""
    parts: tuple[FeatherPart, ...]


def scan_feather(uri: str, request: ScanRequest) -> FeatherScan:
    """Read the schema of a Feather file and the rows of its batches, of one column.

    A local file is read whole for the digest.

    Raises D003 for an empty file, D004 for Feather's first version, D005 if it is another format or
    damaged, D009 without rows.
    """
    where = address.shown(uri)
    storage = address.storage(uri, request.storage)
    if not address.size(uri, storage):
        raise TipcastError("D003", where, "is empty", "remove it or download it again")

    begin = next(pieces(uri, storage), b"")
    address.refuse_pointer(uri, begin)
    if begin.startswith(_OLD_FEATHER):
        what = "is Feather version 1, which is not supported"
        fix = "write it again with pyarrow.feather.write_feather"
        raise TipcastError("D004", where, what, fix)

    is_file = begin.startswith(_IPC_FILE)
    with _reader(uri, storage) as reader:
        schema = reader.schema
    with _reader(uri, storage, [0]) as reader:
        rows = _rows_of_batches(reader) if is_file else [reader.read_all().num_rows]
    if not sum(rows):
        raise TipcastError("D009", where, "has no rows", "remove it or download it again")

    names = seen_names(schema.names, request, where)
    digest = _digest(uri, storage)
    whole = FeatherPart(
        uri=uri,
        digest=digest,
        columns=dict(names),
        storage=storage,
        column_names=dict(request.names),
        names=tuple(schema.names),
        batches=(),
        rows=sum(rows),
    )
    if not is_file:
        return FeatherScan(digest, schema, names, (whole,))

    batches = (
        replace(whole, batches=(number,), rows=count) for number, count in enumerate(rows) if count
    )
    return FeatherScan(digest, schema, names, merged(batches, MERGED_ROWS))


def _rows_of_batches(reader: Any) -> list[int]:
    return [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]


def _digest(uri: str, storage: Mapping[str, Any]) -> str:
    """Return a digest of a file's bytes, or of what a store says of them."""
    if address.scheme(uri):
        return hashlib.sha256(address.identity(uri, storage).encode()).hexdigest()

    digest = hashlib.sha256()
    for piece in pieces(uri, storage):
        digest.update(piece)
    return digest.hexdigest()


@contextmanager
def _reader(
    uri: str, storage: Mapping[str, Any], fields: Sequence[int] | None = None
) -> Iterator[Any]:
    """Open a file for reading some of its columns, by their places.

    Raises D001 if the file is gone, D005 if it is damaged, D022 if it is not reached.
    """
    options = pa.ipc.IpcReadOptions(
        use_threads=False, included_fields=None if fields is None else sorted(fields)
    )
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_opened(uri, storage))
        try:
            begin = file.read(len(_IPC_FILE))
            file.seek(0)
            if begin == _IPC_FILE:
                yield pa.ipc.open_file(file, options=options)
            else:
                yield pa.ipc.open_stream(file, options=options)
        except (OSError, ValueError, NotImplementedError) as problem:
            address.size(uri, storage)  # a remote end that fails looks like damage
            what = f"is not an Arrow file, or is damaged ({problem})"
            fix = "download or write it again"
            raise TipcastError("D005", address.shown(uri), what, fix) from problem


def _opened(uri: str, storage: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """Open a remote file; a local one is mapped into memory by its path."""
    if address.scheme(uri):
        return address.opened(uri, storage)
    with address.reaching(uri):
        file: AbstractContextManager[Any] = pa.memory_map(uri, "r")
    return file
