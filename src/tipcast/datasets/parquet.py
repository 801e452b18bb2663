"""Parquet files: what their footers tell without reading a row, and parts of some row groups."""

import functools
import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Self

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from tipcast.compute.base import Array, Frames
from tipcast.config.errors import TipcastError
from tipcast.datasets import address
from tipcast.datasets.arrow_types import index_columns, plain_text
from tipcast.datasets.listing import ScanRequest, seen_names
from tipcast.datasets.parts import CsvTypes, FilePart, Part, Period, can_join, merged
from tipcast.datasets.text_form import table_in_one_form

FOOTER_ENDS = 8
"""Bytes of its length and the magic word after a footer."""
POINTER_SIZE = 1 << 15
"""A file of more bytes cannot be a pointer to data elsewhere."""
MERGED_ROWS = 300_000
"""Small row groups are read together up to this many rows."""
LARGE_BYTES = 1 << 24
"""Content of at least this size is digested in a thread while it is written."""


@dataclass(frozen=True)
class Footer:
    """What a file's footer tells."""

    uri: str
    metadata: Any
    """pyarrow's."""
    digest: str
    """SHA-256 over the footer's bytes and the file's size."""
    request: ScanRequest
    """What is asked of the file."""

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self.metadata.schema.to_arrow_schema()

    @functools.cached_property
    def types(self) -> dict[str, pa.DataType]:
        """Type of each column; of an extension, as pandas' periods, the same whether or not this
        process knows it.
        """
        types = {}
        for field in self.schema:
            extension = getattr(field.type, "extension_name", None)
            name = extension or (field.metadata or {}).get(b"ARROW:extension:name", b"").decode()
            storage = field.type.storage_type if extension else field.type
            types[field.name] = pa.opaque(storage, name, "Arrow") if name else field.type

        return types

    @functools.cached_property
    def names(self) -> list[tuple[str, str]]:
        """Name that the dataset sees, and the file's own, of all columns."""
        return seen_names(self.schema.names, self.request, address.shown(self.uri))

    @functools.cached_property
    def index(self) -> frozenset[str]:
        """Names of columns that were a DataFrame's index when it was written, but for those that a
        user maps.
        """
        unmapped = {name for seen, name in self.names if seen not in self.request.names}
        return index_columns(self.schema) & unmapped

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return int(self.metadata.num_rows)

    @functools.cached_property
    def nulls(self) -> dict[str, int]:
        """Rows without a value of each column that all row groups tell it of."""
        counts: dict[str, list[int | None]] = defaultdict(list)
        for group, at in itertools.product(
            range(self.metadata.num_row_groups), range(self.metadata.num_columns)
        ):
            chunk = self.metadata.row_group(group).column(at)
            has_count = chunk.statistics is not None and chunk.statistics.has_null_count
            counts[chunk.path_in_schema].append(chunk.statistics.null_count if has_count else None)

        empty = {field.name: self.rows for field in self.schema if pa.types.is_null(field.type)}
        return {
            name: sum(filter(None, rows)) for name, rows in counts.items() if None not in rows
        } | empty

    def parts(self, columns: Mapping[str, str], period: Period | None) -> tuple["ParquetPart", ...]:
        """Return the file's parts: neighbouring row groups of together at most ``MERGED_ROWS``
        rows.
        """
        whole = ParquetPart(
            uri=self.uri,
            digest=self.digest,
            columns=columns,
            period=period,
            storage=address.storage(self.uri, self.request.storage),
            column_names=dict(self.request.names),
            row_groups=(),
        )
        rows = [
            self.metadata.row_group(group).num_rows for group in range(self.metadata.num_row_groups)
        ]
        groups = (
            replace(whole, row_groups=(group,), rows=number)
            for group, number in enumerate(rows)
            if number
        )

        return merged(groups, MERGED_ROWS)


