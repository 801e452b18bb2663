"""Writing scored files, to a disk or an object store, each whole or not at all; errors of that in one line."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tipcast.config.disk import FULL, free
from tipcast.config.errors import TipcastError
from tipcast.datasets import address
from tipcast.tasks.base import Task

ROW_GROUP = 1_000_000
"""Most rows of a row group that is written."""
UNFINISHED = "_tipcast-"
"""Begins the names of files and folders of unfinished work; readers of whole folders pass over an underscore."""
FOOTER = b"tipcast"
"""Of a scored Parquet file's metadata: the key of what the file says of itself."""
PIECE = 8 << 20
MARKS = ("ETag", "Content-MD5", "Digest", "LastModified")
"""What stores and servers tell of a content, the best first."""


@dataclass(frozen=True)
class Footer:
    """What a scored file says of itself, so that an interrupted job does not score its rows again."""

    rows: int
    recipe: str
    """Digest of all that the scored file depends on beside its input."""
    input_sha256: str
    unscored: Mapping[str, int]
    """Reason -> rows without a prediction."""


def added_columns(task: Task) -> tuple[str, ...]:
    """Return the names of the columns that scoring adds."""
    predicted = {
        "classification": ("probability", "prediction"),
        "multiclass": (*(f"probability_{name}" for name in task.classes), "prediction"),
        "regression": ("prediction",),
        "clustering": ("cluster", "distance"),
    }[task.kind]
    return (*predicted, "model_name", "model_version")


def file_stamp(uri: str, storage: Mapping[str, Any]) -> str | None:
    """Return what a file looks like without reading it, None where there is none; D022 of a store that does not answer.

    Of a local file it has the time of the last change of anything too, which no copying tool sets back.
    """
    if not address.scheme(uri):
        try:
            found = Path(uri).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return f"{found.st_size}-{found.st_mtime_ns}-{found.st_ctime_ns}"
    try:
        with address.reaching(uri):
            store = address.filesystem(uri, storage)
            store.invalidate_cache(uri)
            info = store.info(uri)
    except TipcastError as problem:
        if problem.code != "D001":
            raise
        return None
    mark = next((str(info[name]).strip('"') for name in MARKS if info.get(name)), "")
    return f"{info.get('size')}-{mark}"


def file_sha256(uri: str, storage: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a file's content, read in pieces."""
    found = hashlib.sha256()
    with address.opened(uri, storage) as file, address.reaching(uri):
        while piece := file.read(PIECE):
            found.update(piece)
    return found.hexdigest()


@contextlib.contextmanager
def written(uri: str, storage: Mapping[str, Any], *, synced: bool = True) -> Iterator[BinaryIO]:
    """Open a file for writing; it appears whole or not at all.

    Parameters
    ----------
    uri
        Path in a folder that exists (one that a job has given up must not come back), or an address.
    storage
        Options as ``address.storage`` returns them.
    synced
        Whether a file on a disk is to outlast a power cut.

    Raises
    ------
    TipcastError
        T008 a disk that is full or may not be written to, T009 an object store that does not answer or refuses.

    """
    with failures(uri):
        if address.scheme(uri):
            with _given_up(address.filesystem(uri, storage).open(uri, "wb")) as remote:
                yield remote
            return
        path = Path(uri)
        unfinished = path.with_name(f"{UNFINISHED}{uuid.uuid4().hex[:8]}")
        try:
            with unfinished.open("wb") as file:
                yield file
                if synced:
                    file.flush()
                    os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


def remove(uri: str, storage: Mapping[str, Any]) -> None:
    """Remove a file that may be gone already."""
    with failures(uri):
        if not address.scheme(uri):
            Path(uri).unlink(missing_ok=True)
            return
        with contextlib.suppress(FileNotFoundError):
            address.filesystem(uri, storage).rm_file(uri)


def write_part(table: pa.Table, path: str, storage: Mapping[str, Any], *, threads: bool) -> None:
    """Write rows that a file gets as a stream of Arrow record batches, each of them a row group of the file."""
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=threads)
    with written(path, storage) as file, pa.ipc.new_stream(file, table.schema, options=options) as stream:
        stream.write_table(table.combine_chunks(), max_chunksize=ROW_GROUP)


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

    def sha256(self) -> str:
        return self._digest.hexdigest()


def join_parts(
    parts: Sequence[AbstractContextManager[BinaryIO]], target: BinaryIO, compression: str, footer: Footer
) -> tuple[int, int, str]:
    """Write the rows of parts of one schema, in their order, as one Parquet file with checksums of its pages.

    Returns its rows, bytes and SHA-256.
    A row group is in memory at a time; ``compression`` is pyarrow's name. ValueError: a part is no Arrow stream, or its
    schema is another one.
    """
    about = {name: value for name, value in asdict(footer).items() if name != "rows"}
    out, rows = _Counted(target), 0
    with contextlib.ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        for part in parts:
            with part as file, pa.ipc.open_stream(file) as stream:
                if writer is None:
                    schema = stream.schema.with_metadata({FOOTER: json.dumps(about)})
                    writer = stack.enter_context(
                        pq.ParquetWriter(out, schema, compression=compression, write_page_checksum=True)
                    )
                elif not stream.schema.equals(writer.schema):
                    raise ValueError(f"the schema of a part is {stream.schema}, of the first one {writer.schema}")
                for batch in stream:
                    rows += batch.num_rows
                    writer.write_batch(batch, row_group_size=ROW_GROUP)
    return rows, out.tell(), out.sha256()


@contextlib.contextmanager
def _given_up(remote: Any) -> Iterator[BinaryIO]:
    """Close an object, or give up what was written of it: fsspec would write that much."""
    try:
        yield remote
    except BaseException:
        with contextlib.suppress(Exception):
            remote.discard()
        remote.closed = True
        raise
    remote.close()


@contextlib.contextmanager
def failures(uri: str) -> Iterator[None]:
    """Tell in one line what a disk or an object store refuses, see ``written``."""
    try:
        if address.scheme(uri):
            with address.reaching(uri):
                yield
        else:
            yield
    except TipcastError as problem:
        raise of_store(problem) from problem
    except OSError as problem:
        full = problem.errno in FULL
        space = f", {free(uri)}" if full else ""
        what = f"cannot be written: {problem.strerror or problem}{space}"
        fix = f"{'free space' if full else 'change its rights'}, and repeat the command, or name another folder"
        raise TipcastError("T008", address.shown(uri), what, fix) from problem


def of_store(problem: TipcastError) -> TipcastError:
    """Return the error of an object store as one of the artifact store; any other as it is."""
    if problem.code != "D022" or not problem.where.startswith("s3://"):
        return problem
    bucket, _, path = problem.where.removeprefix("s3://").partition("/")
    where = f"bucket {bucket}" + (f", {path}" if path else "")
    return TipcastError("T009", where, problem.what, "check the store and the access to it, then repeat the command")
