"""Worker processes of a job: their environment, waiting for them, and how they end."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from typing import Any

import dask
import distributed
from distributed import Client, SpecCluster, Status, as_completed
from distributed.deploy.spec import close_clusters
from distributed.diagnostics.plugin import WorkerPlugin

from tipcast.compute import forkserver
from tipcast.compute.forkserver import HIDDEN, left_alone, waiting
from tipcast.config import schema
from tipcast.config.errors import TipcastError

LOG = logging.getLogger("tipcast")

QUIET = (
    "distributed.worker", "distributed.scheduler", "distributed.client", "distributed.nanny", "distributed.core",
    "distributed.sizeof", "asyncio", "tornado", "tornado.application",
)  # fmt: skip
"""Loggers to silence: errors reach the driver as exceptions, the rest comes of shutdowns and profiling."""

SLOW = "raise cluster.wait_s, or lower cluster.n_workers"
PAUSED_LOOK_S = 5.0
"""Seconds between two checks whether all workers are paused."""
CLOSE_S = 10.0
"""Seconds that a cluster may take to close: a nanny whose worker died while it started may wait for ever."""


class Nanny(distributed.Nanny):
    """A nanny that survives a worker process that ends, or hangs, while it starts.

    Dask's own starts the next process through the same object, so that a start that was cut short takes the next one's
    word from its queue, and the nanny believes for ever that its worker is starting.
    """

    def __init__(self, *args: Any, environment: Mapping[str, str], **settings: Any) -> None:
        # Dask-CUDA's own ``env``, with the worker's GPU, replaces what one gives its cluster by that name.
        super().__init__(*args, **settings | {"env": {**environment, **settings.get("env", {})}})

    async def instantiate(self) -> Status:
        if self.process is not None and self.process.status is Status.stopped:
            self.process = None
        return await super().instantiate()

    async def kill(self, timeout: float = 5, reason: str = "nanny-kill") -> None:
        """Kill the worker process; at once where it has not come up, as Dask would wait for its answer for ever."""
        if self.process is None or self.process.status not in {Status.starting, Status.failed}:
            await super().kill(timeout, reason)
        elif self.process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)


class Quiet(WorkerPlugin):
    """Silences workers' loggers, also of workers that join later and do not read the driver's settings."""

    name = "tipcast-quiet"

    def setup(self, worker: Any) -> None:  # noqa: ARG002 - Dask's interface
        for name in QUIET:
            logging.getLogger(name).setLevel(logging.CRITICAL)


def known(client: Client) -> dict[str, Any]:
    """Return what the scheduler knows about each worker, by address."""
    # Not by Client.scheduler_info: the client's periodic refresh may overwrite the answer before it is returned.
    answer = client.sync(client.scheduler.identity, n_workers=-1) if client.scheduler else {"workers": {}}
    return dict(answer["workers"])


def wait(client: Client, wanted: int, wait_s: float, fix: str) -> None:
    """Wait for workers; K002 when there are too few in time."""
    try:
        client.wait_for_workers(wanted, timeout=wait_s)
    except TimeoutError as problem:
        what = f"{len(known(client))} of {wanted} workers after {wait_s:g} s"
        raise TipcastError("K002", address(client), what, fix) from problem


@contextlib.contextmanager
def at_work(
    client: Client,
    wait_s: float,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[threading.Event, float], bool] = threading.Event.wait,
) -> Iterator[None]:
    """End a block when all workers have been paused for lack of memory for ``wait_s``, idle, with tasks waiting.

    K003 after that time; the client is closed by then. ``pause`` waits between two looks.
    """
    # Dask leaves workers paused where what they hold cannot be moved to disk: whoever waits for a task waits for ever.
    over, given_up = threading.Event(), threading.Event()

    def look() -> None:
        since = now()
        with contextlib.suppress(Exception):  # the scheduler is gone, which is reported elsewhere
            while not pause(over, PAUSED_LOOK_S):
                if not client.run_on_scheduler(_all_paused):
                    since = now()
                if now() - since > wait_s:
                    given_up.set()
                    client.close(timeout=CLOSE_S)
                    return

    threading.Thread(target=look, daemon=True, name="paused workers").start()
    try:
        yield
    except BaseException as problem:
        if not given_up.is_set():
            raise
        what = f"all workers are paused for lack of memory since {wait_s:g} s"
        fix = "give workers more memory (cluster.memory_limit), or read fewer rows"
        raise TipcastError("K003", address(client), what, fix) from problem
    finally:
        over.set()


def _all_paused(dask_scheduler: Any) -> bool:
    there = dask_scheduler.workers.values()
    idle = all(worker.status.name == "paused" and not worker.executing for worker in there)
    waiting_states = ("processing", "queued", "no-worker")
    return bool(there) and idle and any(task.state in waiting_states for task in dask_scheduler.tasks.values())


def completed(client: Client, futures: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each future with its result as it ends; raise its error, also of one that was cancelled."""
    for future, result in as_completed(list(futures), client.loop, with_results=True):
        if isinstance(result, CancelledError):  # as all are when the scheduler goes: Dask makes the error the result
            raise result
        yield future, result


