"""Clusters: where the workers are, how they are waited for, and what is told of a cluster that fails."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import dask
import distributed
from distributed import Client, LocalCluster
from distributed.comm.core import CommClosedError
from distributed.scheduler import KilledWorker, NoValidWorkerError, NoWorkerError

from tipcast.compute import cuda_cluster, forkserver, remote, workers
from tipcast.config import schema
from tipcast.config.errors import TipcastError

LOG = logging.getLogger("tipcast")

NEVER = "36500 days"
"""For a duration of Dask's, which cannot be infinite."""

CORES_PER_PROCESS = 16
"""Threads of one process share its data; beyond about this many they wait for each other."""
UPLOADED = (".py", ".egg", ".zip")
"""Files that workers can import."""
DASKS = ("distributed.worker", "distributed.scheduler", "distributed.client", "distributed.nanny")
"""Loggers of what a failure is told by anyway."""
LEAST_MEMORY = "512MiB"
"""What a worker process needs for the libraries alone."""


@contextlib.contextmanager
def connect(spec: schema.ClusterSpec, frame_library: str) -> Iterator[Client]:
    """Open a cluster that ``check`` has nothing against, wait for its workers, close it at the end.

    ``frame_library`` is Dask's ``dataframe.backend``: pandas or cudf.

    Raises
    ------
    TipcastError
        K001 scheduler not reached, K002 too few workers in time, K003 a task's workers died, or all are paused for lack
        of memory, K004 scheduler lost, K005 other versions there.

    """
    detailed = LOG.isEnabledFor(logging.DEBUG)
    logging.getLogger("distributed").setLevel(logging.INFO if detailed else logging.ERROR)
    # A failure reaches the driver anyway; what is told beside it comes of work that ran on while the cluster closed.
    for name in (*DASKS, "asyncio", "tornado.application"):
        logging.getLogger(name).setLevel(logging.INFO if detailed else logging.CRITICAL)
    settings = dask.config.set(_settings(spec, frame_library))
    with settings, OPENERS[type(spec)](spec, frame_library) as client, workers.at_work(client, spec.wait_s):
        try:
            if not isinstance(spec, schema.SchedulerCluster) and getattr(spec, "processes", True) is not False:
                client.register_plugin(workers.Quiet())
            for file in spec.upload:
                upload(client, file)
            yield client
        except Exception as problem:
            told = _told(problem, spec, client)
            if told is None:
                raise
            raise told from problem


def upload(client: Client, file: str) -> None:
    """Send a file of Python to all workers, which import it; say of each what became of it.

    Raises
    ------
    TipcastError
        K009 a worker that cannot import it.

    """
    log = logging.getLogger("distributed.core")
    level = log.level
    log.setLevel(logging.CRITICAL)  # the scheduler, which imports it too, would tell a failure with all its frames
    try:
        answers = client.upload_file(file)
    except Exception as problem:
        said = f"{type(problem).__name__}: {problem}".partition("\n")[0]
        fix = "mend the file, or install on the workers what it imports"
        raise TipcastError("K009", file, f"a worker cannot import it: {said}", fix) from problem
    finally:
        log.setLevel(level)
    for address, answer in answers.items():
        LOG.info("upload of %s to %s: %s", file, address, answer.get("status", answer))


def _told(problem: Exception, spec: schema.ClusterSpec, client: Client) -> TipcastError | None:
    """Return the error of a failure that the cluster is the cause of; None of any other."""
    if isinstance(problem, TipcastError) and problem.code[0] != "K":
        return None
    address = workers.address(client)
    # Whatever was under way fails in a way of its own when the scheduler goes; the client knows of it.
    if client.status != "running" or isinstance(problem, CommClosedError):
        if isinstance(spec, schema.SchedulerCluster):
            return TipcastError("K004", spec.address, "the scheduler is gone", "start it again and repeat the command")
        return TipcastError("K004", address, "the scheduler is gone", "repeat the command")
    if isinstance(problem, KilledWorker | NoValidWorkerError | NoWorkerError | CancelledError):
        fix = "give workers more memory (cluster.memory_limit) or more, smaller partitions"
        return TipcastError("K003", address, f"workers died while computing: {problem}", fix)
    garbled = isinstance(problem, RuntimeError) and "deserialization of the task graph" in str(problem)
    if not isinstance(problem, TipcastError) and (garbled or "No module named 'tipcast" in str(problem)):
        what = "the scheduler or a worker lacks tipcast, or has other versions"
        return TipcastError("K005", address, what, "install the same tipcast on the machines of the cluster")
    return None


def _settings(spec: schema.ClusterSpec, frame_library: str) -> dict[str, Any]:
    return {
        "dataframe.backend": frame_library,
        # So long after a worker's death Dask closes its nanny, for good, if no worker is there at that moment: also one
        # that was back and has died again since, or that takes longer to start.
        "distributed.deploy.lost-worker-timeout": NEVER,
        "distributed.scheduler.worker-ttl": f"{spec.worker_ttl_s} s",
        "distributed.scheduler.allowed-failures": spec.allowed_failures,
        "distributed.scheduler.no-workers-timeout": f"{spec.wait_s} s",
        "distributed.scheduler.worker-saturation": 1.0,
        "distributed.comm.timeouts.connect": f"{spec.connect_timeout_s} s",
        "distributed.nanny.pre-spawn-environ": forkserver.SPAWN_ENVIRONMENT,
        "logging": {"distributed": "error", **dict.fromkeys(workers.QUIET, "critical")},  # in the workers
    }


