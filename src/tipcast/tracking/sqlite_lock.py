"""The lock of a new sqlite file, for which jobs that open it at once queue."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock

LOOK_S = 1.0
"""Seconds between two looks at the sqlite file, which the job that holds the lock changes."""
LONGEST_QUEUE_S = 300.0
"""Most seconds that a job waits while the file changes, unless ``wait_s`` is more."""


def in_turn(
    path: Path, wait_s: float, now: Callable[[], float] = time.monotonic
) -> contextlib.AbstractContextManager[Any]:
    """Acquire the lock beside an sqlite file, and return a context that releases it.

    Many jobs that start at once on a busy machine wait for each other: while the file changes, the
    wait begins anew, for ``LONGEST_QUEUE_S`` in all. Raises ``filelock.Timeout`` after that, or if
    nothing has changed for ``wait_s``.
    """
    lock = filelock.FileLock(f"{path}.lock", mode=0o600)
    begun = changed = now()
    state = _state(path)

    while True:
        try:
            return lock.acquire(timeout=min(wait_s, LOOK_S))
        except filelock.Timeout:
            before = state
            state = _state(path)
            looked = now()
            if state != before:
                changed = looked
            if looked - changed >= wait_s or looked - begun >= max(wait_s, LONGEST_QUEUE_S):
                raise


def _state(path: Path) -> list[tuple[int, int]]:
    """Return size and time of change of an sqlite file and of its log, as far as they exist."""
    state = []
    for file in (path, Path(f"{path}-wal")):
        with contextlib.suppress(OSError):
            status = file.stat()
            state.append((status.st_size, status.st_mtime_ns))
    return state
