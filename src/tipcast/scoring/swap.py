"""Unfinished scores: made out of sight, and put in the place of the present ones as a whole or not at all.

Folders are exchanged in one step. A store has no folders: objects are copied to their names, the manifest last.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import errno
import fcntl
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tipcast.config.errors import TipcastError
from tipcast.datasets import address
from tipcast.scoring.output_folder import MANIFEST, STORE_PREFIX
from tipcast.scoring.writing import UNFINISHED

LOG = logging.getLogger("tipcast")

AT_ONCE = 16
"""Requests on their way to a store."""
OLD_S = 3600.0
"""A store knows no locks: what nothing was added to for an hour was left by a job that was killed."""
LOCK, OLD, PARTS, WHOLE = "lock", "old", "parts", "whole"
AT_CWD, EXCHANGE = -100, 2
"""Of Linux' renameat2: names are relative to the working folder; both names are kept, what they stand for changes."""


class LocalWork:
    """A hidden folder beside the one that gets the scores, so that both are on one disk."""

    def __init__(self, output: Path, folder: Path) -> None:
        self._output, self._folder = output, folder
        self.parts, self.whole = str(folder / PARTS), str(folder / WHOLE)
        """Below these go pieces of files, and files."""
        self.final = self.whole
        """Below this they are when the manifest is made."""

    def keep(self, name: str) -> None:
        """Link a file of the present scores: it is not copied."""
        target = Path(self.whole) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.hardlink_to(self._output / name)
        except OSError as problem:
            if problem.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
                raise
            shutil.copy2(self._output / name, target)

    def drop(self, names: Collection[str]) -> None:
        """Remove new files again, and folders that are empty then."""
        for name in names:
            (Path(self.whole) / name).unlink(missing_ok=True)
        for folder, _, _ in os.walk(self.whole, topdown=False):
            with contextlib.suppress(OSError):
                if folder != self.whole:
                    Path(folder).rmdir()

    def commit(self, manifest: Callable[[], bytes], obsolete: Collection[str], announced: bytes) -> None:
        """Exchange the folders, the manifest made last: who looks sees the old scores or the new ones."""
        for left in Path(self.whole).rglob(UNFINISHED):  # by a worker that was killed; another has written the file
            left.unlink()
        path = Path(self.whole) / MANIFEST
        with path.open("wb") as file:
            file.write(manifest())
            file.flush()
            os.fsync(file.fileno())
        _alike(Path(self.whole), self._output)
        for folder, _, _ in os.walk(self.whole):
            _sync(folder)
        replace(Path(self.whole), self._output, self._folder / OLD)
        _sync(self._output.parent)


def _sync(folder: str | Path) -> None:
    """Let the names in a folder outlast a power cut, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _alike(new: Path, output: Path) -> None:
    """Give a folder the rights of the one that it replaces, and its owners where that is allowed."""
    if output.exists():
        now = output.stat()
        with contextlib.suppress(PermissionError):
            os.chown(new, now.st_uid, now.st_gid)
        shutil.copystat(output, new)
        os.utime(new)  # its content is of now


def replace(new: Path, output: Path, old: Path) -> None:
    """Put a folder in the place of another, at once where the file system can; ``old`` gets the former otherwise."""
    if not output.exists() or not any(output.iterdir()):
        new.rename(output)  # onto an empty folder is allowed
        return
    if exchange(new, output):
        return
    output.rename(old)
    try:
        new.rename(output)
    except BaseException:
        old.rename(output)
        raise


def exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; False where the system cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None or call(AT_CWD, os.fsencode(one), AT_CWD, os.fsencode(other), EXCHANGE):
        if call is not None and ctypes.get_errno() not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(other))
        return False
    return True


@contextlib.contextmanager
def beside(output: Path) -> Iterator[LocalWork]:
    """Make the hidden folder, and remove it at the end, however that comes; S011 where another job is at work."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with _alone(output):
        folder = Path(tempfile.mkdtemp(prefix=_prefix(output), dir=output.parent))
        try:
            for name in (PARTS, WHOLE):
                (folder / name).mkdir()
            yield LocalWork(output, folder)
        finally:
            _clear(folder, output)


def recover(output: Path) -> bool:
    """Remove what killed jobs left beside a folder, and put back one that was to be replaced; tell if any was there."""
    if not _left(output):
        return False
    with _alone(output):
        return True