@contextlib.contextmanager
def _local(spec: schema.LocalCluster, _: str) -> Iterator[Client]:
    n_workers, threads = shared_out(spec)
    processes = spec.processes is not False
    start = functools.partial(
        LocalCluster,
        n_workers=n_workers,
        threads_per_worker=threads,
        processes=processes,
        memory_limit=spec.memory_limit or "auto",
        host="127.0.0.1" if processes else None,
        dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": spec.dashboard},  # its pages take a second to import
        **({"env": workers.environment(), "worker_class": workers.Nanny} if processes else {}),
    )
    distributed.utils._forkserver_preload_set = True  # Dask would set its own list, and import all of it here
    method = {"distributed.worker.multiprocessing-method": forkserver.method()}
    with dask.config.set(method), contextlib.ExitStack() as stack:
        try:
            cluster, client = stack.enter_context(workers.closed(start))
        except RuntimeError as problem:
            what = f"no worker process could be started: {problem}"
            raise TipcastError("K002", "cluster=local", what, "repeat the command") from problem
        workers.wait(client, n_workers, spec.wait_s, workers.SLOW)
        if spec.dashboard:
            LOG.info("Dask dashboard: %s", cluster.dashboard_link)
        yield client


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shared_out(spec: schema.LocalCluster) -> tuple[int, int]:
    """Return the workers of a local cluster and the threads of each: as configured, else chosen for the machine."""
    n_workers = spec.n_workers or math.ceil(cores() / CORES_PER_PROCESS)
    return n_workers, spec.threads_per_worker or max(cores() // n_workers, 1)


def check(spec: schema.ClusterSpec) -> None:
    """Refuse a cluster that cannot be or must not be opened, without opening it.

    Raises
    ------
    TipcastError
        C003 no such kind or number, C009 an address that needs TLS; those of the kind's own check.

    """
    for name in ("n_workers", "threads_per_worker"):
        if (number := getattr(spec, name, None)) is not None and number < 1:
            raise TipcastError("C003", f"cluster.{name}", f"must be at least 1, got {number}", "use 1 or more")
    for name in ("wait_s", "worker_ttl_s", "connect_timeout_s"):
        if not (seconds := getattr(spec, name)) > 0:
            raise TipcastError("C003", f"cluster.{name}", f"must be positive, got {seconds}", "use seconds above 0")
    for file in spec.upload:
        if not Path(file).is_file() or Path(file).suffix not in UPLOADED:
            what = f"no file of {', '.join(UPLOADED)}: {file}"
            raise TipcastError("C004", "cluster.upload", what, "name a module or a package as an archive")
    kind = next((name for name, known in schema.CLUSTERS.items() if type(spec) is known), None)
    if kind is None or spec.kind != kind:
        what = f"must be {kind or 'that of a known cluster'}, got {spec.kind}"
        fix = f"leave it out and choose cluster={kind or 'local'}, or another of {', '.join(schema.CLUSTERS)}"
        raise TipcastError("C003", "cluster.kind", what, fix)
    CHECKS[type(spec)](spec)


def _check_local(spec: schema.LocalCluster) -> None:
    """Refuse more workers than the machine could start, and less memory than one of them needs."""
    most = max(4 * cores(), 8)
    if (spec.n_workers or 1) > most:
        what = f"must be at most {most} on {cores()} cores, got {spec.n_workers}"
        raise TipcastError("C003", "cluster.n_workers", what, "use fewer, or null")
    try:
        if dask.utils.parse_bytes(spec.memory_limit or LEAST_MEMORY) < dask.utils.parse_bytes(LEAST_MEMORY):
            raise ValueError(f"{spec.memory_limit} is too little: a worker needs {LEAST_MEMORY}")
    except ValueError as problem:
        raise TipcastError("C003", "cluster.memory_limit", str(problem), "write it as 8GiB") from problem


OPENERS: Mapping[type, Callable[[Any, str], AbstractContextManager[Client]]] = {
    schema.LocalCluster: _local,
    schema.LocalCudaCluster: cuda_cluster.opened,
    schema.SchedulerCluster: remote.scheduler,
    schema.SshCluster: remote.ssh,
    schema.SlurmCluster: remote.slurm,
}
"""Class of a specification -> what opens such a cluster for a frame library and connects."""
CHECKS: Mapping[type, Callable[[Any], None]] = {
    schema.LocalCluster: _check_local,
    schema.LocalCudaCluster: cuda_cluster.check,
    schema.SchedulerCluster: remote.check_scheduler,
    schema.SshCluster: remote.check_ssh,
    schema.SlurmCluster: remote.check_slurm,
}
