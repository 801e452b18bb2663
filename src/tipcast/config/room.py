"""How much room a disk has, for messages of what did not fit."""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""What the system says where a file may not grow."""


def free(path: str | Path) -> str:
    """Return the room where a file would be, in words; empty where that cannot be told."""
    folder = Path(path).absolute()
    for place in (folder, *folder.parents):
        try:
            return f"{shutil.disk_usage(place).free:,} bytes free"
        except OSError:
            continue
    return ""


def shortage(uri: str, message: str) -> str:
    """Return how much room there is, where an sqlite file's message says that it lacks some; otherwise nothing."""
    if uri.startswith("sqlite:///") and re.search(r"disk is full|disk I/O error", message):
        return f", {free(uri.removeprefix('sqlite:///'))}"
    return ""