@dataclass(frozen=True, kw_only=True)
class ParquetPart(FilePart):
    """Some row groups of a Parquet file."""

    row_groups: tuple[int, ...]
    file_format = "parquet"
    typed = True

    @property
    def extent(self) -> tuple[int, ...]:
        return self.row_groups

    def joined_with(self, other: Part) -> Self | None:
        if not isinstance(other, ParquetPart) or not can_join(self, other):
            return None
        rows = (self.rows or 0) + (other.rows or 0)
        return replace(self, row_groups=(*self.row_groups, *other.row_groups), rows=rows)

    def read(self, frames: Frames, columns: Sequence[str] | None = None) -> dict[str, Array]:
        """Read columns onto the frames' device.

        Raises what ``undamaged`` raises, and D005 for a file that has changed.
        """
        names = self.columns if columns is None else {name: self.columns[name] for name in columns}
        if not names:
            return {}

        with self.undamaged():
            arrays = frames.read_parquet(
                self.uri, self.row_groups, list(names.values()), self.storage
            )
        if any(len(values) != self.rows for values in arrays.values()):
            raise address.changed(self.uri)

        return {name: arrays[spelling] for name, spelling in names.items()}

    def read_arrow(self, types: Mapping[str, pa.DataType | None]) -> pa.Table:
        spellings = [self.columns[name] for name in types]
        with self.undamaged(), fsspec.open(self.uri, "rb", **self.storage) as file:
            table = pq.ParquetFile(file).read_row_groups(
                list(self.row_groups), columns=spellings, use_threads=False
            )

        texts = [plain_text(table[spelling]) for spelling in spellings]
        table = pa.Table.from_arrays(texts, names=list(types))
        return table_in_one_form(table, address.shown(self.uri))

    def read_arrays_and_table(
        self, frames: Frames, array_columns: Sequence[str], table_columns: Sequence[str]
    ) -> tuple[dict[str, Array], pa.Table]:
        table = self.read_arrow(dict.fromkeys(table_columns)) if table_columns else pa.table({})
        return self.read(frames, array_columns), table

    def read_as_stored(
        self, choose: Callable[[Sequence[str]], list[str]], csv_types: CsvTypes
    ) -> pa.Table:
        """Read columns of the types that the file has, without its metadata.

        Raises what ``undamaged`` raises.
        """
        remote = address.scheme(self.uri)
        with (
            self.undamaged(),
            fsspec.open(self.uri, "rb", **self.storage)
            if remote
            else nullcontext(self.uri) as source,
        ):
            file = pq.ParquetFile(source, memory_map=not remote, page_checksum_verification=True)
            names = file.schema_arrow.names
            chosen = choose(names)
            # then no name is looked up: a dot in one would be taken for a path into a struct
            columns = None if chosen == names else chosen
            table = file.read_row_groups(list(self.row_groups), columns=columns, use_threads=False)
            return table.select(chosen).replace_schema_metadata(None)

    @contextmanager
    def undamaged(self) -> Iterator[None]:
        """Say in one line what a reader of Parquet raises.

        Raises D001 if the file is gone, D005 if it is damaged, D022 if it is not reached.
        """
        where = address.shown(self.uri)
        try:
            yield
        except FileNotFoundError as problem:
            raise TipcastError("D001", where, "no longer exists", "restore the file") from problem
        except (OSError, ValueError, RuntimeError, NotImplementedError) as problem:
            if "cuda error" in str(problem).lower():
                raise
            # a remote end that fails looks like damage: see whether it still answers
            if address.scheme(self.uri):
                address.size(self.uri, self.storage)

            ends = dict.fromkeys((self.row_groups[0], self.row_groups[-1]))
            groups = " to ".join(map(str, ends))
            what = f"row groups {groups} are damaged"
            raise TipcastError("D005", where, what, "download or write it again") from problem


class Hashed:
    """A file that digests and counts what is written into it; pyarrow asks for no more of one."""

    closed = False

    def __init__(self, file: Any) -> None:
        self.file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, content: Any) -> None:
        self.size += len(content)
        if len(content) < LARGE_BYTES:
            self.digest.update(content)
            self.file.write(content)
            return

        with ThreadPoolExecutor(1) as digesting:
            digested = digesting.submit(self.digest.update, content)
            self.file.write(content)
        digested.result()


def read_footer(uri: str, request: ScanRequest) -> Footer:
    """Read a file's footer.

    Raises D001 for a missing file, D003 for an empty one, D005 if it is not Parquet or is damaged,
    D009 without rows, D022 if it is not reached.
    """
    where = address.shown(uri)
    storage = address.storage(uri, request.storage)
    with address.opened(uri, storage) as file:
        address.seekable(uri, file)
        size = file.seek(0, 2)
        if size == 0:
            raise TipcastError("D003", where, "is empty", "remove it or download it again")

        if size < POINTER_SIZE:
            file.seek(0)
            address.refuse_pointer(uri, file.read(address.POINTER_BYTES))

        try:
            metadata = pq.read_metadata(file)
            metadata.schema.to_arrow_schema()
            pages = _size_of_pages(metadata)
        except (OSError, ValueError, NotImplementedError) as problem:
            address.size(uri, storage)  # a remote end that fails looks like damage
            what = "is not a Parquet file, or its footer is damaged"
            raise TipcastError("D005", where, what, "download or write it again") from problem

        file.seek(size - metadata.serialized_size - FOOTER_ENDS)
        footer = file.read()

    if pages > size - len(footer):  # so that no worker has to find out
        raise TipcastError(
            "D005", where, "is shorter than its Parquet footer says", "download or write it again"
        )
    if metadata.num_rows == 0:
        raise TipcastError("D009", where, "has no rows", "remove it or download it again")

    return Footer(
        uri, metadata, hashlib.sha256(footer + size.to_bytes(8, "little")).hexdigest(), request
    )


def _size_of_pages(metadata: pq.FileMetaData) -> int:
    """Return the bytes of all values, as a footer tells."""
    chunks = itertools.product(range(metadata.num_row_groups), range(metadata.num_columns))
    sizes = [metadata.row_group(group).column(at).total_compressed_size for group, at in chunks]
    return sum(sizes)
