"""Clusters: which are refused before anything starts, how each kind is opened, and its workers."""

import contextlib
import logging
import math
import multiprocessing
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import dask
import dask.system
from distributed import Client, LocalCluster, as_completed

from tipcast.compute import gpus
from tipcast.compute.forkserver import CORES_PER_PROCESS
from tipcast.compute.local_cluster import SLOW, SilenceLoggers, open_local
from tipcast.compute.scheduler_cluster import check_scheduler, open_scheduler
from tipcast.config import schema
from tipcast.config.errors import TipcastError, incompatible, must_be

if TYPE_CHECKING:
    from distributed import Future

T = TypeVar("T")
LOG = logging.getLogger("tipcast")

TOGETHER = {"NCCL_COMM_BLOCKING": "1"}
"""Variables of workers that fit together on several GPUs.

By default XGBoost polls NCCL every 5 ms, for each level of a tree. With this variable it blocks,
and cannot time out while NCCL starts. That does no harm: these workers are killed with the job.
"""
SIZES = ("memory_limit", "device_memory_limit", "rmm_pool_size")
"""Keys that hold a size or a share of memory."""

cores = dask.system.cpu_count
"""Returns the cores that this process may use, by its affinity and its container's limit."""


def check(spec: schema.ClusterSpec) -> None:
    """Refuse a cluster that cannot or must not be opened, without opening it.

    Raises C003 for an unknown kind, a bad value or a bad certificate, C004 for missing
    certificates, C009 for an address that needs TLS, K002 for processes that a daemon may not
    start, K006 if there are fewer GPUs than workers, and K008 if a GPU has less free memory than
    its worker's pool takes.
    """
    _check_kind(spec)
    _check_sizes(spec)

    if isinstance(spec, schema.LocalCluster):
        _check_local(spec)
    if isinstance(spec, schema.LocalCluster | schema.LocalCudaCluster):
        _check_daemon(spec)
    if isinstance(spec, schema.LocalCudaCluster):
        _check_gpus(spec)
    if isinstance(spec, schema.SchedulerCluster):
        check_scheduler(spec)


def _check_kind(spec: schema.ClusterSpec) -> None:
    """Refuse a ``kind`` other than that of the chosen option; C003."""
    kind = next(
        (name for name, of_kind in schema.CLUSTERS.items() if type(spec) is of_kind), "local"
    )
    if spec.kind != kind:
        fix = f"leave it out and choose cluster={kind}, or another of {', '.join(schema.CLUSTERS)}"
        raise must_be("cluster.kind", kind, spec.kind, fix)


def _check_sizes(spec: schema.ClusterSpec) -> None:
    """Refuse a size of memory that Dask would not read; C003."""
    for name in SIZES:
        value = getattr(spec, name, None)
        if value is not None and not _is_size(value):
            fix = "write a size as 8GiB, a share of a GPU as 0.5, or null for none"
            raise must_be(f"cluster.{name}", "a share or a size", repr(value), fix)


def _is_size(value: float | str) -> bool:
    """Tell whether Dask reads a value as a share of a memory, or as a size."""
    if isinstance(value, float):
        return 0 < value <= 1
    try:
        return dask.utils.parse_bytes(value) > 0
    except (ValueError, TypeError):
        return False


def _check_local(spec: schema.LocalCluster) -> None:
    """Refuse more workers than the machine's cores can serve, and variables for threads; C003."""
    most = max(4 * cores(), 8)
    if (spec.n_workers or 1) > most:
        raise must_be(
            "cluster.n_workers",
            f"at most {most} on {cores()} cores",
            spec.n_workers,
            "use fewer",
        )

    if spec.environment and spec.processes is False:
        fix = "set the variables for the command itself"
        raise incompatible("cluster.environment", "cluster.processes=false", fix)


def _check_daemon(spec: schema.LocalCluster | schema.LocalCudaCluster) -> None:
    """Refuse worker processes in a daemonic process; K002."""
    if not multiprocessing.current_process().daemon or in_threads(spec):
        return

    what = (
        "a daemonic process, such as a Celery task or a multiprocessing.Pool worker, cannot start "
        "worker processes"
    )
    fix = "run it in a non-daemonic process"
    if isinstance(spec, schema.LocalCluster):
        fix = f"set cluster.processes=false, or {fix}"
    raise TipcastError("K002", f"cluster={spec.kind}", what, fix)


