"""Unfinished scores: made beside their folder, out of sight, and put in its place as a whole or not at all."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Protocol

from tipcast.config.errors import TipcastError
from tipcast.scoring.writing import UNFINISHED

LOG = logging.getLogger("tipcast")

LOCK, OLD, PARTS, WHOLE = "lock", "old", "parts", "whole"
AT_CWD, EXCHANGE = -100, 2
"""Of Linux' renameat2: names are relative to the working folder; both names are kept, what they stand for changes."""


class Work(Protocol):
    """A place for what is being made, on a disk or in an object store."""

    parts: str
    """Address below which pieces of files go."""
    whole: str
    """Address below which files go."""
    final: str
    """Address below which they are when the manifest is made."""

    def keep(self, name: str) -> None:
        """Take over a file of the present scores."""
        ...

    def drop(self, names: Collection[str]) -> None:
        """Remove new files again."""
        ...

    def commit(self, manifest: Callable[[], bytes], obsolete: Collection[str], announced: bytes) -> None:
        """Put the files and their manifest, made last, in the place of the present scores.

        Where that takes more than one step, ``announced`` is the manifest in between, which names old and new files.
        """
        ...


class LocalWork:
    """A hidden folder beside the one that gets the scores, so that both are on one disk."""

    def __init__(self, output: Path, folder: Path, manifest_name: str) -> None:
        self._output, self._folder, self._manifest = output, folder, manifest_name
        self.parts, self.whole = str(folder / PARTS), str(folder / WHOLE)
        self.final = self.whole

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
        """Exchange the folders: who looks sees the old scores or the new ones."""
        for left in Path(self.whole).rglob(UNFINISHED):  # by a worker that was killed; another has written the file
            left.unlink()
        path = Path(self.whole) / self._manifest
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
def beside(output: Path, manifest_name: str) -> Iterator[LocalWork]:
    """Make the hidden folder, and remove it with all that is in it at the end, however that comes.

    Raises
    ------
    TipcastError
        S011 a job that is at work on this folder.

    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with _alone(output):
        folder = Path(tempfile.mkdtemp(prefix=_prefix(output), dir=output.parent))
        try:
            for name in (PARTS, WHOLE):
                (folder / name).mkdir()
            yield LocalWork(output, folder, manifest_name)
        finally:
            _clear(folder, output)


def recover(output: Path) -> bool:
    """Remove what killed jobs left beside a folder, and put back one they were about to replace; tell if any was there.

    Raises
    ------
    TipcastError
        S011 a job that is still at work on this folder.

    """
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
