"""Clusters: how those of this machine and running schedulers are opened, and the error when one fails."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urlsplit

import dask.system
from distributed import Client, LocalCluster
from distributed.comm.core import CommClosedError
from distributed.comm.core import connect as connect_comm
from distributed.scheduler import KilledWorker, NoValidWorkerError, NoWorkerError
from distributed.security import Security
from distributed.utils import LoopRunner, wait_for

from tipcast.compute import forkserver, gpus, workers
from tipcast.config import schema
from tipcast.config.errors import TipcastError, failed_to, incompatible, must_be, needs_value

LOG = logging.getLogger("tipcast")

NEVER = "36500 days"
"""A duration for Dask, which takes no infinite one."""

CORES_PER_PROCESS = 16
"""Threads of one process share its data, but contend with each other beyond about this many."""
TOGETHER = {"NCCL_COMM_BLOCKING": "1"}
"""Without it XGBoost polls NCCL every 5 ms, for each level of a tree. With it XGBoost cannot time out while NCCL
starts, which does no harm here: these workers are killed with the job."""

cores = dask.system.cpu_count  # that this process may use, by its affinity and its container's limit

HANDSHAKE_S = 2.0
"""Seconds for a connection's handshake, on top of the connect timeout."""
TLS_FIX = "name PEM files in Dask's configuration: ca-file, client.cert and client.key below distributed.comm.tls"


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
    _, opened = KINDS[type(spec)]
    with settings, opened(spec) as client, workers.at_work(client, spec.wait_s):
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
        fix = "start it again, if it was not tipcast's own, and repeat the command"
        return TipcastError("K004", getattr(spec, "address", address), "the scheduler is gone", fix)
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
    }


def _local(spec: schema.LocalCluster) -> AbstractContextManager[Client]:
    n_workers, threads = shared_out(spec)
    processes = spec.processes is not False
    own = {"env": workers.environment(spec.environment)} if processes else {"processes": False, "host": None}
    return workers.local(LocalCluster, spec, n_workers, threads_per_worker=threads, **own)


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
        fix = f"leave it out and choose cluster={kind or 'local'}, or another of {', '.join(schema.CLUSTERS)}"
        raise must_be("cluster.kind", kind or "that of a cluster", spec.kind, fix)
    check_kind, _ = KINDS[type(spec)]
    check_kind(spec)


def _check_local(spec: schema.LocalCluster) -> None:
    """Refuse more workers than the machine can start, a bad size of memory, and variables without processes."""
    most = max(4 * cores(), 8)
    if (spec.n_workers or 1) > most:
        raise must_be("cluster.n_workers", f"at most {most} on {cores()} cores", spec.n_workers, "use fewer, or null")
    if spec.environment and spec.processes is False:
        raise incompatible("cluster.environment", "cluster.processes=false", "set the variables of the command itself")
    _check_sizes(spec, "memory_limit")


def _check_sizes(spec: schema.ClusterSpec, *names: str) -> None:
    """Refuse keys of memory that hold neither a share nor a size."""
    for name in names:
        value = getattr(spec, name)
        try:
            good = value is None or (0 < value <= 1 if isinstance(value, float) else dask.utils.parse_bytes(value) > 0)
        except (ValueError, TypeError):
            good = False
        if not good:
            fix = "write bytes as 8GiB, a share of a GPU as 0.5, none as null"
            raise must_be(f"cluster.{name}", "a share or a size", repr(value), fix)


def _check_scheduler(spec: schema.SchedulerCluster) -> None:
    """Refuse, without connecting, an address without TLS (C009), without certificates (C004) or with bad ones."""
    if _is_open(spec) and not spec.insecure:
        what = "a scheduler runs any client's code and this one is reached without TLS"
        fix = "use a tls:// address, or set cluster.insecure=true on a trusted network"
        raise TipcastError("C009", spec.address, what, fix)
    _certificates(spec)


def _is_open(spec: schema.SchedulerCluster) -> bool:
    host = urlsplit(spec.address if "://" in spec.address else f"tcp://{spec.address}").hostname
    return not spec.address.startswith("tls://") and host not in {"127.0.0.1", "localhost", "::1"}


def _certificates(spec: schema.SchedulerCluster) -> Security | None:
    """Return those of Dask's configuration where the address needs them."""
    if not spec.address.startswith("tls://"):
        return None
    security = Security(require_encryption=True)
    try:
        context = security.get_connection_args("client")["ssl_context"]
    except OSError as problem:  # of a file, or of what is in it
        raise failed_to("read", "distributed.comm.tls", problem, TLS_FIX, "C003") from problem
    if context is None:
        raise needs_value("distributed.comm.tls", TLS_FIX)
    return security


