"""The session of a device: its workers, made ready, and its frame library, looked up by the backend's name."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client, performance_report

from tipcast.compute import cluster as cluster_module
from tipcast.compute import gpus
from tipcast.compute.base import Session
from tipcast.compute.cpu import CpuFrames
from tipcast.compute.gpu import GpuFrames
from tipcast.config import schema
from tipcast.config.errors import TipcastError, travelling

T = TypeVar("T")

LOG = logging.getLogger("tipcast")

REPORT_FROM_S = 30.0
"""Seconds from which a block gets a performance report that nobody asked for."""
NOT_FOR = {"cpu": (schema.LocalCudaCluster, "local"), "gpu": (schema.LocalCluster, "local_cuda")}
"""Backend -> a kind of cluster whose workers it cannot use, and the one to use."""


def check(backend: schema.BackendSpec, cluster: schema.ClusterSpec) -> None:
    """Refuse what ``session`` would refuse, before anything is opened.

    Raises
    ------
    TipcastError
        C003 for a backend or a kind of cluster that is not there, or two that do not go together, C009 for an address
        that needs TLS, K006 no GPU, K007 packages that are missing.

    """
    if backend.name not in NOT_FOR:
        raise TipcastError("C003", "backend.name", f"no such backend: {backend.name}", "use backend=cpu or backend=gpu")
    kind, instead = NOT_FOR[backend.name]
    if isinstance(cluster, kind):
        raise TipcastError(
            "C003",
            f"cluster={cluster.kind}",
            f"its workers are not for backend={backend.name}",
            f"use cluster={instead}, or leave cluster out",
        )
    gpus.check(backend, cluster)
    cluster_module.check(cluster)


@contextlib.contextmanager
def session(backend: schema.BackendSpec, cluster: schema.ClusterSpec) -> Iterator[Session]:
    """Open the workers of a device and make its frame library current.

    Yields
    ------
    Session

    Raises
    ------
    TipcastError
        Those of ``check``; K-errors of ``cluster.connect`` and ``prepare_gpus``.

    """
    check(backend, cluster)
    with _OPEN[backend.name](cluster) as opened:
        if LOG.isEnabledFor(logging.DEBUG):
            for address, worker in opened.client.scheduler_info(n_workers=-1)["workers"].items():
                memory = f"{worker['memory_limit'] / 2**20:,.0f} MiB"
                LOG.debug("worker %s on %s: %d threads, %s", address, worker["host"], worker["nthreads"], memory)
        yield opened


@contextlib.contextmanager
def _cpu(cluster: schema.ClusterSpec) -> Iterator[Session]:
    with cluster_module.connect(cluster, "pandas") as client:
        threads = client.nthreads()
        yield Session(
            client=client, device="cpu", frames=CpuFrames(), n_workers=len(threads), n_threads=sum(threads.values())
        )


@contextlib.contextmanager
def _gpu(cluster: schema.ClusterSpec) -> Iterator[Session]:
    with cluster_module.connect(cluster, "cudf") as client, _told():
        found = prepare_gpus(client)
        threads = client.nthreads()
        yield Session(
            client=client,
            device="cuda",
            frames=GpuFrames(),
            n_workers=len(threads),
            n_threads=sum(threads.values()),
            rehearses=True,
            tags={
                "gpu.name": ", ".join(sorted({gpu.name for gpu in found})),
                "gpu.count": str(len(found)),
                "gpu.driver": ", ".join(sorted({gpu.driver for gpu in found})),
            },
        )


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Tell in one line that a GPU's memory ran out, whichever library noticed."""
    try:
        yield
    except TipcastError:
        raise
    except Exception as problem:
        if not (isinstance(problem, MemoryError) or "out of memory" in str(problem)):
            raise
        said = str(problem).strip().partition("\n")[0]
        raise TipcastError(
            "K008",
            "a worker's GPU",
            f"out of memory: {said}",
            "use more GPUs or fewer rows, or set cluster.rmm_managed=true",
        ) from problem


_OPEN = {"cpu": _cpu, "gpu": _gpu}


def prepare_gpus(client: Client) -> list[gpus.Gpu]:
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
    gpus.watch()
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


@contextlib.contextmanager
def recorded(client: Client, path: Path, wanted: bool | None = True) -> Iterator[None]:
    """Record Dask's performance report of a block as one self-contained HTML file; a report that fails is left out.

    Parameters
    ----------
    client
        Of the cluster.
    path
        The file.
    wanted
        None: where the block takes longer than ``REPORT_FROM_S``, as the report itself takes a second or two.

    """
    if wanted is False:
        yield
        return
    report, begun = performance_report(filename=str(path), mode="inline"), time.monotonic()
    report.__enter__()
    yield
    if wanted is None and time.monotonic() - begun < REPORT_FROM_S:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bokeh warns of empty plots when a block is short
        try:
            report.__exit__(None, None, None)  # not after a failure: it would hold up the end by seconds
        except Exception as problem:
            LOG.warning("no Dask performance report: %s", problem)
