"""Prepared months: a dataset as one Parquet file a month, with a manifest so that a second run does nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import filelock
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from tipcast.compute.base import Frames
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


def read_manifest(out: str) -> dict[str, Written]:
    """Return file name -> what the manifest in ``out`` says of it, empty where there is none; D020 it is not ours."""
    filesystem, path = _located(out, MANIFEST)
    try:
        files = json.loads(filesystem.cat_file(path))["files"]
        return {name: Written(**entry) for name, entry in files.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        fix = "choose another folder, or delete the file to prepare again"
        raise TipcastError("D020", path, "is not a manifest of prepared months", fix) from problem


def _located(out: str, name: str) -> tuple[Any, str]:
    """Return the file system of a folder or address, and the path of a file in it."""
    filesystem, folder = fsspec.core.url_to_fs(out)
    return filesystem, f"{folder.rstrip('/')}/{name}"


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
        unfinished = f"{path}.{uuid.uuid4().hex[:8]}.tmp"
        filesystem.pipe_file(unfinished, json.dumps(plain, indent=2).encode())
        filesystem.mv(unfinished, path)


def is_current(out: str, name: str, recipe: str, manifest: Mapping[str, Written]) -> bool:
    """Whether a file is there, made by the same recipe, and unchanged since (by SHA-256)."""
    entry = manifest.get(name)
    if entry is None or entry.recipe != recipe:
        return False
    filesystem, path = _located(out, name)
    return (
        bool(filesystem.exists(path))
        and filesystem.size(path) == entry.bytes
        and sha256(filesystem, path) == entry.sha256
    )


def sha256(filesystem: Any, path: str) -> str:
    """Return the SHA-256 of a file on an fsspec file system, in hexadecimal digits."""
    with filesystem.open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Layout:
    """How the files are written."""

    row_group_rows: int
    compression: str


@dataclass(frozen=True)
class Month:
    """One file to be written."""

    name: str
    period: Period
    fragments: tuple[Fragment, ...]
    recipe: str
    """Digest of everything the file depends on."""


def plan(dataset: Dataset, listing: Listing, layout: Layout) -> list[Month]:
    """Cut a listing into calendar months, each with the fragments that may hold rows of it, in time order."""
    months = []
    start, stop = timed(listing.period)
    first, last = np.array([start, stop - 1], "datetime64[us]").astype("datetime64[M]")
    for name in np.arange(first, last + 1).astype(str):
        period = split.of_months(name)
        fragments = tuple(f for f in listing.fragments if split.overlap(timed(f.period), period))
        if fragments:
            depends = [
                VERSION,
                period,
                asdict(layout),
                [[f.digest, f.part, f.rows, sorted(f.columns.items())] for f in fragments],
            ]
            recipe = hashlib.sha256(json.dumps(depends).encode()).hexdigest()
            months.append(Month(dataset.month_name(name, listing.facts), period, fragments, recipe))
    return months


@travelling
def write_month(
    dataset: Dataset, month: Month, out: str, layout: Layout, facts: Mapping[str, Any], frames: Frames, token: str
) -> Written:
    """Write one month: the task that a worker runs; the file appears whole or not at all.

    ``facts`` are the listing's; ``token`` names the job's unfinished files, so that two jobs do not share them.
    """
    filesystem, path = _located(out, month.name)
    unfinished = f"{path}.{token}-{uuid.uuid4().hex[:8]}.tmp"
    there = {name for fragment in month.fragments for name in fragment.columns}
    fields = dataset.stored_columns(there, facts)
    schema = pa.schema(fields.values())
    rows, dropped = 0, Counter[str]()
    with (
        filesystem.open(unfinished, "wb") as file,
        pq.ParquetWriter(file, schema, compression=layout.compression, write_page_checksum=True) as writer,
    ):
        for fragment in month.fragments:
            table, lost = _month_rows(dataset, fragment, month.period, fields, frames)
            dropped.update(lost)
            writer.write_table(table, row_group_size=layout.row_group_rows)
            rows += table.num_rows
    digest = sha256(filesystem, unfinished)
    filesystem.mv(unfinished, path)
    with filesystem.open(path, "rb") as file:
        row_groups = pq.read_metadata(file).num_row_groups
    return Written(rows, filesystem.size(path), digest, row_groups, month.recipe, dict(dropped))


def discard(out: str, unfinished: Sequence[Month], token: str) -> None:
    """Remove what a job that failed had begun to write; the months that are whole stay."""
    for month in unfinished:
        filesystem, path = _located(out, month.name)
        with contextlib.suppress(OSError):
            for file in filesystem.glob(f"{path}.{token}-*.tmp"):
                filesystem.rm_file(file)


def _month_rows(
    dataset: Dataset, fragment: Fragment, period: Period, fields: Mapping[str, pa.Field], frames: Frames
) -> tuple[pa.Table, dict[str, int]]:
    """Read what of a fragment belongs to a month; only times that no month can hold are dropped."""
    read = dataset.read(fragment, frames, [name for name in fields if name in fragment.columns])
    time = read[str(dataset.time)]
    inside = (time >= period[0]) & (time < period[1])
    lost: dict[str, int] = {}
    start, stop = timed(fragment.period)
    if period[0] <= start < period[1]:  # counted with the first month the fragment belongs to
        stray = int(((time < start) | (time >= stop)).sum())
        lost = {OUTSIDE_PERIOD: stray} if stray else {}
    rows = int(inside.sum())
    arrays = []
    for name, field in fields.items():
        if name not in read:
            arrays.append(pa.nulls(rows, field.type))
            continue
        values = read[name][inside]
        if pa.types.is_timestamp(field.type):
            values = values.view("datetime64[us]")
        arrays.append(pa.array(values, from_pandas=True).cast(field.type, safe=False))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields.values())), lost
