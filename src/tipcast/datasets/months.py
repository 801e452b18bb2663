"""Prepared months: a dataset as one Parquet file a month, whose footer says what it was made of."""

import contextlib
import glob
import hashlib
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.core import url_to_fs

from tipcast.compute.frames import CpuFrames
from tipcast.config import disk
from tipcast.config.errors import TipcastError, travelling
from tipcast.config.gate import gate
from tipcast.datasets import address, periods
from tipcast.datasets.base import Dataset, Months
from tipcast.datasets.counts import OUTSIDE_PERIOD
from tipcast.datasets.listing import Listing
from tipcast.datasets.parquet import FOOTER_ENDS, Hashed
from tipcast.datasets.parts import Part, Period, timed

KEY = b"tipcast"
"""Of a footer's metadata, as JSON: ``rows``, ``sha256`` of all bytes before it, ``recipe``,
``dropped`` by reason.
"""
PIECE = 1 << 20
UNFINISHED = re.compile(r".+\.[0-9a-f]{8}-[0-9a-f]{8}\.tmp")
"""Names of unfinished files, as ``write_month`` makes them."""
VERSION = 2
"""Of what a recipe means: raise it with any change to the files."""


@dataclass(frozen=True)
class Month:
    """One file to be written."""

    name: str
    period: Period
    parts: tuple[Part, ...]
    fields: Mapping[str, pa.Field]
    """Canonical name -> the file's column."""
    layout: Mapping[str, Any]
    """``row_group_rows`` and ``compression``."""
    recipe: str
    """Digest of everything the file depends on."""


def plan(dataset: Months, listing: Listing, **layout: Any) -> list[Month]:
    """Cut a listing into calendar months, each with the parts that may hold rows of it, in time
    order.
    """
    months = []
    start, stop = timed(listing.period)
    first, last = np.array([start, stop - 1], "datetime64[us]").astype("datetime64[M]")

    for month in np.arange(first, last + 1).astype(str):
        period = periods.of_months(month)
        parts = tuple(part for part in listing.parts if periods.overlap(timed(part.period), period))
        if parts:
            contents = [
                [part.digest, part.extent, part.rows, sorted(part.columns.items())]
                for part in parts
            ]
            recipe = hashlib.sha256(
                json.dumps([VERSION, period, layout, contents]).encode()
            ).hexdigest()
            name, fields = dataset.month_file(
                month, {name for part in parts for name in part.columns}, listing.info
            )
            months.append(Month(name, period, parts, fields, layout, recipe))

    return months


@travelling
def write_month(dataset: Dataset, month: Month, out: str, token: str) -> dict[str, Any]:
    """Write one month, on a worker, whole or not at all; return its ``KEY``. ``token`` is that of
    ``unfinished``.
    """
    filesystem, path = url_to_fs(f"{out}/{month.name}")
    # Dask may give a lost worker's task to another one
    part = f"{path}.{token}-{uuid.uuid4().hex[:8]}.tmp"
    filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)

    with filesystem.open(part, "wb") as file:
        written = _write_rows(dataset, month, file)

    if address.scheme(out):
        filesystem.mv(part, path)
    else:
        Path(part).replace(path)  # a link of that name is replaced, and never followed

    return written


def _write_rows(dataset: Dataset, month: Month, file: BinaryIO) -> dict[str, Any]:
    """Write the rows of a month as Parquet into an open file; return its ``KEY``."""
    rows = 0
    strays = 0
    pages = Hashed(file)
    schema = pa.schema(month.fields.values())
    compression = month.layout["compression"]

    with pq.ParquetWriter(
        pages, schema, compression=compression, write_page_checksum=True
    ) as writer:
        gate("month")
        for part in month.parts:
            of_month = _read_month(dataset, month, part)
            writer.write_table(of_month.table, row_group_size=month.layout["row_group_rows"])
            rows += of_month.table.num_rows
            strays += of_month.strays

        written = {
            "rows": rows,
            "sha256": pages.digest.hexdigest(),
            "recipe": month.recipe,
            "dropped": {OUTSIDE_PERIOD: strays} if strays else {},
        }
        writer.add_key_value_metadata({KEY: json.dumps(written)})

    return written