@contextlib.contextmanager
def _scheduler(spec: schema.SchedulerCluster) -> Iterator[Client]:
    """Connect and wait for the workers; K001 where no scheduler answers in time."""
    if _is_open(spec):
        LOG.warning("%s is reached without TLS (cluster.insecure): whoever reaches it can run code there", spec.address)
    security = _certificates(spec)
    try:
        # Dask's connect() has a timeout for the connection but none for the handshake.
        LoopRunner().run_sync(wait_for, _answer(spec, security), spec.connect_timeout_s + HANDSHAKE_S)
        client = Client(spec.address, timeout=spec.connect_timeout_s, security=security)
    except (OSError, TimeoutError, ValueError) as problem:
        why = str(problem) or f"it accepts connections but does not answer within {spec.connect_timeout_s:g} s"
        fix = "start one with `dask scheduler`, set cluster.address, or raise cluster.connect_timeout_s"
        raise TipcastError("K001", spec.address, f"no Dask scheduler here: {why}", fix) from problem
    with client:
        fix = "start workers with `dask worker ADDRESS`, or lower cluster.n_workers"
        workers.wait(client, spec.n_workers, spec.wait_s, fix)
        yield client


async def _answer(spec: schema.SchedulerCluster, security: Security | None) -> None:
    arguments = security.get_connection_args("client") if security else {}
    (await connect_comm(spec.address, timeout=spec.connect_timeout_s, **arguments)).abort()


def _check_cuda(spec: schema.LocalCudaCluster) -> None:
    """Refuse early what Dask-CUDA would: bad sizes, and more workers than GPUs."""
    _check_sizes(spec, "memory_limit", "device_memory_limit", "rmm_pool_size")
    there = len(gpus.visible())
    if spec.n_workers is not None and spec.n_workers > there:
        what = f"{spec.n_workers} workers need a GPU each, {there} are visible"
        fix = f"set it to {there} or null, or look at CUDA_VISIBLE_DEVICES"
        raise TipcastError("K006", "cluster.n_workers", what, fix)


def cuda_environment(spec: schema.LocalCudaCluster) -> dict[str, str]:
    """Return the workers' environment: the user's variables override tipcast's, the configuration's override both."""
    return {name: os.environ.get(name, TOGETHER[name]) for name in TOGETHER} | workers.environment(spec.environment)


@contextlib.contextmanager
def _cuda(spec: schema.LocalCudaCluster) -> Iterator[Client]:
    """Start a worker for each GPU and connect."""
    own = {
        "device_memory_limit": spec.device_memory_limit,
        "enable_cudf_spill": True,
        "rmm_pool_size": spec.rmm_pool_size,
        "rmm_managed_memory": spec.rmm_managed,
        "protocol": "tcp",
    }
    kind, n_workers = functools.partial(_cuda_class(), cuda_environment(spec)), spec.n_workers or len(gpus.visible())
    with (
        # A stolen task moves its rows from one GPU through the host's memory to another.
        dask.config.set({"distributed.scheduler.work-stealing": False}),
        workers.local(kind, spec, n_workers, threads_per_worker=1, **own) as client,
    ):
        yield client


def _cuda_class() -> type:
    """Return Dask-CUDA's cluster class, extended to take an environment for its workers."""
    from dask_cuda import LocalCUDACluster

    class Cluster(LocalCUDACluster):
        def __init__(self, environment: Mapping[str, str], **settings: Any) -> None:
            self._environment = environment
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about CPU affinity, where the system does not tell it
                super().__init__(**settings)

        def new_worker_spec(self) -> dict[Any, Any]:
            specs: dict[Any, Any] = super().new_worker_spec()
            for spec in specs.values():
                spec["options"]["env"] = {**self._environment, **spec["options"]["env"]}
            return specs

    return Cluster


KINDS: Mapping[type, tuple[Callable[[Any], None], Callable[[Any], AbstractContextManager[Client]]]] = {
    schema.LocalCluster: (_check_local, _local),
    schema.LocalCudaCluster: (_check_cuda, _cuda),
    schema.SchedulerCluster: (_check_scheduler, _scheduler),
}
"""Class of a specification -> its check, and the context manager that opens such a cluster and connects."""
