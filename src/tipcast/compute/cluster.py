"""Kinds of clusters: what is refused before anything starts, and how those of this machine and others are opened."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urlsplit

import dask
import dask.system
from distributed import Client, LocalCluster
from distributed.comm.core import connect as connect_comm
from distributed.security import Security
from distributed.utils import LoopRunner, wait_for

from tipcast.compute import gpus, workers
from tipcast.config import schema
from tipcast.config.errors import TipcastError, failed_to, incompatible, must_be, needs_value

LOG = logging.getLogger("tipcast")

CORES_PER_PROCESS = 16
"""Threads of one process share its data, but contend with each other beyond about this many."""
TOGETHER = {"NCCL_COMM_BLOCKING": "1"}
"""Without it XGBoost polls NCCL every 5 ms, for each level of a tree. With it XGBoost cannot time out while NCCL
starts, which does no harm here: these workers are killed with the job."""
SIZES = ("memory_limit", "device_memory_limit", "rmm_pool_size")
"""Keys that hold a size or a share of memory."""

cores = dask.system.cpu_count  # that this process may use, by its affinity and its container's limit

HANDSHAKE_S = 2.0
"""Seconds for a connection's handshake, on top of the connect timeout."""
TLS_FIX = "name PEM files in Dask's configuration: ca-file, client.cert and client.key below distributed.comm.tls"


def check(spec: schema.ClusterSpec) -> None:
    """Refuse a cluster that cannot or must not be opened, without opening it.

    C003 an unknown kind, a bad value or a bad certificate, C004 certificates that are missing, C009 an address that
    needs TLS, K006 fewer GPUs than workers.
    """
    kind = next((name for name, of_kind in schema.CLUSTERS.items() if type(spec) is of_kind), "local")
    if spec.kind != kind:
        fix = f"leave it out and choose cluster={kind}, or another of {', '.join(schema.CLUSTERS)}"
        raise must_be("cluster.kind", kind, spec.kind, fix)
    for name in SIZES:
        value = getattr(spec, name, None)
        try:
            good = value is None or (0 < value <= 1 if isinstance(value, float) else dask.utils.parse_bytes(value) > 0)
        except (ValueError, TypeError):
            good = False
        if not good:
            fix = "write bytes as 8GiB, a share of a GPU as 0.5, none as null"
            raise must_be(f"cluster.{name}", "a share or a size", repr(value), fix)
    if isinstance(spec, schema.LocalCluster):
        most = max(4 * cores(), 8)
        if (spec.n_workers or 1) > most:
            raise must_be("cluster.n_workers", f"at most {most} on {cores()} cores", spec.n_workers, "use fewer")
        if spec.environment and spec.processes is False:
            fix = "set the variables of the command itself"
            raise incompatible("cluster.environment", "cluster.processes=false", fix)
    if isinstance(spec, schema.LocalCudaCluster) and (spec.n_workers or 0) > (there := len(gpus.visible())):
        what = f"{spec.n_workers} workers need a GPU each, {there} are visible"
        fix = f"set it to {there} or null, or look at CUDA_VISIBLE_DEVICES"
        raise TipcastError("K006", "cluster.n_workers", what, fix)
    if isinstance(spec, schema.SchedulerCluster):
        if _is_open(spec) and not spec.insecure:
            what = "a scheduler runs any client's code and this one is reached without TLS"
            fix = "use a tls:// address, or set cluster.insecure=true on a trusted network"
            raise TipcastError("C009", spec.address, what, fix)
        _certificates(spec)


def opened(spec: schema.ClusterSpec) -> AbstractContextManager[Client]:
    """Open a cluster that passed ``check``, wait for its workers, close it at the end.

    K001 scheduler not reached, K002 too few workers in time.
    """
    if isinstance(spec, schema.SchedulerCluster):
        return _scheduler(spec)
    if isinstance(spec, schema.LocalCudaCluster):
        return _cuda(spec)
    assert isinstance(spec, schema.LocalCluster)  # noqa: S101 - ``check`` knows no other kind
    n_workers, threads = shared_out(spec)
    own: dict[str, Any] = {"processes": False, "host": None} if spec.processes is False else {}
    return workers.local(LocalCluster, spec, n_workers, {}, threads_per_worker=threads, **own)


def shared_out(spec: schema.LocalCluster) -> tuple[int, int]:
    """Return the number of workers of a local cluster and the threads of each, by default chosen for the machine."""
    n_workers = spec.n_workers or math.ceil(cores() / CORES_PER_PROCESS)
    return n_workers, spec.threads_per_worker or max(cores() // n_workers, 1)


@contextlib.contextmanager
def _cuda(spec: schema.LocalCudaCluster) -> Iterator[Client]:
    """Start a worker for each GPU and connect."""
    from dask_cuda import LocalCUDACluster

    own = {
        "device_memory_limit": spec.device_memory_limit,
        "enable_cudf_spill": True,
        "rmm_pool_size": spec.rmm_pool_size,
        "rmm_managed_memory": spec.rmm_managed,
        "protocol": "tcp",
        "threads_per_worker": 1,
    }
    variables = {name: os.environ.get(name, value) for name, value in TOGETHER.items()}
    with (
        # A stolen task moves its rows from one GPU through the host's memory to another.
        dask.config.set({"distributed.scheduler.work-stealing": False}),
        workers.local(LocalCUDACluster, spec, spec.n_workers or len(gpus.visible()), variables, **own) as client,
    ):
        yield client


@contextlib.contextmanager
def _scheduler(spec: schema.SchedulerCluster) -> Iterator[Client]:
    """Connect and wait for the workers; K001 where no scheduler answers in time."""
    if _is_open(spec):
        LOG.warning("%s is reached without TLS (cluster.insecure): whoever reaches it can run code there", spec.address)
    security = _certificates(spec)

    async def answer() -> None:
        arguments = security.get_connection_args("client") if security else {}
        (await connect_comm(spec.address, timeout=spec.connect_timeout_s, **arguments)).abort()

    try:
        # Dask's Client has a timeout for the connection but none for the handshake.
        LoopRunner().run_sync(wait_for, answer(), spec.connect_timeout_s + HANDSHAKE_S)
        client = Client(spec.address, timeout=spec.connect_timeout_s, security=security)
    except (OSError, TimeoutError, ValueError) as problem:
        why = str(problem) or f"it accepts connections but does not answer within {spec.connect_timeout_s:g} s"
        fix = "start one with `dask scheduler`, set cluster.address, or raise cluster.connect_timeout_s"
        raise TipcastError("K001", spec.address, f"no Dask scheduler here: {why}", fix) from problem
    with client:
        fix = "start workers with `dask worker ADDRESS`, or lower cluster.n_workers"
        workers.wait(client, spec.n_workers, spec.wait_s, fix)
        yield client


def _is_open(spec: schema.SchedulerCluster) -> bool:
    """Tell whether others could read or change what goes to the scheduler."""
    host = urlsplit(spec.address if "://" in spec.address else f"tcp://{spec.address}").hostname
    return not spec.address.startswith("tls://") and host not in {"127.0.0.1", "localhost", "::1"}


def _certificates(spec: schema.SchedulerCluster) -> Security | None:
    """Return those of Dask's configuration where the address needs them; C003 bad ones, C004 none."""
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