@dataclass(frozen=True)
class _PartOfMonth:
    """What a part has for the file of a month."""

    table: pa.Table
    strays: int
    """Rows whose time is not in the period of the part's file; counted with its first month."""


def _read_month(dataset: Dataset, month: Month, part: Part) -> _PartOfMonth:
    """Read the rows of a part that lie in a month, as the columns of its file."""
    names = [name for name in month.fields if name in part.columns]
    columns = dataset.read(part, CpuFrames(), names)
    time = columns[str(dataset.time)]
    start, stop = timed(part.period)
    first, end = month.period

    strays = 0
    if first <= start < end:
        strays = int(((time < start) | (time >= stop)).sum())

    inside = np.flatnonzero((time >= first) & (time < end))
    table = pa.Table.from_arrays(
        [
            _column(columns[name][inside], field.type)
            if name in columns
            else pa.nulls(len(inside), field.type)
            for name, field in month.fields.items()
        ],
        schema=pa.schema(month.fields.values()),
    )
    return _PartOfMonth(table, strays)


def _column(values: Any, arrow_type: pa.DataType) -> pa.Array:
    # NaT becomes null.
    values = values.view("datetime64[us]") if pa.types.is_timestamp(arrow_type) else values
    return pa.array(values, from_pandas=True).cast(arrow_type, safe=False)


@contextlib.contextmanager
def unfinished(out: str) -> Iterator[str]:
    """Yield a token for the names of unfinished files, which go if the block, their writers'
    session, fails.
    """
    token = uuid.uuid4().hex[:8]
    try:
        yield token
    except BaseException:
        with contextlib.suppress(OSError):
            filesystem, folder = url_to_fs(out)
            for file in filesystem.glob(f"{glob.escape(folder)}/*.{token}-*.tmp"):
                filesystem.rm_file(file)
        raise


@contextlib.contextmanager
def locked_folder(out: str) -> Iterator[None]:
    """Keep other jobs out of a folder on a disk, and remove what killed ones left unfinished there.

    S011: another job writes into it. Stores, and disks that have no locks, keep nobody out.
    """
    if address.scheme(out):
        yield
        return
    with disk.locked_folder(Path(out), "another job is writing to it") as locked:
        if locked:
            _remove_unfinished(Path(out))
        yield


def _remove_unfinished(folder: Path) -> None:
    for path in folder.iterdir():
        if UNFINISHED.fullmatch(path.name) and not path.is_dir():
            path.unlink(missing_ok=True)


def current(out: str, month: Month) -> dict[str, Any] | None:
    """Return a month's ``KEY``, None if it is not there, is of another recipe or has changed since.

    Raises C011 if it is somebody else's.
    """
    filesystem, path = url_to_fs(f"{out}/{month.name}")
    if not address.scheme(out) and Path(path).is_symlink():
        fix = "use another folder, or remove the link"
        raise TipcastError(
            "C011", address.shown(f"{out}/{month.name}"), "is a link to another location", fix
        )

    try:
        with filesystem.open(path) as file:
            footer = pq.read_metadata(file)
            written: dict[str, Any] = json.loads(footer.metadata[KEY])
            if written["recipe"] != month.recipe:
                return None
            left = filesystem.size(path) - footer.serialized_size - FOOTER_ENDS
            digest = hashlib.sha256()
            file.seek(0)
            while piece := file.read(min(left, PIECE)):
                digest.update(piece)
                left -= len(piece)
            return written if digest.hexdigest() == written["sha256"] else None
    except (OSError, ValueError):  # not there, or damaged
        return None
    except (KeyError, TypeError) as problem:  # whole, without a ``KEY``
        fix = "use another folder, or move the file away"
        raise TipcastError(
            "C011", address.shown(f"{out}/{month.name}"), "was not written by prepare", fix
        ) from problem
