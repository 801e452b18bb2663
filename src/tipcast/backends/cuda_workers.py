"""Workers with a GPU each: made sure of, set up and warmed before anything is timed."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client

from tipcast.backends import device_memory, gpus
from tipcast.backends.gpu import GpuFrames
from tipcast.config.errors import TipcastError, travelling

T = TypeVar("T")


def prepare(client: Client) -> list[gpus.Gpu]:
    """Make sure that every worker has a GPU of its own, and run each library's first, slow call on it.

    Returns
    -------
    list of Gpu
        One for each worker.

    Raises
    ------
    TipcastError
        K006 a worker without a GPU, or one of several threads or workers; K007 a worker without RAPIDS.

    """
    crowded = sorted(address for address, threads in client.nthreads().items() if threads > 1)
    if crowded:
        raise TipcastError(
            "K006",
            ", ".join(crowded),
            "worker with several threads, which would share a GPU",
            "start workers with `dask cuda worker ADDRESS`",
        )
    found = everywhere(client, gpus.own)
    without = sorted(address for address, own in found.items() if own is None)
    if without:
        raise TipcastError(
            "K006", ", ".join(without), "worker without a GPU", "start workers with `dask cuda worker ADDRESS`"
        )
    shared = [name for name, workers in Counter(own[0] for own in found.values() if own).items() if workers > 1]
    if shared:
        raise TipcastError(
            "K006",
            shared[0],
            "more than one worker computes on this GPU",
            "start workers with `dask cuda worker ADDRESS`, once on each machine",
        )
    everywhere(client, warm)
    return [own[1] for own in found.values() if own]


def everywhere(client: Client, function: Callable[..., T], *arguments: Any) -> dict[str, T]:
    """Run a function as a task on every worker; return worker's address -> result."""
    futures = {
        address: client.submit(function, *arguments, workers=[address], pure=False, key=None)
        for address in client.nthreads()
    }
    return dict(zip(futures, client.gather(list(futures.values())), strict=True))


@travelling
def warm() -> None:
    """Load the libraries and read a small file each way; then watch the device's memory."""
    missing = gpus.missing_packages()
    if missing:
        raise TipcastError("K007", "a worker", f"packages are missing: {', '.join(missing)}", gpus.INSTALL)
    import cudf  # noqa: F401 - its import takes seconds
    import cupy
    from rmm.allocators.cupy import rmm_cupy_allocator

    cupy.cuda.set_allocator(rmm_cupy_allocator)  # one pool for CuPy and cuDF
    device_memory.watch()
    frames = GpuFrames()
    table = pa.table(
        {
            "time": pa.array([0, None, 3], pa.timestamp("us")),
            "whole": pa.array([1, 2, 3], pa.int64()),
            "real": pa.array([0.5, None, 2.5], pa.float64()),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "warm.parquet"
        pq.write_table(table, path, compression="zstd")
        frames.read_parquet(str(path), [0], table.column_names, {})
    frames.read_csv(b"2019-02-01 18:30:00,1.5,\n", table.column_names, table.column_names, ["time"])
    values = cupy.zeros((4, 2), dtype=cupy.float32, order="F")
    frames.frame(values, ["a", "b"]).values.sum().item()
    frames.series(values[:, 0], "a").values.sum().item()
