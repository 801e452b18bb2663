"""Files of an output folder: written whole or not at all, recognized by stamps and digests, with
errors in one line.
"""

import contextlib
import hashlib
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tipcast.config.disk import FULL, free
from tipcast.config.errors import TipcastError, failed_to
from tipcast.datasets import address
from tipcast.datasets.parquet import Hashed

UNFINISHED = "_tipcast-"
"""Prefix of unfinished files' names; readers of whole folders ignore names with an underscore."""
MARKS = ("ETag", "Content-MD5", "Digest", "LastModified", "created")
"""Fields of fsspec's file info that change with the content, the best first. The last is a disk's
time of any change, which no copy sets.
"""


def file_stamp(uri: str, storage: Mapping[str, object]) -> str:
    """Return a stamp of a file that is not read: its size, and a mark that changes with its
    content.

    The stamp ends with a dash if a server reports only the size. Raises D001, D022.
    """
    path = uri
    if not address.scheme(uri):
        path = os.path.realpath(uri)  # the stamp is that of the file, not of a link to it

    with address.reaching(uri):
        store = address.filesystem(uri, storage)
        store.invalidate_cache(uri)  # fsspec caches file infos
        info = store.info(path)

    mark = next((str(info[name]).strip('"') for name in MARKS if info.get(name)), "")
    return f"{info.get('size')}-{mark}"


def file_sha256(uri: str, storage: Mapping[str, object]) -> str:
    """Return the SHA-256 of a file's content."""
    with address.opened(uri, storage) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


class OutputFile(Hashed):
    """A file whose errors, from its disk or store, are one line."""

    def __init__(self, uri: str, file: Any) -> None:
        super().__init__(file)
        self.uri = uri

    def write(self, content: Any) -> None:
        with write_errors(self.uri):
            super().write(content)


def atomic_write(uri: str, storage: Mapping[str, object]) -> AbstractContextManager[OutputFile]:
    """Open a file for writing; it appears whole or not at all, and on a disk outlasts a power cut.

    ``uri`` is an address, or a path in a folder that exists: a folder that a job has given up must
    not be made again. Raises T008 if a disk is full or may not be written to, D022 if a store
    cannot be reached. Errors of the block pass as they are.
    """
    if address.scheme(uri):
        return _store_file(uri, storage)
    return _disk_file(uri)


@contextlib.contextmanager
def _store_file(uri: str, storage: Mapping[str, object]) -> Iterator[OutputFile]:
    """Open an object of a store, which appears when it is closed."""
    with write_errors(uri):
        file: Any = address.filesystem(uri, storage).open(uri, "wb")

    try:
        yield OutputFile(uri, file)
        with write_errors(uri):
            file.close()
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is raised, not one of discarding
            file.discard()
        # Otherwise fsspec writes the unfinished file when the object is collected.
        file.closed = True
        raise


@contextlib.contextmanager
def _disk_file(uri: str) -> Iterator[OutputFile]:
    """Open a file in the same folder; it replaces the path once its content is on the disk."""
    path = Path(uri)
    unfinished = path.with_name(f"{UNFINISHED}{uuid.uuid4().hex[:8]}")
    with write_errors(uri):
        file = unfinished.open("xb")

    try:
        yield OutputFile(uri, file)
        with write_errors(uri):
            file.flush()
            os.fsync(file.fileno())  # a name may reach the disk before the content does
            file.close()
            unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(Exception):  # closing may fail again, as on a full disk
            file.close()
        unfinished.unlink(missing_ok=True)
        raise


def remove_file(uri: str, storage: Mapping[str, object]) -> None:
    """Remove a file that may be gone already."""
    with write_errors(uri), contextlib.suppress(FileNotFoundError):
        address.filesystem(uri, storage).rm_file(uri)


@contextlib.contextmanager
def write_errors(uri: str) -> Iterator[None]:
    """Turn errors of a disk (T008) or a store (D022) into one line."""
    store_errors: AbstractContextManager[None] = contextlib.nullcontext()
    if address.scheme(uri):
        store_errors = address.reaching(uri)

    try:
        with store_errors:
            yield
    except OSError as problem:
        why = str(problem.strerror or problem)
        if problem.errno in FULL:
            why += f", {free(uri)}"
        fix = "free space or change its permissions, and repeat the command, or use another folder"
        raise failed_to("written", address.shown(uri), why, fix, "T008") from problem


def as_artifact_error(error: TipcastError) -> TipcastError:
    """Return an object store's error as T009, the artifact store's; any other error as it is."""
    if error.code != "D022" or not error.where.startswith("s3://"):
        return error
    fix = "check the store and the access to it, then repeat"
    return TipcastError("T009", error.where, error.what, fix)
