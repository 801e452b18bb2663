"""Temporary folders, removed with their block or by a later process where theirs was killed outright; a full disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "tipcast-work-"
NEW_S = 60.0
"""A younger folder may not be locked yet."""
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""What the system says where a file may not grow."""


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a temporary folder, locked as long as its process lives, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix=PREFIX, suffix=f".{socket.gethostname()}") as name:
        file = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: then it is never taken for abandoned
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Path(name)
        finally:
            os.close(file)


def remove_abandoned() -> None:
    """Remove this user's folders of this host name whose process has ended: its lock ends with it.

    On a file system that several machines share, locks may hold on one of them alone.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if folder.name.partition(".")[2] != socket.gethostname():
            continue
        with contextlib.suppress(OSError):  # it is locked, another user's, or just removed
            file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                found = os.fstat(file)
                if found.st_uid == os.getuid() and time.time() - found.st_mtime > NEW_S:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
            finally:
                os.close(file)


def free(path: str | Path) -> str:
    """Return the free space where a file would be, in words; empty if unknown."""
    folder = Path(path).absolute()
    for place in (folder, *folder.parents):
        try:
            return f"{shutil.disk_usage(place).free:,} bytes free"
        except OSError:
            continue
    return ""


def shortage(uri: str, message: str) -> str:
    """Return the free space if an sqlite error says that the disk is full, else an empty text."""
    if uri.startswith("sqlite:///") and re.search(r"disk is full|disk I/O error", message):
        return f", {free(uri.removeprefix('sqlite:///'))}"
    return ""


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Give an error of the system the path that was written to, which it tells of opening a file alone."""
    try:
        yield
    except OSError as problem:
        if problem.filename is None:
            problem.filename = str(path)
        raise
