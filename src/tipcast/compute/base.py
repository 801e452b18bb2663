"""What a session offers: workers that are up, and frames (reading files into arrays of its device)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol

Array = Any
"""A NumPy or CuPy array: the device decides."""

Frame = Any
"""A pandas or cuDF DataFrame or Series: the device decides."""


class Frames(Protocol):
    """A device's frame library as tasks on a worker need it; picklable and without state.

    Columns come back as 1-D arrays of the device: timestamps as int64 microseconds since the epoch with
    the smallest int64 for null; integers without nulls as they are; every other number as float64 with NaN for null.
    """

    @property
    def xp(self) -> ModuleType:
        """The array module: numpy or cupy."""
        ...

    @property
    def batch_rows(self) -> int:
        """Rows of one file that a task should read where there are so many; 0: as the file's row groups have it."""
        ...

    def read_parquet(
        self, uri: str, row_groups: Sequence[int], columns: Sequence[str], storage_options: Mapping[str, Any]
    ) -> dict[str, Array]:
        """Read columns (by the file's own names) of some row groups."""
        ...

    def read_csv(
        self, block: bytes, header: Sequence[str], columns: Sequence[str], timestamps: Sequence[str], dates: str = "iso"
    ) -> dict[str, Array]:
        """Parse columns of CSV rows without their header line; ValueError where a row or cell does not parse.

        ``dates``: ``iso``, ``month_first`` or ``day_first``.
        """
        ...

    def frame(self, values: Array, names: Sequence[str]) -> Frame:
        """Wrap a (rows, columns) array as a DataFrame without copying where the library can."""
        ...

    def series(self, values: Array, name: str) -> Frame:
        """Wrap a 1-D array as a Series without copying where the library can."""
        ...


@dataclass(frozen=True)
class Session:
    """Workers that are up, and the frame library they use."""

    client: Any
    device: str
    """``cpu`` or ``cuda``."""
    frames: Frames
    n_workers: int
    n_threads: int
    """Threads of all workers together."""
    rehearses: bool = False
    """Whether a process compiles what it computes with on first use, so that it should rehearse before it is timed."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """What a run's tags say of the workers' devices."""

    @property
    def size(self) -> str:
        """Workers and threads in words."""
        counts = {"worker": self.n_workers, "thread": self.n_threads}
        return ", ".join(f"{number} {name}{'s' if number != 1 else ''}" for name, number in counts.items())


def slots(device: str, threads: int, per_gpu: int) -> int:
    """Return a worker's slots.

    Parameters
    ----------
    device
        The session's: ``cpu`` or ``cuda``.
    threads
        Of the worker.
    per_gpu
        Trials that share a GPU.

    """
    return threads if device == "cpu" else per_gpu
