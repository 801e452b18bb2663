"""Files of an output folder: written whole or not at all, told apart by stamps and digests, and
their errors in one line.
"""

import contextlib
import hashlib
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tipcast.config.disk import FULL, free
from tipcast.config.errors import TipcastError, failed_to
from tipcast.datasets import address
from tipcast.datasets.parquet import Hashed

UNFINISHED = "_tipcast-"
"""Begins the names of unfinished files; readers of whole folders pass over an underscore."""
MARKS = ("ETag", "Content-MD5", "Digest", "LastModified", "created")
"""What stores and servers tell of a content, the best first; last a disk's time of any change,
which no copy sets.
"""


def file_stamp(uri: str, storage: Mapping[str, Any]) -> str:
    """Return what a file looks like unread: its size, and a mark that changes with its content.

    The stamp ends in a dash if a server tells the size alone. Raises D001, D022.
    """
    with address.reaching(uri):
        store = address.filesystem(uri, storage)
        store.invalidate_cache(uri)  # fsspec keeps what a store once said of a file
        # The stamp is of the file, not of a link to it.
        info = store.info(uri if address.scheme(uri) else os.path.realpath(uri))

    mark = next((str(info[name]).strip('"') for name in MARKS if info.get(name)), "")
    return f"{info.get('size')}-{mark}"


def file_sha256(uri: str, storage: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a file's content."""
    with address.opened(uri, storage) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


class OutputFile(Hashed):
    """A file that says in one line what its disk or store refuses."""

    def __init__(self, uri: str, file: Any) -> None:
        super().__init__(file)
        self.uri = uri

    def write(self, content: Any) -> None:
        with write_errors(self.uri):
            super().write(content)


@contextlib.contextmanager
def atomic_write(uri: str, storage: Mapping[str, Any]) -> Iterator[OutputFile]:
    """Open a file for writing; it appears whole or not at all, and on a disk outlasts a power cut.

    ``uri`` is an address, or a path in a folder that exists: a folder that a job has given up must
    not come back. Raises T008 if a disk is full or may not be written to, D022 if a store cannot be
    reached. Errors of the block pass as they are.
    """
    remote = address.scheme(uri)
    path = Path(uri)
    unfinished = path.with_name(f"{UNFINISHED}{uuid.uuid4().hex[:8]}")

    with write_errors(uri):
        file: Any = (
            address.filesystem(uri, storage).open(uri, "wb") if remote else unfinished.open("xb")
        )

    try:
        yield OutputFile(uri, file)
        with write_errors(uri):
            if not remote:
                file.flush()
                os.fsync(file.fileno())  # a name may reach the disk before the content does
            file.close()  # an object in S3 appears only now
            if not remote:
                unfinished.replace(path)
    except BaseException:
        # Closing may fail again, as on a full disk or with a store that is away; the first error is
        # raised.
        with contextlib.suppress(Exception):
            file.discard() if remote else file.close()
        if remote:
            # Otherwise fsspec writes the unfinished file when the object is collected.
            file.closed = True
        else:
            unfinished.unlink(missing_ok=True)
        raise


def remove_file(uri: str, storage: Mapping[str, Any]) -> None:
    """Remove a file that may be gone already."""
    with write_errors(uri), contextlib.suppress(FileNotFoundError):
        address.filesystem(uri, storage).rm_file(uri)


@contextlib.contextmanager
def write_errors(uri: str) -> Iterator[None]:
    """Say in one line what a disk (T008) or a store (D022) refuses."""
    try:
        with address.reaching(uri) if address.scheme(uri) else contextlib.nullcontext():
            yield
    except OSError as problem:
        space = f", {free(uri)}" if problem.errno in FULL else ""
        why = f"{problem.strerror or problem}{space}"
        fix = "free space or change its rights, and repeat the command, or name another folder"
        raise failed_to("written", address.shown(uri), why, fix, "T008") from problem


def as_artifact_error(error: TipcastError) -> TipcastError:
    """Return the error of an object store as T009, one of the artifact store; any other as it
    is.
    """
    if error.code != "D022" or not error.where.startswith("s3://"):
        return error
    fix = "check the store and the access to it, then repeat"
    return TipcastError("T009", error.where, error.what, fix)
