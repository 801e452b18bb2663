"""Open a session, the workers of a backend and its frame library, and record what it has taken."""

from __future__ import annotations

import contextlib
import logging
import re
import resource
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from dask.utils import format_bytes
from distributed import Client, performance_report

from tipcast.compute import cluster as clusters
from tipcast.compute import gpus
from tipcast.compute.base import Session, out_of_memory
from tipcast.compute.cluster import connect
from tipcast.compute.frames import CpuFrames, GpuFrames
from tipcast.compute.workers import known
from tipcast.config import schema
from tipcast.config.errors import TipcastError, incompatible, missing, travelling, unknown

LOG = logging.getLogger("tipcast")

NOT_FOR = {"cpu": (schema.LocalCudaCluster, "local"), "gpu": (schema.LocalCluster, "local_cuda")}
"""Backend -> a kind of cluster that it cannot use, and the one to use instead."""


def check(backend: schema.BackendSpec, cluster: schema.ClusterSpec) -> None:
    """Refuse before anything is opened what ``session`` would refuse.

    C003 an unknown backend or kind of cluster, or two that do not go together, C009, K006 and K007 of these.
    """
    if backend.name not in NOT_FOR:
        raise unknown("backend.name", "backend", backend.name, NOT_FOR, "C003")
    kind, instead = NOT_FOR[backend.name]
    if isinstance(cluster, kind):
        fix = f"use cluster={instead}, or leave cluster out"
        raise incompatible(f"cluster={cluster.kind}", f"backend={backend.name}", fix)
    gpus.check(backend, cluster)
    clusters.check(cluster)


@contextlib.contextmanager
def session(backend: schema.BackendSpec, cluster: schema.ClusterSpec) -> Iterator[Session]:
    """Open the workers of a backend that passed ``check``, and make its frame library current.

    Those of ``cluster.connect`` and ``own_gpus``, K007 a worker without RAPIDS.
    """
    gpu = backend.name == "gpu"
    with connect(cluster, "cudf" if gpu else "pandas") as client:
        try:
            yield _opened(client, gpu)
        except Exception as problem:
            if isinstance(problem, TipcastError) or not (gpu and out_of_memory(problem)):
                raise
            said = str(problem).strip().partition("\n")[0]
            fix = "use more GPUs or fewer rows, or set cluster.rmm_managed=true"
            raise TipcastError("K008", "a worker's GPU", f"out of memory: {said}", fix) from problem


def _opened(client: Client, gpu: bool) -> Session:
    devices = {}
    if gpu:
        found = own_gpus(client)
        client.gather([client.submit(_load, workers=[address], pure=False) for address in client.nthreads()])
        devices = {
            "gpu.name": ", ".join(sorted({gpu.name for gpu in found})),
            "gpu.count": str(len(found)),
            "gpu.driver": ", ".join(sorted({gpu.driver for gpu in found})),
        }
    workers = known(client)
    for address, worker in workers.items():
        memory = format_bytes(worker["memory_limit"] or 0)
        LOG.debug("worker %s on %s: %d threads, %s", address, worker["host"], worker["nthreads"], memory)
    return Session(
        client=client,
        device="cuda" if gpu else "cpu",
        frames=GpuFrames() if gpu else CpuFrames(),
        n_workers=len(workers),
        n_threads=sum(worker["nthreads"] for worker in workers.values()),
        devices=devices,
    )


@contextlib.contextmanager
def recorded(client: Client, path: Path, wanted: bool = True) -> Iterator[None]:
    """Record Dask's performance report of a block as one self-contained HTML file; log a warning where that fails."""
    if not wanted:
        yield
        return
    report = performance_report(filename=str(path), mode="inline")
    report.__enter__()
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bokeh warns of empty plots when a block is short
        try:
            report.__exit__(None, None, None)  # not after a failure, which it would delay by seconds
        except Exception as problem:
            LOG.warning("no Dask performance report: %s", problem)


def peak_bytes() -> int:
    """Return the largest resident set of this process so far, in bytes."""
    status = Path("/proc/self/status")  # on Linux ru_maxrss begins with that of the process which started this one
    peak = re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text(), re.MULTILINE) if status.exists() else None
    if peak:
        return int(peak[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def peaks(client: Client) -> dict[str, int]:
    """Return the largest resident sets and, where workers have devices, the most memory in use on one, in bytes.

    They are of the ``driver``, of all ``worker`` processes, and of the ``device`` (see ``gpus.Watcher``).
    """
    workers = client.run(peak_bytes, on_error="ignore")  # one may die even now
    devices = [peak for peak in client.run(gpus.peak_bytes, on_error="ignore").values() if peak is not None]
    most = {"driver": peak_bytes(), "worker": max(workers.values(), default=0)}
    return most | ({"device": max(devices)} if devices else {})


def own_gpus(client: Client) -> list[gpus.Gpu]:
    """Return the GPU of each worker; refuse workers that do not have one each to themselves.

    K006 a worker without a GPU, or one of several threads or workers.
    """
    found: dict[str, list[gpus.Gpu]] = client.run(gpus.visible)
    several = sorted(address for address, threads in client.nthreads().items() if threads > 1)
    without = sorted(address for address, there in found.items() if not there)
    first = [there[0] for there in found.values() if there]
    shared = [name for name, number in Counter(gpu.uuid for gpu in first).items() if number > 1]
    for where, what in (
        (several, "worker with several threads, which would share a GPU"),
        (without, "worker without a GPU"),
        (shared, "more than one worker computes on this GPU"),
    ):
        if where:
            fix = "start workers with `dask cuda worker ADDRESS`, once on each machine"
            raise TipcastError("K006", ", ".join(where), what, fix)
    return first


@travelling
def _load() -> None:
    """Load the libraries, read a small file, let CuPy take its memory from cuDF's pool, and watch the device's."""
    if packages := gpus.missing_packages():
        raise missing("a worker", f"packages: {', '.join(packages)}", gpus.INSTALL, "K007")
    import cudf  # noqa: F401 - its import takes seconds
    import cupy
    from rmm.allocators.cupy import rmm_cupy_allocator

    cupy.cuda.set_allocator(rmm_cupy_allocator)  # one pool for CuPy and cuDF
    gpus.watch()
    with tempfile.TemporaryDirectory() as folder:  # its reader sets itself up for half a second
        pq.write_table(pa.table({"real": [0.5, None]}), file := f"{folder}/small.parquet", compression="zstd")
        GpuFrames().read_parquet(file, [0], ["real"], {})
