"""The machine: memory, and room in the folders that jobs write to."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import psutil
from distributed.system import MEMORY_LIMIT

from tipcast.config.errors import TipcastError
from tipcast.config.finding import Finding, ok, warning

GIB = 1 << 30
LEAST_ROOM, LITTLE_ROOM = GIB // 4, 2 * GIB
"""Free bytes of a folder below which a job fails, or may fail: plots, the model, the store, rows spilled by workers."""
LEAST_MEMORY, LITTLE_MEMORY = GIB // 2, 2 * GIB
"""Free bytes below which even the sample's rows do not fit beside Python, Dask and MLflow, or just do."""


def check_memory() -> Finding:
    """Find out how much memory jobs may use and how much of it is free.

    Raises
    ------
    TipcastError
        C021 too little.

    """
    free = min(psutil.virtual_memory().available, MEMORY_LIMIT)
    return judged(
        "this machine", free, MEMORY_LIMIT, (LEAST_MEMORY, LITTLE_MEMORY), "end other programs, or use fewer rows"
    )


def check_folder(folder: Path) -> Finding:
    """Find out how much room a folder has, and whether files can be made in it.

    Raises
    ------
    TipcastError
        C021 too little room, or no file can be made.

    """
    try:
        usage = shutil.disk_usage(folder)
        with tempfile.TemporaryFile(dir=folder, prefix=".tipcast-") as file:
            file.write(b"tipcast")
    except OSError as problem:
        raise TipcastError(
            "C021",
            folder,
            f"no file can be written: {problem.strerror or problem}",
            "change its permissions, or use another folder (TMPDIR names the temporary one)",
        ) from problem
    return judged(
        str(folder), usage.free, usage.total, (LEAST_ROOM, LITTLE_ROOM), "free some room, or use another disk"
    )


def judged(where: str, free: int, total: int, limits: tuple[int, int], fix: str) -> Finding:
    """Return what so many free bytes mean.

    Parameters
    ----------
    where
        What has them.
    free, total
        Bytes.
    limits
        Bytes below which there is too little, and little.
    fix
        What to do about it.

    Raises
    ------
    TipcastError
        C021 too little.

    """
    told = f"{free / GIB:,.1f} GiB free of {total / GIB:,.1f} GiB"
    if free < limits[0]:
        raise TipcastError("C021", where, f"{told}: too little", fix)
    return warning(f"{where}: {told}: little", fix) if free < limits[1] else ok(f"{where}: {told}")
