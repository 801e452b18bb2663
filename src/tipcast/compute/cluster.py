"""Clusters: how each kind is opened, and the error when one fails."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from typing import Any

import dask.system
from distributed import Client, LocalCluster
from distributed.comm.core import CommClosedError
from distributed.scheduler import KilledWorker, NoValidWorkerError, NoWorkerError

from tipcast.compute import cuda_cluster, forkserver, scheduler, workers
from tipcast.config import schema
from tipcast.config.errors import TipcastError

LOG = logging.getLogger("tipcast")

NEVER = "36500 days"
"""A duration for Dask, which takes no infinite one."""

CORES_PER_PROCESS = 16
"""Threads of one process share its data, but contend with each other beyond about this many."""
LEAST_MEMORY = "512MiB"
"""What a worker process needs for the libraries alone."""


@contextlib.contextmanager
def connect(spec: schema.ClusterSpec, frame_library: str) -> Iterator[Client]:
    """Open a cluster that passed ``check``, wait for its workers, close it at the end.

    ``frame_library`` is Dask's ``dataframe.backend``: pandas or cudf. K001 scheduler not reached, K002 too few workers
    in time, K003 a task's workers died, or all are paused for lack of memory, K004 scheduler lost, K005 other versions
    there.
    """
    detailed = LOG.isEnabledFor(logging.DEBUG)
    logging.getLogger("distributed").setLevel(logging.INFO if detailed else logging.ERROR)
    for name in workers.QUIET:
        logging.getLogger(name).setLevel(logging.INFO if detailed else logging.CRITICAL)
    settings = dask.config.set(_settings(spec, frame_library))
    with settings, OPENERS[type(spec)](spec) as client, workers.at_work(client, spec.wait_s):
        try:
            if not isinstance(spec, schema.SchedulerCluster) and getattr(spec, "processes", True) is not False:
                client.register_plugin(workers.Quiet())
            yield client
        except Exception as problem:
            error = _cluster_error(problem, spec, client)
            if error is None:
                raise
            raise error from problem


def _cluster_error(problem: Exception, spec: schema.ClusterSpec, client: Client) -> TipcastError | None:
    """Return the error for a failure that the cluster caused; None for any other."""
    if isinstance(problem, TipcastError) and problem.code[0] != "K":
        return None
    address = workers.address(client)
    # Each task fails in its own way when the scheduler goes; the client's status tells.
    if client.status != "running" or isinstance(problem, CommClosedError):
        if isinstance(spec, schema.SchedulerCluster):
            return TipcastError("K004", spec.address, "the scheduler is gone", "start it again and repeat the command")
        return TipcastError("K004", address, "the scheduler is gone", "repeat the command")
    fix = "give workers more memory (cluster.memory_limit) or more, smaller partitions"
    if isinstance(problem, NoValidWorkerError | NoWorkerError):
        what = f"no worker took a task for {spec.wait_s:g} s: they are paused for lack of memory, or gone"
        return TipcastError("K003", address, what, fix)
    if isinstance(problem, KilledWorker | CancelledError):
        return TipcastError("K003", address, f"workers died while computing: {problem}", fix)
    garbled = isinstance(problem, RuntimeError) and "deserialization of the task graph" in str(problem)
    if not isinstance(problem, TipcastError) and (garbled or "No module named 'tipcast" in str(problem)):
        what = "the scheduler or a worker lacks tipcast, or has other versions"
        return TipcastError("K005", address, what, "install the same tipcast on the machines of the cluster")
    return None


def _settings(spec: schema.ClusterSpec, frame_library: str) -> dict[str, Any]:
    return {
        "dataframe.backend": frame_library,
        # After this long without any worker Dask closes a dead worker's nanny for good, even when that worker came back
        # in between or only takes longer to start.
        "distributed.deploy.lost-worker-timeout": NEVER,
        "distributed.scheduler.worker-ttl": f"{spec.worker_ttl_s} s",
        "distributed.scheduler.allowed-failures": spec.allowed_failures,
        "distributed.scheduler.no-workers-timeout": f"{spec.wait_s} s",
        "distributed.scheduler.worker-saturation": 1.0,
        "distributed.comm.timeouts.connect": f"{spec.connect_timeout_s} s",
        "distributed.nanny.pre-spawn-environ": forkserver.SPAWN_ENVIRONMENT,
        "logging": {"distributed": "error", **dict.fromkeys(workers.QUIET, "critical")},  # in the workers
    }


def _local(spec: schema.LocalCluster) -> AbstractContextManager[Client]:
    n_workers, threads = shared_out(spec)
    processes = spec.processes is not False
    own = {"env": workers.environment()} if processes else {"processes": False, "host": None}
    return workers.local(LocalCluster, spec, n_workers, threads_per_worker=threads, **own)


def cores() -> int:
    """Return how many cores this process may use, by its affinity and its container's limit."""
    return dask.system.cpu_count()


def shared_out(spec: schema.LocalCluster) -> tuple[int, int]:
    """Return the number of workers of a local cluster and the threads of each, by default chosen for the machine."""
    n_workers = spec.n_workers or math.ceil(cores() / CORES_PER_PROCESS)
    return n_workers, spec.threads_per_worker or max(cores() // n_workers, 1)


def check(spec: schema.ClusterSpec) -> None:
    """Refuse a cluster that cannot or must not be opened, without opening it.

    C003 no such kind, C009 an address that needs TLS; those of the kind's own check.
    """
    kind = next((name for name, known in schema.CLUSTERS.items() if type(spec) is known), None)
    if kind is None or spec.kind != kind:
        what = f"must be {kind or 'that of a known cluster'}, got {spec.kind}"
        fix = f"leave it out and choose cluster={kind or 'local'}, or another of {', '.join(schema.CLUSTERS)}"
        raise TipcastError("C003", "cluster.kind", what, fix)
    CHECKS[type(spec)](spec)


def _check_local(spec: schema.LocalCluster) -> None:
    """Refuse more workers than the machine can start, and less memory than a worker needs."""
    most = max(4 * cores(), 8)
    if (spec.n_workers or 1) > most:
        what = f"must be at most {most} on {cores()} cores, got {spec.n_workers}"
        raise TipcastError("C003", "cluster.n_workers", what, "use fewer, or null")
    try:
        if dask.utils.parse_bytes(spec.memory_limit or LEAST_MEMORY) < dask.utils.parse_bytes(LEAST_MEMORY):
            raise ValueError(f"must be at least {LEAST_MEMORY}, got {spec.memory_limit}")
    except ValueError as problem:
        raise TipcastError("C003", "cluster.memory_limit", str(problem), "write it as 8GiB") from problem


OPENERS: Mapping[type, Callable[[Any], AbstractContextManager[Client]]] = {
    schema.LocalCluster: _local,
    schema.LocalCudaCluster: cuda_cluster.opened,
    schema.SchedulerCluster: scheduler.opened,
}
"""Class of a specification -> the context manager that opens such a cluster and connects."""
CHECKS: Mapping[type, Callable[[Any], None]] = {
    schema.LocalCluster: _check_local,
    schema.LocalCudaCluster: cuda_cluster.check,
    schema.SchedulerCluster: scheduler.check,
}
