"""Files on a disk or in an object store: their looks, digests, writing whole or not at all, and errors in one line."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

from tipcast.config.disk import FULL, free
from tipcast.config.errors import TipcastError
from tipcast.datasets import address

UNFINISHED = "_tipcast-"
"""Begins the names of unfinished files; readers of whole folders pass over an underscore."""
DIGESTED = 256 << 10
"""Bytes that are digested at once."""
MARKS = ("ETag", "Content-MD5", "Digest", "LastModified")
"""What stores and servers tell of a content, the best first."""


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


def file_sha256(uri: str, storage: Mapping[str, Any], stop: threading.Event | None = None) -> str:
    """Return the SHA-256 of a file's content; CancelledError as soon as ``stop`` is set."""
    digest = hashlib.sha256()
    with address.opened(uri, storage) as file, address.reaching(uri):
        while content := file.read(DIGESTED):
            if stop is not None and stop.is_set():
                break
            digest.update(content)
        else:
            return digest.hexdigest()
    raise CancelledError


class Output(io.RawIOBase):
    """A file that is written: counts and digests its content, and tells in one line what its disk or store refuses."""

    def __init__(self, uri: str, file: Any) -> None:
        self.uri, self.file, self._digest, self._at = uri, file, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, content: Any) -> int:
        with failures(self.uri):
            self.file.write(content)
        self._digest.update(content)
        self._at += len(content)
        return len(content)

    def sha256(self) -> str:
        return self._digest.hexdigest()


@contextlib.contextmanager
def written(uri: str, storage: Mapping[str, Any]) -> Iterator[Output]:
    """Open a file for writing; it appears whole or not at all, and on a disk outlasts a power cut.

    What the block raises passes through as it is.

    Parameters
    ----------
    uri
        Path in a folder that exists (one that a job has given up must not come back), or an address.
    storage
        Options as ``address.storage`` returns them.

    Raises
    ------
    TipcastError
        T008 a disk that is full or may not be written to, T009 an object store that does not answer or refuses.

    """
    if address.scheme(uri):
        with failures(uri):
            remote = address.filesystem(uri, storage).open(uri, "wb")
        try:
            yield Output(uri, remote)
            with failures(uri):
                remote.close()
        except BaseException:
            with contextlib.suppress(Exception):
                remote.discard()
            remote.closed = True  # or it would be written as far as it came
            raise
        return
    path = Path(uri)
    unfinished = path.with_name(f"{UNFINISHED}{uuid.uuid4().hex[:8]}")
    try:
        with failures(uri):
            file = unfinished.open("wb")
        try:
            yield Output(uri, file)
            with failures(uri):
                file.flush()
                os.fsync(file.fileno())
        finally:
            with contextlib.suppress(OSError):  # of a full disk, which has been told
                file.close()
        with failures(uri):
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
