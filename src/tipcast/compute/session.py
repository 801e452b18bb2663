"""Open a session: the workers of a backend and its frame library; measure the memory it takes."""

import contextlib
import logging
import re
import resource
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import dask
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client, performance_report
from distributed.comm.core import CommClosedError
from distributed.scheduler import KilledWorker, NoValidWorkerError, NoWorkerError

from tipcast.compute import cluster as clusters
from tipcast.compute import forkserver, gpus
from tipcast.compute.base import Session, out_of_memory
from tipcast.compute.frames import CpuFrames, GpuFrames
from tipcast.compute.local_cluster import NOISY_LOGGERS
from tipcast.compute.watch import at_work, naming_lost_workers
from tipcast.config import schema
from tipcast.config.errors import TipcastError, incompatible, missing, travelling, unknown

LOG = logging.getLogger("tipcast")

NOT_FOR = {"cpu": (schema.LocalCudaCluster, "local"), "gpu": (schema.LocalCluster, "local_cuda")}
"""Backend -> a kind of cluster that it cannot use, and the one to use instead."""
NEVER = "36500 days"
"""A duration for Dask, which takes no infinite one."""


def check(backend: schema.BackendSpec, cluster: schema.ClusterSpec) -> None:
    """Refuse a backend and a cluster that ``open_session`` cannot open, before anything is opened.

    Raises C003 for an unknown backend or kind of cluster, and for two that do not go together; K007
    for missing packages; and what ``cluster.check`` raises.
    """
    if backend.name not in NOT_FOR:
        raise unknown("backend.name", "backend", backend.name, NOT_FOR, "C003")
    kind, instead = NOT_FOR[backend.name]
    if isinstance(cluster, kind):
        fix = f"use cluster={instead}, or leave cluster out"
        raise incompatible(f"cluster={cluster.kind}", f"backend={backend.name}", fix)
    # Of most jobs this is the second time: a command checks the GPUs before the job's libraries
    # load. The ladder and the doctor come here alone.
    gpus.check(backend, cluster)
    clusters.check(cluster)


@contextlib.contextmanager
def open_session(backend: schema.BackendSpec, cluster: schema.ClusterSpec) -> Iterator[Session]:
    """Open the workers of a backend that passed ``check``, and make its frame library current.

    Raises what ``cluster.opened``, ``cluster.wait_for_workers`` and ``own_gpus`` raise. In the
    block it raises K003 if a task's workers died or all are paused for lack of memory, K004 if the
    scheduler is lost or frozen, K005 if it has other versions, and K008 if a GPU's memory is full.
    """
    gpu = backend.name == "gpu"
    _set_levels()

    with (
        dask.config.set(_dask_settings(cluster, gpu)),
        clusters.opened(cluster) as client,
        at_work(client, cluster.wait_s, cluster.worker_ttl_s),
        naming_lost_workers(client),
    ):
        try:
            clusters.wait_for_workers(client, cluster)
            yield _session_of(client, gpu)
        except Exception as problem:
            if error := _cluster_error(problem, cluster, client, gpu):
                raise error from problem
            raise


def _session_of(client: Client, gpu: bool) -> Session:
    """Return the session of workers that are up; the GPUs of workers that have them are ready."""
    threads = client.nthreads().values()
    n_workers = len(threads)
    n_threads = sum(threads)
    if not gpu:
        return Session(client, "cpu", CpuFrames(), n_workers, n_threads)

    worker_gpus = own_gpus(client)
    params = {
        "gpu.name": ", ".join(sorted({gpu.name for gpu in worker_gpus})),
        "gpu.count": str(len(worker_gpus)),
        "gpu.driver": ", ".join(sorted({gpu.driver for gpu in worker_gpus})),
    }
    free = min(gpu.free_bytes for gpu in worker_gpus)
    return Session(client, "cuda", GpuFrames(), n_workers, n_threads, params, free_bytes=free)


def _set_levels() -> None:
    """Silence Dask's loggers in this process, unless ``-v`` shows what they log."""
    level = logging.ERROR
    noisy_level = logging.CRITICAL
    if LOG.isEnabledFor(logging.DEBUG):
        level = logging.INFO
        noisy_level = logging.INFO

    logging.getLogger("distributed").setLevel(level)
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(noisy_level)


def _dask_settings(cluster: schema.ClusterSpec, gpu: bool) -> dict[str, object]:
    """Return the settings of Dask's configuration that hold while a session is open."""
    return {
        "dataframe.backend": "cudf" if gpu else "pandas",
        # After this long without any worker Dask closes a dead worker's nanny for good, even when
        # that worker came back in between or only takes longer to start.
        "distributed.deploy.lost-worker-timeout": NEVER,
        "distributed.scheduler.worker-ttl": f"{cluster.worker_ttl_s} s",
        "distributed.scheduler.allowed-failures": cluster.allowed_failures,
        "distributed.scheduler.no-workers-timeout": f"{cluster.wait_s} s",
        # No worker is given rows to read ahead of its work.
        "distributed.scheduler.worker-saturation": 1.0,
        "distributed.comm.timeouts.connect": f"{cluster.connect_timeout_s} s",
        "distributed.nanny.pre-spawn-environ": forkserver.SPAWN_ENVIRONMENT,
    }


