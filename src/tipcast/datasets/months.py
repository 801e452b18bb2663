"""Prepared months: a dataset as one Parquet file a month, with a manifest so that a second run does nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import filelock
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from tipcast.compute.cpu import CpuFrames
from tipcast.config.errors import TipcastError, travelling
from tipcast.datasets import split
from tipcast.datasets.base import OUTSIDE_PERIOD, Dataset, Fragment, Listing, Period, timed

MANIFEST = "manifest.json"
VERSION = 1
LOCK = ".manifest.json.lock"
LOCK_S = 60.0
"""How long another job may keep the manifest to itself: it needs milliseconds."""


@dataclass(frozen=True)
class Written:
    """What the manifest says of a file."""

    rows: int
    bytes: int
    sha256: str
    row_groups: int
    recipe: str
    """Digest of everything the file depends on."""
    dropped: Mapping[str, int]


@dataclass(frozen=True)
class Month:
    """One file to be written."""

    name: str
    period: Period
    fragments: tuple[Fragment, ...]
    fields: Mapping[str, pa.Field]
    """Canonical name -> the file's column."""
    row_group_rows: int
    compression: str
    recipe: str
    """Digest of everything the file depends on."""


def plan(dataset: Dataset, listing: Listing, row_group_rows: int, compression: str) -> list[Month]:
    """Cut a listing into calendar months, each with the fragments that may hold rows of it, in time order."""
    months = []
    layout: dict[str, Any] = {"row_group_rows": row_group_rows, "compression": compression}
    start, stop = timed(listing.period)
    first, last = np.array([start, stop - 1], "datetime64[us]").astype("datetime64[M]")
    for month in np.arange(first, last + 1).astype(str):
        period = split.of_months(month)
        fragments = tuple(f for f in listing.fragments if split.overlap(timed(f.period), period))
        if fragments:
            parts = [[f.digest, f.part, f.rows, sorted(f.columns.items())] for f in fragments]
            depends = json.dumps([VERSION, period, layout, parts])
            recipe = hashlib.sha256(depends.encode()).hexdigest()
            fields = dataset.stored_columns({name for f in fragments for name in f.columns}, listing.facts)
            name = dataset.month_name(month, listing.facts)
            months.append(Month(name, period, fragments, fields, **layout, recipe=recipe))
    return months


@travelling
def write_month(dataset: Dataset, month: Month, out: str, token: str) -> Written:
    """Write one month, on a worker: the file appears whole or not at all. ``token`` is that of ``unfinished``."""
    filesystem, path = _located(out, month.name)
    part = f"{path}.{token}-{uuid.uuid4().hex[:8]}.tmp"
    filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    schema = pa.schema(month.fields.values())
    rows, dropped = 0, Counter[str]()
    with (
        filesystem.open(part, "wb") as file,
        pq.ParquetWriter(file, schema, compression=month.compression, write_page_checksum=True) as writer,
    ):
        for fragment in month.fragments:
            read = dataset.read(fragment, CpuFrames(), [name for name in month.fields if name in fragment.columns])
            time, (start, stop) = read[str(dataset.time)], timed(fragment.period)
            if month.period[0] <= start < month.period[1]:  # counted with the first month of the fragment
                dropped[OUTSIDE_PERIOD] += int(((time < start) | (time >= stop)).sum())
            inside = (time >= month.period[0]) & (time < month.period[1])
            columns = []
            for name, field in month.fields.items():
                if name not in read:
                    columns.append(pa.nulls(int(inside.sum()), field.type))
                    continue
                values = read[name][inside]
                if pa.types.is_timestamp(field.type):
                    values = values.view("datetime64[us]")
                columns.append(pa.array(values, from_pandas=True).cast(field.type, safe=False))
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=month.row_group_rows)
            rows += int(inside.sum())
    digest = _sha256(filesystem, part)
    filesystem.mv(part, path)
    with filesystem.open(path, "rb") as file:
        row_groups = pq.read_metadata(file).num_row_groups
    return Written(rows, filesystem.size(path), digest, row_groups, month.recipe, dict(+dropped))


@contextlib.contextmanager
def unfinished(out: str) -> Iterator[str]:
    """Yield a token for the names of unfinished files, which are removed if the block fails.

    The session of their writers belongs into the block, so that they have stopped by then.
    """
    token = uuid.uuid4().hex[:8]
    try:
        yield token
    except BaseException:
        with contextlib.suppress(OSError):
            filesystem, pattern = _located(out, f"*.{token}-*.tmp")
            for file in filesystem.glob(pattern):
                filesystem.rm_file(file)
        raise


def read_manifest(out: str) -> dict[str, Written]:
    """Return file name -> what the manifest in ``out`` says of it, empty where there is none; D020 it is not ours."""
    filesystem, path = _located(out, MANIFEST)
    try:
        files = json.loads(filesystem.cat_file(path))["files"]
        return {name: Written(**entry) for name, entry in files.items()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        fix = "choose another folder, or delete the file to prepare again"
        raise TipcastError("D020", path, "is not a manifest of prepared months", fix) from problem


def add_to_manifest(out: str, entries: Mapping[str, Written]) -> None:
    """Add entries to the manifest in ``out``, which is replaced as a whole.

    In a folder a file lock keeps other jobs out meanwhile. An object store has no locks: what another job writes
    between our reading and writing is lost, so give all entries of a job each time, not only the newest. D020 as
    ``read_manifest``; OSError: it cannot be written, or another job keeps the lock.
    """
    filesystem, path = _located(out, MANIFEST)
    # mode: whoever shares the folder by its group can take the lock
    lock = filelock.FileLock(_located(out, LOCK)[1], timeout=LOCK_S, mode=0o664)
    with lock if isinstance(filesystem, LocalFileSystem) else contextlib.nullcontext():
        files = read_manifest(out) | dict(entries)
        plain = {"version": VERSION, "files": {name: asdict(files[name]) for name in sorted(files)}}
        part = f"{path}.{uuid.uuid4().hex[:8]}.tmp"
        filesystem.pipe_file(part, json.dumps(plain, indent=2).encode())
        filesystem.mv(part, path)


def is_current(out: str, month: Month, manifest: Mapping[str, Written]) -> bool:
    """Whether a month's file is there, made by the same recipe, and unchanged since (by SHA-256)."""
    entry = manifest.get(month.name)
    if entry is None or entry.recipe != month.recipe:
        return False
    with contextlib.suppress(FileNotFoundError):
        return _sha256(*_located(out, month.name)) == entry.sha256
    return False


def _located(out: str, name: str) -> tuple[Any, str]:
    """Return the file system of a folder or address, and the path of a file in it."""
    filesystem, folder = fsspec.core.url_to_fs(out)
    return filesystem, f"{folder.rstrip('/')}/{name}"


def _sha256(filesystem: Any, path: str) -> str:
    with filesystem.open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