def _check_gpus(spec: schema.LocalCudaCluster) -> None:
    """Refuse more workers than visible GPUs (K006), and pools larger than a GPU's free memory
    (K008).
    """
    visible = gpus.visible()
    if (spec.n_workers or 0) > len(visible):
        what = f"{spec.n_workers} workers need one GPU each, but {len(visible)} are visible"
        fix = f"set it to {len(visible)} or null, or check CUDA_VISIBLE_DEVICES"
        raise TipcastError("K006", "cluster.n_workers", what, fix)

    if spec.rmm_pool_size is None or spec.rmm_managed:
        return
    for gpu in visible[: spec.n_workers]:
        pool = _size(spec.rmm_pool_size, gpu.memory_bytes)
        if pool > gpu.free_bytes:
            free = f"{gpu.uuid} has only {gpu.free_bytes / 1e9:.1f} GB free"
            what = f"a worker's pool takes {pool / 1e9:.1f} GB, but {free}"
            fix = (
                "lower it or set it to null, end other processes on that GPU (see nvidia-smi), or "
                "leave it out of CUDA_VISIBLE_DEVICES"
            )
            raise TipcastError("K008", "cluster.rmm_pool_size", what, fix)


def _size(value: float | str, memory_bytes: int) -> int:
    """Return a size in bytes; a float is a share of a memory."""
    if isinstance(value, float):
        return int(value * memory_bytes)
    return int(dask.utils.parse_bytes(value))


def opened(spec: schema.ClusterSpec) -> AbstractContextManager[Client]:
    """Open a cluster that passed ``check`` and close it at the end; its workers may come later.

    Raises K001 if no scheduler answers, K002 if a worker process ends while it starts.
    """
    if isinstance(spec, schema.SchedulerCluster):
        return open_scheduler(spec)
    if isinstance(spec, schema.LocalCudaCluster):
        return _cuda(spec)

    assert isinstance(spec, schema.LocalCluster)  # noqa: S101 - ``check`` knows no other kind
    return _local(spec)


@contextlib.contextmanager
def _cuda(spec: schema.LocalCudaCluster) -> Iterator[Client]:
    """Start a worker for each GPU of this machine."""
    from dask_cuda import LocalCUDACluster

    n_workers = spec.n_workers or len(gpus.visible())
    variables = {name: os.environ.get(name, value) for name, value in TOGETHER.items()}
    options = {
        "device_memory_limit": spec.device_memory_limit,
        "enable_cudf_spill": True,
        "rmm_pool_size": spec.rmm_pool_size,
        "rmm_managed_memory": spec.rmm_managed,
        "protocol": "tcp",
        "threads_per_worker": 1,
    }
    with (
        # A stolen task moves its rows from one GPU through the host's memory to another.
        dask.config.set({"distributed.scheduler.work-stealing": False}),
        open_local(LocalCUDACluster, spec, n_workers, variables, **options) as client,
    ):
        yield client


@contextlib.contextmanager
def _local(spec: schema.LocalCluster) -> Iterator[Client]:
    """Start worker processes of this machine, or workers that are threads of this process."""
    n_workers, threads = shared_out(spec)
    options: dict[str, Any] = {"threads_per_worker": threads}

    if in_threads(spec):
        options |= {"processes": False, "host": None}
        if spec.processes is None:
            LOG.warning(
                "workers are threads (cluster.processes=false): a daemonic process cannot "
                "start worker processes"
            )

    with open_local(LocalCluster, spec, n_workers, {}, **options) as client:
        yield client