def _cluster_error(
    problem: Exception, spec: schema.ClusterSpec, client: Client, gpu: bool
) -> TipcastError | None:
    """Return the error for a failure that the cluster caused; None for any other."""
    if isinstance(problem, TipcastError) and problem.code[0] != "K":
        return None

    address = clusters.address(client)
    # Each task fails in its own way when the scheduler goes; the client's status tells.
    if client.status != "running" or isinstance(problem, CommClosedError):
        where = getattr(spec, "address", address)
        fix = "restart it (unless tipcast started it) and repeat the command"
        return TipcastError("K004", where, "the scheduler is gone", fix)

    fix = "give workers more memory (cluster.memory_limit), or read smaller parts"
    if isinstance(problem, NoValidWorkerError | NoWorkerError):
        what = (
            f"no worker took a task for {spec.wait_s:g} s: all are gone, or paused "
            "because memory is low"
        )
        return TipcastError("K003", address, what, f"start workers, {fix}")
    if isinstance(problem, KilledWorker):
        deaths = problem.allowed_failures + 1
        what = f"{deaths} workers died, one after another, while running the same task"
        return TipcastError("K003", problem.last_worker.address, what, fix)
    if isinstance(problem, CancelledError):
        return TipcastError("K003", address, f"workers died while computing: {problem}", fix)

    if isinstance(problem, TipcastError):
        return None
    return _task_error(problem, address, gpu)


def _task_error(problem: Exception, address: str, gpu: bool) -> TipcastError | None:
    """Return the error for a full GPU, or for workers with other code; None for other failures.

    ``address`` is the scheduler's.
    """
    text = str(problem)
    if gpu and out_of_memory(problem):
        what = f"out of memory: {text.strip().partition(chr(10))[0]}"
        fix = "use more GPUs or fewer rows, or set cluster.rmm_managed=true"
        return TipcastError("K008", "a worker's GPU", what, fix)

    garbled = isinstance(problem, RuntimeError) and "deserialization of the task graph" in text
    if garbled or "No module named 'tipcast" in text:
        what = "the scheduler or a worker lacks tipcast, or has other versions of packages"
        fix = "install the same tipcast and packages on all machines of the cluster"
        return TipcastError("K005", address, what, fix)

    return None


@contextlib.contextmanager
def write_performance_report(client: Client, path: Path, enabled: bool = True) -> Iterator[None]:
    """Record Dask's performance report of a block as one self-contained HTML file.

    Logs a warning if that fails.
    """
    if not enabled:
        yield
        return

    report = performance_report(filename=str(path), mode="inline")
    report.__enter__()
    yield

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bokeh warns of empty plots when a block is short
        try:
            # Only after success: writing the report would delay a failure by seconds.
            report.__exit__(None, None, None)
        except Exception as problem:
            LOG.warning("no Dask performance report: %s", problem)


def peak_bytes() -> int:
    """Return the largest resident set of this process so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        peak = re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text(), re.MULTILINE)
        if peak:
            return int(peak[1]) * 1024

    # On Linux this would start at the peak of the parent process.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def peaks(client: Client) -> dict[str, int]:
    """Return the largest resident sets of the ``driver`` and of any ``worker``, in bytes.

    If workers have GPUs, ``device`` is the most memory in use on one (see ``gpus.Watcher``).
    """
    processes = client.run(peak_bytes, on_error="ignore")  # a process may die even now
    devices = [
        peak for peak in client.run(gpus.peak_bytes, on_error="ignore").values() if peak is not None
    ]

    largest = {"driver": peak_bytes(), "worker": max(processes.values(), default=0)}
    if devices:
        largest["device"] = max(devices)
    return largest


def own_gpus(client: Client) -> list[gpus.Gpu]:
    """Check that each worker has a GPU of its own, make the GPUs ready, and return them.

    Raises K006 if a worker has no GPU, or shares one with other workers or among its threads, and
    K007 if a worker lacks RAPIDS.
    """
    visible_gpus: dict[str, list[gpus.Gpu]] = client.run(gpus.visible)
    several = sorted(address for address, threads in client.nthreads().items() if threads > 1)
    without = sorted(address for address, devices in visible_gpus.items() if not devices)
    first = [devices[0] for devices in visible_gpus.values() if devices]
    shared = [name for name, number in Counter(gpu.uuid for gpu in first).items() if number > 1]

    for where, what in (
        (several, "worker with several threads, which would share a GPU"),
        (without, "worker without a GPU"),
        (shared, "more than one worker computes on this GPU"),
    ):
        if where:
            fix = "start workers with `dask cuda worker ADDRESS`, once on each machine"
            raise TipcastError("K006", ", ".join(where), what, fix)

    client.gather([client.submit(_load, workers=[address], pure=False) for address in visible_gpus])
    return first


@travelling
def _load() -> None:
    """Load the libraries of a GPU, and let CuPy take its memory from cuDF's pool.

    Also read a small file, so that readers set themselves up, and watch the device's memory. Raises
    K007 if packages are missing.
    """
    if packages := gpus.missing_packages():
        raise missing("a worker", f"packages: {', '.join(packages)}", gpus.INSTALL, "K007")

    import cudf  # noqa: F401 - its import takes seconds
    import cupy
    from rmm.allocators.cupy import rmm_cupy_allocator

    cupy.cuda.set_allocator(rmm_cupy_allocator)  # one pool for CuPy and cuDF
    gpus.watch()
    # cuDF's reader takes half a second to set itself up.
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/small.parquet"
        pq.write_table(pa.table({"real": [0.5, None]}), file, compression="zstd")
        GpuFrames().read_parquet(file, [0], ["real"], {})