def address(client: Client) -> str:
    return str(client.scheduler.address) if client.scheduler else "scheduler"


@contextlib.contextmanager
def local(
    kind: Callable[..., SpecCluster],
    spec: schema.LocalCluster | schema.LocalCudaCluster,
    n_workers: int,
    variables: Mapping[str, str],
    **own: Any,
) -> Iterator[Client]:
    """Start a cluster of this machine, wait for its workers, close it at the end, even where Dask's closing hangs.

    Workers get the ``variables`` that the configuration does not set; ``own`` are settings of the kind of cluster.
    K002 workers that do not come up.
    """
    settings = {
        "n_workers": n_workers,
        "memory_limit": spec.memory_limit or "auto",
        "host": "127.0.0.1",
        "dashboard_address": "127.0.0.1:0",
        "scheduler_kwargs": {"dashboard": spec.dashboard},  # its pages take a second to import
    }
    processes = own.get("processes", True)
    if processes:
        environment = {**variables, **_environment(spec.environment)}
        settings |= {"worker_class": Nanny, "death_timeout": spec.wait_s, "environment": environment}
    with dask.config.set({"distributed.worker.multiprocessing-method": forkserver.method}), _main_not_run():
        with left_alone(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Dask-CUDA, about CPU affinity that the system does not tell it
            try:
                cluster = kind(**settings | own)
            except BaseException as problem:
                # Dask's hook at exit takes no cluster that has half started, and its processes end with this one.
                atexit.unregister(close_clusters)
                if isinstance(problem, RuntimeError | EOFError | TimeoutError):  # of Dask; of the fork server
                    what = "a worker process ended while it started, or did not come up within cluster.wait_s"
                    fix = f"correct what it says above, {SLOW}"
                    raise TipcastError("K002", f"cluster={spec.kind}", what, fix) from problem
                raise
        try:
            with Client(cluster) as client:
                try:
                    wait(client, n_workers, spec.wait_s, SLOW)
                    if processes:
                        client.register_plugin(Quiet())
                    if spec.dashboard:
                        LOG.info("Dask dashboard: %s", cluster.dashboard_link)
                    yield client
                except BaseException:
                    _kill(cluster)
                    raise
        finally:
            _close(cluster)


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables for workers on this machine; the configuration's ``own`` override others."""
    hidden = dict.fromkeys((name for name in os.environ if name.startswith(HIDDEN)), "")
    return hidden | waiting() | {name: str(value) for name, value in own.items()}


def _close(cluster: SpecCluster) -> None:
    try:
        cluster.close(timeout=CLOSE_S)
    except BaseException as problem:
        _kill(cluster)
        cluster.shutdown_on_close = False  # or Dask would try again as the process ends
        if not isinstance(problem, Exception):  # Ctrl-C; any other error matters less than the one that ended the block
            raise
        LOG.debug("the cluster did not close: %r", problem)


@contextlib.contextmanager
def _main_not_run() -> Iterator[None]:
    """Keep worker processes from running this process's script, which would start the job again without a main guard.

    Python runs the main script in every process that it spawns, except a package's (``python -m PACKAGE``). Workers
    do not need it: Dask pickles what it defines by value. Other processes spawned meanwhile do not see it either.
    """
    main = sys.modules["__main__"]
    before = getattr(main, "__spec__", None)
    if before is None or not before.name.endswith("__main__"):
        main.__spec__ = importlib.util.find_spec("tipcast.__main__")
    try:
        yield
    finally:
        main.__spec__ = before


def _kill(cluster: SpecCluster) -> None:
    """Kill worker processes at once: a task in native code would keep them alive for many seconds."""
    for nanny in cluster.workers.values():
        if isinstance(nanny, distributed.Nanny) and nanny.pid:
            nanny.close_gracefully(reason="tipcast-kill")  # or it starts another, which closing would wait for
            with contextlib.suppress(ProcessLookupError):
                os.kill(nanny.pid, signal.SIGKILL)