def wait_for_workers(client: Client, spec: schema.ClusterSpec) -> None:
    """Wait for the workers of a cluster that is open; K002 if too few come up in time.

    Those that this process has started are silenced.
    """
    if isinstance(spec, schema.SchedulerCluster):
        fix = "start workers with `dask worker ADDRESS`, or lower cluster.n_workers"
        wait(client, spec.n_workers, spec.wait_s, fix)
        return

    assert isinstance(spec, schema.LocalCluster | schema.LocalCudaCluster)  # noqa: S101 - as above
    cluster: Any = client.cluster
    wait(client, len(cluster.worker_spec), spec.wait_s, SLOW)
    if not in_threads(spec):
        client.register_plugin(SilenceLoggers())
    if spec.dashboard:
        LOG.info("Dask dashboard: %s", cluster.dashboard_link)


def in_threads(spec: schema.ClusterSpec) -> bool:
    """Tell whether the workers are threads of this process.

    They are if ``cluster.processes=false`` asks for it, and in a daemonic process, which may start
    no other.
    """
    if not isinstance(spec, schema.LocalCluster):
        return False
    unset = spec.processes is None and not spec.environment
    return spec.processes is False or (unset and multiprocessing.current_process().daemon)


def shared_out(spec: schema.LocalCluster) -> tuple[int, int]:
    """Return the number of workers of a local cluster and the threads of each.

    What the configuration leaves open is chosen for the machine's cores.
    """
    n_workers = spec.n_workers or math.ceil(cores() / CORES_PER_PROCESS)
    return n_workers, spec.threads_per_worker or max(cores() // n_workers, 1)


def worker_info(client: Client) -> dict[str, Any]:
    """Return what the scheduler knows about each worker, by address.

    The values are those of ``Client.scheduler_info``; empty without a scheduler.
    """
    if not client.scheduler:
        return {}

    # Not by Client.scheduler_info: the client's periodic refresh may overwrite the answer before it
    # is returned.
    identity = client.sync(client.scheduler.identity, n_workers=-1)
    return dict(identity["workers"])


def wait(client: Client, n_workers: int, wait_s: float, fix: str) -> None:
    """Wait up to ``wait_s`` seconds for workers; K002 if they are fewer than ``n_workers`` then."""
    try:
        client.wait_for_workers(n_workers, timeout=wait_s)
    except TimeoutError as problem:
        what = f"{len(worker_info(client))} of {n_workers} workers after {wait_s:g} s"
        raise TipcastError("K002", address(client), what, fix) from problem


def worker_names(client: "Client") -> dict[str, str]:
    """Return address -> name of all workers."""
    return {address: str(info["name"]) for address, info in worker_info(client).items()}


def successors(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return old address -> the address of the worker that has its place now, if any.

    Both are address -> name of workers.
    """
    by_name = {name: address for address, name in now.items()}
    places = {address: by_name[name] for address, name in before.items() if name in by_name}

    # A worker that was started without a name has its address as one.
    newcomers = sorted(set(now) - set(places.values()))
    vacant = sorted(set(before) - set(places))
    return places | dict(zip(vacant, newcomers, strict=False))


def at_home(address: str) -> dict[str, Any]:
    """Return arguments of ``Client.submit`` and ``Client.map``: tasks run on the worker of an
    address, or on another one if that worker is gone.
    """
    return {"workers": [address], "allow_other_workers": True}


def restart(client: Client, addresses: Collection[str]) -> None:
    """End workers and all their tasks; their nannies, if they have any, start others."""
    # Client.restart_workers would wait for the other workers, and refuse those without a nanny.
    scheduler: Any = client.scheduler
    client.sync(
        scheduler.restart_workers,
        workers=list(addresses),
        wait_for_workers=False,
        on_error="return",
        stimulus_id=f"tipcast-restart-{'-'.join(sorted(addresses))}",
    )


def completed(client: Client, futures: "Iterable[Future[T]]") -> "Iterator[tuple[Future[T], T]]":
    """Yield each future with its result as it ends.

    Raises the error of a future that failed, and CancelledError for one that was cancelled, as all
    are when the scheduler goes.
    """
    for future, result in as_completed(list(futures), client.loop, with_results=True):
        # Dask makes this error the result
        if isinstance(result, CancelledError):
            raise result
        yield future, result


def address(client: Client) -> str:
    """Return the scheduler's address, or ``scheduler`` once the client is closed."""
    if not client.scheduler:
        return "scheduler"
    return str(client.scheduler.address)
