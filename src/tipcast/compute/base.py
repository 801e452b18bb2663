"""The session that a job computes in, its frame library, and which device an array is on."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

Array = Any
"""A NumPy or CuPy array: the device decides."""

Frame = Any
"""A pandas or cuDF DataFrame or Series: the device decides."""

OUT_OF_MEMORY = ("out of memory", "bad_alloc", "cudaErrorMemoryAllocation")
"""Words of libraries' errors when a memory is full."""

if TYPE_CHECKING:
    from distributed import Client

    from tipcast.compute.frames import CpuFrames

    Frames: TypeAlias = CpuFrames
else:
    Frames = Any  # GpuFrames is one too; neither is imported by a driver that only starts


@dataclass(frozen=True)
class Session:
    """Workers that are up, and the frame library they use."""

    client: "Client"
    device: str
    """``cpu`` or ``cuda``."""
    frames: "Frames"
    n_workers: int
    n_threads: int
    """Threads of all workers together."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """Parameters of a run about the workers' GPUs."""
    homes: int | None = None
    """Number of workers that rows are read on; None: all."""
    free_bytes: int = 0
    """Free memory of the GPU that has least, when the workers had started; 0 without GPUs."""

    @property
    def size(self) -> str:
        """Workers and threads in words."""
        return f"{count(self.n_workers, 'worker')}, {count(self.n_threads, 'thread')}"


def count(number: int, thing: str) -> str:
    """Return how many of a thing there are in words: ``1 worker``, ``2 workers``."""
    if number == 1:
        return f"1 {thing}"
    return f"{number} {thing}s"


def out_of_memory(problem: Exception) -> bool:
    """Tell whether an error of any library says that the memory of the host or a GPU is full."""
    return isinstance(problem, MemoryError) or any(words in str(problem) for words in OUT_OF_MEMORY)


def to_host(value: Array | Frame) -> Any:
    """Return a CuPy array as a NumPy array and a cuDF frame as a pandas one.

    Anything that is on the host already is returned as it is.
    """
    library = _library(value)
    if library == "cupy":
        return value.get()
    if library == "cudf":
        return value.to_pandas()
    return value


def to_gpu(value: Array | Frame) -> Any:
    """Return the values of an array or frame of the host as a CuPy array.

    Anything that is on a GPU already is returned as it is.
    """
    if _library(value) not in ("numpy", "pandas"):
        return value

    import cupy

    return cupy.asarray(getattr(value, "values", value))


def module_of(array: Array) -> ModuleType:
    """Return the array module (numpy, cupy) that an array belongs to."""
    return sys.modules[_library(array)]


def _library(value: object) -> str:
    """Return the name of the library of an object's type, without importing it."""
    return type(value).__module__.partition(".")[0]
