"""Parquet files: what their footers tell without reading a row, and reading row groups."""

import functools
import hashlib
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from tipcast.compute.base import Array, Frames
from tipcast.config.errors import TipcastError
from tipcast.datasets import address
from tipcast.datasets.base import COLUMN_NAMES, Fragment, Period, ScanRequest, merged, seen_names

FOOTER_ENDS = 8
"""Bytes of its length and the magic word after a footer."""
POINTER_SIZE = 1 << 15
"""A file of more bytes cannot be a pointer to data elsewhere."""
MERGED_ROWS = 300_000
"""Small row groups are read together up to this many rows."""


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
        found = {}
        for field in self.schema:
            known = getattr(field.type, "extension_name", None)
            name = known or (field.metadata or {}).get(b"ARROW:extension:name", b"").decode()
            storage = field.type.storage_type if known else field.type
            found[field.name] = pa.opaque(storage, name, "Arrow") if name else field.type
        return found

    @functools.cached_property
    def names(self) -> list[tuple[str, str]]:
        """Name that the dataset sees, and the file's own, of all columns."""
        return seen_names(self.schema.names, self.request, address.shown(self.uri))

    @functools.cached_property
    def index(self) -> frozenset[str]:
        """Names of columns that were a DataFrame's index when it was written, but for those that a
        user maps.
        """
        told = json.loads((self.schema.metadata or {}).get(b"pandas", b"{}")).get(
            "index_columns", ()
        )
        # where a writer left out what pandas told
        unnamed = re.compile(r"__index_level_\d+__|__null_dask_index__")
        own = {name for seen, name in self.names if seen not in self.request.names}
        return frozenset(name for name in own if name in told or unnamed.fullmatch(name))

    @property
    def rows(self) -> int:
        """Of the file."""
        return int(self.metadata.num_rows)

    @functools.cached_property
    def nulls(self) -> dict[str, int]:
        """Rows without a value of each column that all row groups tell it of."""
        counts: dict[str, list[int | None]] = defaultdict(list)
        for group, at in itertools.product(
            range(self.metadata.num_row_groups), range(self.metadata.num_columns)
        ):
            chunk = self.metadata.row_group(group).column(at)
            told = chunk.statistics is not None and chunk.statistics.has_null_count
            counts[chunk.path_in_schema].append(chunk.statistics.null_count if told else None)
        empty = {field.name: self.rows for field in self.schema if pa.types.is_null(field.type)}
        return {
            name: sum(filter(None, rows)) for name, rows in counts.items() if None not in rows
        } | empty

    def fragments(self, columns: Mapping[str, str], period: Period | None) -> tuple[Fragment, ...]:
        """Return the file's fragments: neighbouring row groups of together at most ``MERGED_ROWS``
        rows.
        """
        storage = address.storage(self.uri, self.request.storage)
        options = {"storage": storage, COLUMN_NAMES: dict(self.request.names)}
        rows = [
            self.metadata.row_group(group).num_rows for group in range(self.metadata.num_row_groups)
        ]
        found = (
            Fragment(self.uri, "parquet", (group,), columns, period, self.digest, number, options)
            for group, number in enumerate(rows)
            if number
        )

        return merged(found, MERGED_ROWS)


class Hashed:
    """A file that digests and counts what is written into it; pyarrow asks for no more of one."""

    closed = False

    def __init__(self, file: Any) -> None:
        self.file, self.digest, self.size = file, hashlib.sha256(), 0

    def write(self, content: Any) -> None:
        self.file.write(content)
        self.digest.update(content)
        self.size += len(content)


def read_footer(uri: str, request: ScanRequest) -> Footer:
    """Read a file's footer; D001 missing, D003 empty, D005 not Parquet or damaged, D009 no rows,
    D022 not reached.
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
            chunks = itertools.product(range(metadata.num_row_groups), range(metadata.num_columns))
            pages = sum(
                metadata.row_group(group).column(at).total_compressed_size for group, at in chunks
            )
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


def is_number(kind: pa.DataType) -> bool:
    """Whether a column's type is a number, or nothing at all."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
    )


@contextmanager
def undamaged(fragment: Fragment) -> Iterator[None]:
    """Tell what a reader of Parquet raises in one line: D001 gone, D005 damaged, D022 not
    reached.
    """
    where = address.shown(fragment.uri)
    try:
        yield
    except FileNotFoundError as problem:
        raise TipcastError("D001", where, "is gone", "put the file back") from problem
    except (OSError, ValueError, RuntimeError, NotImplementedError) as problem:
        if "cuda error" in str(problem).lower():
            raise
        # a remote end that fails looks like damage: see whether it still answers
        if address.scheme(fragment.uri):
            address.size(fragment.uri, fragment.options["storage"])
        groups = " to ".join(map(str, dict.fromkeys((fragment.part[0], fragment.part[-1]))))
        raise TipcastError(
            "D005", where, f"row groups {groups} are damaged", "download or write it again"
        ) from problem


def read(fragment: Fragment, columns: Sequence[str], frames: Frames) -> dict[str, Array]:
    """Read columns of a fragment onto the frames' device; errors as ``undamaged``, and D005 for a
    file that changed.
    """
    with undamaged(fragment):
        found = frames.read_parquet(
            fragment.uri, fragment.part, columns, fragment.options["storage"]
        )
    if any(len(values) != fragment.rows for values in found.values()):
        raise address.changed(fragment.uri)
    return found


def read_host(fragment: Fragment, names: Sequence[str]) -> pa.Table:
    """Read columns of a fragment on the host, of the types that the file has; errors as
    ``undamaged``.
    """
    with (
        undamaged(fragment),
        fsspec.open(fragment.uri, "rb", **fragment.options["storage"]) as file,
    ):
        table = pq.ParquetFile(file).read_row_groups(
            list(fragment.part), columns=list(names), use_threads=False
        )
        return table.select(list(names))
