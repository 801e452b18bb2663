"""Temporary folders, and what is told of a full disk."""

import contextlib
import errno
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # what the system says where a file may not grow


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a temporary folder, which is removed with its block."""
    with tempfile.TemporaryDirectory(prefix="tipcast-") as name:
        yield Path(name)


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
    """Give an error of the system the path that was written to, which it tells of opening a file alone."""
    try:
        yield
    except OSError as problem:
        if problem.filename is None:
            problem.filename = str(path)
        raise
