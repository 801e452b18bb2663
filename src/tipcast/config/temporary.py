"""Temporary folders: removed with their block, or by a later process where theirs was killed outright."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "tipcast-work-"
NEW_S = 60.0
"""A younger folder may not be locked yet."""


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
