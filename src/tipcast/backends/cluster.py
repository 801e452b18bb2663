"""Clusters: where the workers are, how they are waited for, and what is told of a cluster that fails."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

import dask
from distributed import Client, LocalCluster
from distributed.comm.core import CommClosedError
from distributed.scheduler import KilledWorker, NoValidWorkerError, NoWorkerError

from tipcast.backends import ending, scheduler, workers
from tipcast.backends.cores import check_share, shared_out
from tipcast.config import schema
from tipcast.config.errors import TipcastError

LOG = logging.getLogger("tipcast")

SPAWN_ENVIRONMENT = {"OMP_NUM_THREADS": 1, "MKL_NUM_THREADS": 1, "OPENBLAS_NUM_THREADS": 1}
"""Dask's own but for MALLOC_TRIM_THRESHOLD_, which makes every task fault its pages in anew."""

NEVER = "36500 days"
"""For a duration of Dask's, which cannot be infinite."""

Opener = Callable[[Any, str], AbstractContextManager[Client]]
"""Opens a cluster of one kind, of its specification and the frame library, and connects."""


@contextlib.contextmanager
def connect(
    spec: schema.ClusterSpec, frame_library: str, openers: Mapping[type, Opener] = MappingProxyType({})
) -> Iterator[Client]:
    """Open a cluster and a client, wait for the workers, close both at the end.

    Parameters
    ----------
    spec
        A ``LocalCluster`` or ``SchedulerCluster`` of the configuration.
    frame_library
        Dask's ``dataframe.backend``: pandas or cudf.
    openers
        Class of a specification -> what opens other kinds of clusters than those two.

    Yields
    ------
    distributed.Client

    Raises
    ------
    TipcastError
        K001 scheduler not reached, K002 too few workers in time, K003 a task's workers died,
        K004 scheduler lost, K005 other versions there, C009 an address that needs TLS.

    """
    detailed = LOG.isEnabledFor(logging.DEBUG)
    logging.getLogger("distributed").setLevel(logging.INFO if detailed else logging.ERROR)
    # A failure reaches the driver anyway; what is told beside it comes of work that ran on while the cluster closed.
    for name in ("distributed.worker", "distributed.scheduler", "distributed.client", "asyncio", "tornado.application"):
        logging.getLogger(name).setLevel(logging.INFO if detailed else logging.CRITICAL)
    check(spec, openers)
    with dask.config.set(_settings(spec, frame_library)), contextlib.ExitStack() as stack:
        if type(spec) in openers:
            client = stack.enter_context(openers[type(spec)](spec, frame_library))
        else:
            assert isinstance(spec, schema.LocalCluster | schema.SchedulerCluster)  # noqa: S101 - check() refused others
            known = _local(spec) if isinstance(spec, schema.LocalCluster) else scheduler.opened(spec)
            client = stack.enter_context(known)
        try:
            if not isinstance(spec, schema.SchedulerCluster) and getattr(spec, "processes", None) is not False:
                client.register_plugin(workers.Quiet())
            yield client
        except Exception as problem:
            told = _told(problem, spec, client)
            if told is None:
                raise
            raise told from problem


def _told(problem: Exception, spec: schema.ClusterSpec, client: Client) -> TipcastError | None:
    """Return the error of a failure that the cluster is the cause of; None of any other."""
    if isinstance(problem, TipcastError) and problem.code[0] != "K":
        return None
    # Whatever was under way fails in a way of its own when the scheduler goes; the client knows of it.
    if client.status != "running" or isinstance(problem, CommClosedError):
        if isinstance(spec, schema.SchedulerCluster):
            return TipcastError("K004", spec.address, "the scheduler is gone", "start it again and repeat the command")
        return TipcastError("K004", workers.address(client), "the scheduler is gone", "repeat the command")
    if isinstance(problem, KilledWorker | NoValidWorkerError | NoWorkerError | CancelledError):
        return TipcastError(
            "K003",
            workers.address(client),
            f"workers died while computing: {problem}",
            "give workers more memory (cluster.memory_limit) or more, smaller partitions",
        )
    garbled = isinstance(problem, RuntimeError) and "deserialization of the task graph" in str(problem)
    if not isinstance(problem, TipcastError) and (garbled or "No module named 'tipcast" in str(problem)):
        return TipcastError(
            "K005",
            workers.address(client),
            "the scheduler or a worker lacks tipcast, or has other versions",
            "install the same tipcast on the machines of the cluster",
        )
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
        "distributed.nanny.pre-spawn-environ": SPAWN_ENVIRONMENT,
        "logging": {"distributed": "error", **dict.fromkeys(workers.QUIET, "critical")},  # in the workers
    }


@contextlib.contextmanager
def _local(spec: schema.LocalCluster) -> Iterator[Client]:
    n_workers, threads = shared_out(spec)
    processes = True if spec.processes is None else spec.processes
    start = functools.partial(
        LocalCluster,
        n_workers=n_workers,
        threads_per_worker=threads,
        processes=processes,
        memory_limit=spec.memory_limit or "auto",
        host="127.0.0.1" if processes else None,
        dashboard_address="127.0.0.1:0",
        **({"env": workers.environment(), "worker_class": workers.Nanny} if processes else {}),
    )
    with _started(start) as (cluster, client):
        workers.wait(client, n_workers, spec.wait_s, workers.SLOW)
        if spec.dashboard:
            LOG.info("Dask dashboard: %s", cluster.dashboard_link)
        yield client


@contextlib.contextmanager
def _started(start: Callable[[], LocalCluster]) -> Iterator[tuple[LocalCluster, Client]]:
    with contextlib.ExitStack() as stack:
        try:
            both = stack.enter_context(ending.closed(start))
        except RuntimeError as problem:
            raise TipcastError(
                "K002", "cluster=local", f"no worker process could be started: {problem}", "repeat the command"
            ) from problem
        yield both


def check(spec: schema.ClusterSpec, others: Collection[type] = ()) -> None:
    """Refuse a cluster that cannot be or must not be opened, without opening it.

    Raises
    ------
    TipcastError
        C003 no such kind or number, C009 an address that needs TLS.

    """
    for name in ("n_workers", "threads_per_worker"):
        if (getattr(spec, name, None) or 1) < 1 or getattr(spec, name, None) == 0:
            raise TipcastError(
                "C003", f"cluster.{name}", f"{getattr(spec, name)} is no number of them", "use 1 or more"
            )
    for name in ("wait_s", "worker_ttl_s", "connect_timeout_s"):
        if not getattr(spec, name) > 0:
            raise TipcastError(
                "C003", f"cluster.{name}", f"{getattr(spec, name)} is no time to wait", "use seconds above 0"
            )
    if isinstance(spec, schema.LocalCluster):
        check_share(spec)
        return
    if type(spec) in others:
        return
    if not isinstance(spec, schema.SchedulerCluster):
        raise TipcastError(
            "C003", "cluster.kind", f"no such kind of cluster: {spec.kind}", "use cluster=local or cluster=scheduler"
        )
    scheduler.check(spec)
