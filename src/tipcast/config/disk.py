"""Temporary folders, folders that one job writes at a time, and messages on a full disk."""

import contextlib
import errno
import fcntl
import multiprocessing
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from multiprocessing import util
from pathlib import Path

from tipcast.config.errors import TipcastError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errors of the system for a file that may not grow."""

NAMED = "TIPCAST_TMPDIR"
"""Variable that tells child processes the shared folder."""
SHARED = Path(os.environ.get(NAMED) or tempfile.gettempdir())
"""Folder that the temporary files of all processes are in, those of ``use_own_folder`` too."""
OURS = f"tipcast-{re.sub('[^A-Za-z0-9]', '', socket.gethostname())[:16]}-"
"""Begins the names of temporary folders of this machine: machines may share the folder, and each
removes its own.
"""
LONGEST_SHARED = 40
"""Longest path of the shared folder, in characters, with which a process's own folder has room for
its sockets: a socket's name has at most 107.
"""
LONGEST_OF_SOCKETS = 74
"""Longest path of a folder, in characters, in which multiprocessing can make its folder of
sockets.
"""
SHORT = "/tmp"  # noqa: S108 - multiprocessing makes a folder there that only this user may enter
"""Where sockets lie if the shared folder's path is too long for them."""
SOCKETS = "sockets"
"""File in a process's own folder that names its folder of sockets, if that lies elsewhere."""
PYTHONS = "pymp-"
"""Begins the names of multiprocessing's folders of sockets."""


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a temporary folder for a block.

    It is removed with the block, or by the next command if the process is killed.
    """
    remove_abandoned()
    folder, lock = _locked_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def use_own_folder() -> None:
    """Let this process and its children make temporary files in one folder.

    The folder is removed when the process ends: MLflow, Dask and multiprocessing leave folders
    there, some when they end, all when they are killed.
    """
    long = len(str(SHARED)) > LONGEST_SHARED
    # A child process uses its parent's sockets.
    if tempfile.gettempdir() != str(SHARED) or (long and multiprocessing.parent_process()):
        return

    with contextlib.suppress(OSError):  # the disk is full: who needs a file will say so
        remove_abandoned()
        folder, _ = _locked_folder()  # the lock is open as long as the process
        # Removed after multiprocessing's own folder inside it (priority -100); a fork of this
        # process leaves it alone.
        util.Finalize(None, shutil.rmtree, (folder, True), exitpriority=-200)
        if long:
            _put_sockets_elsewhere(folder)
        tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
        os.environ[NAMED] = str(SHARED)


def _put_sockets_elsewhere(folder: Path) -> None:
    """Let multiprocessing make its sockets where their names are short enough.

    A file in the process's own folder says where.
    """
    tempfile.tempdir = SHORT
    if len(str(SHARED)) <= LONGEST_OF_SOCKETS:
        tempfile.tempdir = str(SHARED)
    try:
        (folder / SOCKETS).write_text(util.get_temp_dir())
    finally:
        tempfile.tempdir = str(SHARED)


def _locked_folder() -> tuple[Path, int]:
    """Make a temporary folder and hold its lock, which ends with the process; return both."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=OURS))
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # taken for an abandoned one
            continue
        with contextlib.suppress(OSError):  # the disk may have no locks
            # Waits while another process takes the folder for an abandoned one.
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder, lock
        os.close(lock)


def lock_file(name: str) -> Path:
    """Return the file of a named lock, which all processes of this user and machine share.

    The file lies in the shared folder and stays when the lock is released; ``remove_abandoned``
    removes it.
    """
    return SHARED / f"{OURS}{os.getuid()}-{name}.lock"


def remove_abandoned() -> None:
    """Remove temporary folders and locks of this user that no process of this machine holds."""
    with contextlib.suppress(OSError):
        for path in SHARED.glob(f"{OURS}*"):
            with contextlib.suppress(OSError):  # in use, or another process is removing it
                _remove_unlocked(path)


def _remove_unlocked(path: Path) -> None:
    """Remove a file or folder that only this user may read.

    Raises OSError if a process holds its lock.
    """
    lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        status = os.fstat(lock)
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            return
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

        if stat.S_ISDIR(status.st_mode):
            _remove_sockets(path)
            shutil.rmtree(path, ignore_errors=True)
        elif path.stat().st_ino == status.st_ino:
            path.unlink()
    finally:
        os.close(lock)


def _remove_sockets(folder: Path) -> None:
    """Remove the folder of sockets that a process's own folder names."""
    with contextlib.suppress(OSError):  # most folders name none
        sockets = Path((folder / SOCKETS).read_text())
        if sockets.name.startswith(PYTHONS):
            shutil.rmtree(sockets, ignore_errors=True)


@contextlib.contextmanager
def locked_folder(folder: Path, what: str) -> Iterator[bool]:
    """Make a folder and keep other jobs out of it; S011 with the text ``what`` if one is in it.

    At the end of the block, empty folders are removed that did not exist before: this one, those
    above it and those in it. It yields False on a disk without locks, where nobody is kept out.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    with contextlib.ExitStack() as stack:
        descriptor, locked = _locked_output(folder, what)
        stack.callback(os.close, descriptor)
        before = {above for above, _, _ in os.walk(folder)}
        stack.callback(_remove_empty, folder, before, made)
        yield locked


def _locked_output(folder: Path, what: str) -> tuple[int, bool]:
    """Make and open a folder, and lock it if its disk has locks.

    The folder itself is locked, as no lock file lies in it. A job that ends may remove an empty
    folder meanwhile: then it is made anew. Raises S011 if it is locked.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue

        locked = False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        except BlockingIOError as problem:
            os.close(descriptor)
            fix = "wait for it to end, or stop it"
            raise TipcastError("S011", f"output {folder}", what, fix) from problem
        except OSError:  # a disk without locks
            return descriptor, locked

        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(folder.stat(), os.fstat(descriptor)):
                return descriptor, locked
        os.close(descriptor)


def _remove_empty(folder: Path, before: set[str], made: list[Path]) -> None:
    """Remove empty folders that are not among those ``before``, and empty ones of ``made``.

    The deepest go first.
    """
    new = [above for above, _, _ in os.walk(folder, topdown=False) if above not in before]
    for path in [*map(Path, new), *made]:
        with contextlib.suppress(OSError):  # the folder is not empty
            path.rmdir()


def is_writable(folder: Path) -> bool:
    """Tell whether files can be made in a folder."""
    return os.access(folder, os.W_OK | os.X_OK)


def free(path: str | Path) -> str:
    """Return the free space where a file would be, in words; empty if unknown."""
    folder = Path(path).absolute()
    for place in (folder, *folder.parents):
        with contextlib.suppress(OSError):
            return f"{shutil.disk_usage(place).free:,} bytes free"
    return ""


def shortage(uri: str, message: str) -> str:
    """Return the free space if an sqlite error says that the disk is full, else an empty text."""
    if uri.startswith("sqlite:///") and re.search(r"disk is full|disk I/O error", message):
        return f", {free(uri.removeprefix('sqlite:///'))}"
    return ""


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Add the path that is written to an error of the system.

    The system names the path only if the file could not be opened.
    """
    try:
        yield
    except OSError as problem:
        if problem.filename is None:
            problem.filename = str(path)
        raise