@contextlib.contextmanager
def _alone(output: Path) -> Iterator[None]:
    """Keep other jobs away from a folder, and clear what killed ones left; do neither where there are no locks."""
    path = output.with_name(f"{_prefix(output)}{LOCK}")
    while True:
        with path.open("w") as lock:
            locked = _lock(lock.fileno(), output)
            if locked and not _is(lock.fileno(), path):
                continue  # who had it has removed it
            try:
                for folder in _left(output) if locked else ():
                    _clear(folder, output)
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _lock(descriptor: int, output: Path) -> bool:
    """Take the lock that ends with its process; False where the file system knows none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as problem:
        what = "another job is scoring into it"
        raise TipcastError("S011", f"output {output}", what, "wait for it to end, or stop it") from problem
    except OSError:
        return False
    return True


def _is(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _left(output: Path) -> list[Path]:
    return [path for path in output.parent.glob("*") if path.name.startswith(_prefix(output))]


def _clear(folder: Path, output: Path) -> None:
    """Remove a job's folder; scores that were about to be replaced are put back first, or stay for the next job."""
    old = folder / OLD
    if old.exists() and not output.exists():
        try:
            old.rename(output)
        except OSError as problem:
            LOG.error("scores could not be put back and are in %s: %s", old, problem.strerror)
            return
    shutil.rmtree(folder, ignore_errors=True)


def _prefix(output: Path) -> str:
    return f".{output.name}.tipcast-"


class StoreWork:
    """A prefix within the one that gets the scores: each object is replaced whole, the manifest tells which belong."""

    def __init__(self, output: str, storage: Mapping[str, Any]) -> None:
        self._output, self._store = output, address.filesystem(output, storage)
        self._folder = f"{output}/{STORE_PREFIX}{uuid.uuid4().hex[:12]}"
        self.parts, self.whole = f"{self._folder}/parts", f"{self._folder}/whole"
        self.final = output

    def keep(self, name: str) -> None:
        """Nothing: an object that is not replaced stays."""

    def drop(self, names: Collection[str]) -> None:
        """Remove new objects again."""
        with address.reaching(self._output):
            self._remove([f"{self.whole}/{name}" for name in names])

    def commit(self, manifest: Callable[[], bytes], obsolete: Collection[str], announced: bytes) -> None:
        """Announce the new objects, copy them to their names, remove what is obsolete, write the manifest.

        ``announced`` is the manifest in between, which names old and new files. Killed there, all that is there is
        named by a manifest: the next job makes again what has no stamp in it.
        """
        with address.reaching(self._output):
            self._store.pipe_file(f"{self._output}/{MANIFEST}", announced)
            self._store.invalidate_cache()
            made = self._found(self.whole)
            _each(self._store.cp_file, made, [f"{self._output}/{_below(path, self.whole)}" for path in made])
            self._remove([f"{self._output}/{name}" for name in obsolete])
            self._store.pipe_file(f"{self._output}/{MANIFEST}", manifest())

    def remove(self) -> None:
        """Remove all that is under the prefix; a store that fails now must not hide the first problem."""
        with contextlib.suppress(Exception):
            self._store.invalidate_cache()
            self._remove(self._found(self._folder))

    def _remove(self, paths: Collection[str]) -> None:
        def remove(path: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self._store.rm_file(path)

        _each(remove, paths)

    def _found(self, folder: str) -> list[str]:
        try:
            found: list[str] = self._store.find(folder)
        except FileNotFoundError:
            return []
        return found


@contextlib.contextmanager
def within(output: str, storage: Mapping[str, Any]) -> Iterator[StoreWork]:
    """Choose a prefix for unfinished work, and remove what is under it at the end, however that comes."""
    work = StoreWork(output, storage)
    try:
        yield work
    finally:
        work.remove()


def recover_store(output: str, storage: Mapping[str, Any]) -> None:
    """Remove what killed jobs left in the store."""
    now = datetime.datetime.now(datetime.UTC)
    with address.reaching(output):
        store = address.filesystem(output, storage)
        store.invalidate_cache()
        left: dict[str, list[tuple[str, datetime.datetime]]] = {}
        for path, told in store.find(output, prefix=STORE_PREFIX, detail=True).items():
            left.setdefault(_below(path, output).partition("/")[0], []).append((path, told["LastModified"]))
        for objects in left.values():
            if (now - max(time for _, time in objects)).total_seconds() > OLD_S:
                _each(store.rm_file, [path for path, _ in objects])


def _each(call: Callable[..., object], *paths: Iterable[str]) -> None:
    """Call for each object, several at once.

    Requests that remove a thousand objects are not used: stores differ in the checksum they ask of them, and s3fs does
    not tell which objects such a request has left.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(call, *paths):
            pass


def _below(path: str, folder: str) -> str:
    """Return what a store's path is below an address."""
    return path.removeprefix(folder.removeprefix("s3://") + "/")


Work = LocalWork | StoreWork


def workplace(output: str, storage: Mapping[str, Any]) -> AbstractContextManager[Work]:
    """Return a place for what is not finished, on a disk or in an object store."""
    return within(output, storage) if address.scheme(output) else beside(Path(output))
