"""What a session offers: workers, and frames that read files into arrays of its device; and where arrays are."""

from __future__ import annotations

import sys
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
        """Read columns (by the file's own names) of some row groups.

        Raises
        ------
        OSError, ValueError, RuntimeError
            The bytes are not what the footer says.

        """
        ...

    def read_csv(
        self, block: bytes, header: Sequence[str], columns: Sequence[str], timestamps: Sequence[str], dates: str = "iso"
    ) -> dict[str, Array]:
        """Parse columns of whole lines of CSV without their header line.

        Parameters
        ----------
        block, header
            The lines, and the names of all columns, each once.
        columns, timestamps
            Those wanted, and those of them that hold dates and times; the others hold numbers.
        dates
            ``iso``, ``month_first`` (01/31/2021 0:30) or ``day_first`` (31/01/2021 0:30).

        Raises
        ------
        ValueError
            A row has too many or too few fields, or a cell does not parse.

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
    compiles: bool = False
    """Whether a process compiles what it computes with on first use, so that it should warm up before it is timed."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """What a run's tags say of the workers' devices."""

    @property
    def size(self) -> str:
        """Workers and threads in words."""
        counts = {"worker": self.n_workers, "thread": self.n_threads}
        return ", ".join(f"{number} {name}{'s' if number != 1 else ''}" for name, number in counts.items())


def to_host(value: Any) -> Any:
    """Return a CuPy array as a NumPy array and a cuDF frame as a pandas one; whatever is on the host as it is."""
    library = _library(value)
    return value.get() if library == "cupy" else value.to_pandas() if library == "cudf" else value


def device_of(array: Any) -> str:
    """Return where an array is: ``cpu`` or, as XGBoost says it, ``cuda:0``."""
    return f"cuda:{array.device.id}" if _library(array) == "cupy" else "cpu"


def module_of(array: Any) -> Any:
    """Return the array module (numpy, cupy) that an array belongs to."""
    return sys.modules[_library(array)]


def _library(value: Any) -> str:
    """Return the name of the library that an object is of, so that nothing is imported to know it."""
    return type(value).__module__.partition(".")[0]
