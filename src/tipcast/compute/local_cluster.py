"""Clusters of this machine: worker processes or threads that start, are silenced and end with a
job.
"""

import atexit
import contextlib
import importlib.util
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dask
import distributed
from distributed import Client, SpecCluster, Status
from distributed.deploy.spec import close_clusters
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.security import Security

from tipcast.compute import forkserver
from tipcast.compute.forkserver import HIDDEN, left_alone, waiting
from tipcast.config import schema
from tipcast.config.errors import TipcastError

LOG = logging.getLogger("tipcast")

CLOSE_S = 10.0
"""Seconds that a cluster may take to close: a nanny whose worker died while it started may wait for
ever.
"""
SAFE_PATH = "PYTHONSAFEPATH"
"""Variable that keeps the working folder off a new process's path."""
SLOW = "raise cluster.wait_s, or lower cluster.n_workers"
"""What a user can do if workers come too late."""
NOISY_LOGGERS = (
    "distributed.worker",
    "distributed.scheduler",
    "distributed.client",
    "distributed.nanny",
    "distributed.core",
    "distributed.sizeof",
    "asyncio",
    "tornado",
    "tornado.application",
)
"""Loggers to silence: errors reach the driver as exceptions, the rest comes of shutdowns and
profiling.
"""


@contextlib.contextmanager
def open_local(
    kind: Callable[..., SpecCluster],
    spec: schema.LocalCluster | schema.LocalCudaCluster,
    n_workers: int,
    variables: Mapping[str, str],
    **options: object,
) -> Iterator[Client]:
    """Start a cluster of this machine, connect, and close the cluster at the end of the block.

    It closes even if Dask's own closing hangs; after an error its processes are killed. Workers get
    the ``variables`` that ``spec.environment`` does not set. ``options`` are arguments that only
    the class ``kind`` takes. Workers may still be starting when the block begins.

    Raises K002 if a worker process ends while it starts.
    """
    settings = _settings(spec, n_workers, variables, options)

    with (
        dask.config.set({"distributed.worker.multiprocessing-method": forkserver.method}),
        _main_not_run(),
        _safe_path(),
    ):
        cluster = _start(kind, spec, settings)
        try:
            with Client(cluster) as client:
                try:
                    yield client
                except BaseException:
                    _kill(cluster)
                    raise
        finally:
            _close(cluster)


def _settings(
    spec: schema.LocalCluster | schema.LocalCudaCluster,
    n_workers: int,
    variables: Mapping[str, str],
    options: Mapping[str, object],
) -> dict[str, Any]:
    """Return the arguments of Dask's cluster, which listens on 127.0.0.1.

    It uses TLS if Dask's configuration asks for it.
    """
    settings: dict[str, Any] = {
        "n_workers": n_workers,
        "memory_limit": spec.memory_limit or "auto",
        "host": "127.0.0.1",
        "dashboard_address": "127.0.0.1:0",
        "scheduler_kwargs": {"dashboard": spec.dashboard},  # its pages take a second to import
        **options,
    }
    # The user's configuration of Dask asks for it.
    if dask.config.get("distributed.comm.require-encryption", False):
        settings["security"] = Security.temporary()
        if "protocol" in settings:
            settings["protocol"] = "tls"

    if settings.get("processes", True):
        hidden = dict.fromkeys((name for name in os.environ if name.startswith(HIDDEN)), "")
        # The user's variables override all others.
        configured = {name: str(value) for name, value in spec.environment.items()}
        settings["environment"] = {**variables, **hidden, **waiting(), **configured}
        settings["worker_class"] = Nanny
        settings["death_timeout"] = spec.wait_s

    return settings


def _start(
    kind: Callable[..., SpecCluster],
    spec: schema.LocalCluster | schema.LocalCudaCluster,
    settings: Mapping[str, object],
) -> SpecCluster:
    """Start Dask's cluster; K002 if a worker process ends while it starts."""
    with left_alone(), warnings.catch_warnings():
        # Dask-CUDA warns where the system does not tell it the CPU affinity.
        warnings.simplefilter("ignore")
        try:
            return kind(**settings)
        except BaseException as problem:
            # Dask's hook at exit takes no cluster that has half started, and its processes end with
            # this one.
            atexit.unregister(close_clusters)
            # Dask raises the first and the last, the fork server an EOFError.
            if not isinstance(problem, RuntimeError | EOFError | TimeoutError):
                raise

            what = (
                "a worker process died during startup, or was not ready within "
                f"cluster.wait_s: {_first_cause(problem)}"
            )
            fix = f"fix the error shown above, {SLOW}"
            raise TipcastError("K002", f"cluster={spec.kind}", what, fix) from problem


def _first_cause(problem: BaseException) -> str:
    """Return the first line of the error that all others came from, or its type."""
    while problem.__cause__ is not None:
        problem = problem.__cause__
    return (str(problem).strip() or type(problem).__name__).partition("\n")[0]


def _close(cluster: SpecCluster) -> None:
    """Close the cluster, or kill its processes if that fails or takes over ``CLOSE_S``."""
    try:
        cluster.close(timeout=CLOSE_S)
    except BaseException as problem:
        _kill(cluster)
        cluster.shutdown_on_close = False  # otherwise Dask would close it again at exit
        # Ctrl-C; any other error matters less than the one that ended the block
        if not isinstance(problem, Exception):
            raise
        LOG.debug("the cluster did not shut down cleanly: %r", problem)


def _kill(cluster: SpecCluster) -> None:
    """Kill worker processes at once.

    A task in native code would keep them alive for many seconds.
    """
    for nanny in cluster.workers.values():
        if isinstance(nanny, distributed.Nanny) and nanny.pid:
            # Otherwise the nanny starts another process, and closing waits for it.
            nanny.close_gracefully(reason="tipcast-kill")
            with contextlib.suppress(ProcessLookupError):
                os.kill(nanny.pid, signal.SIGKILL)


@contextlib.contextmanager
def _main_not_run() -> Iterator[None]:
    """Keep worker processes from running this process's script.

    Without a main guard the script would start the job again. Python runs the main script in every
    process that it spawns, except a package's (``python -m PACKAGE``). Workers do not need it: Dask
    pickles what it defines by value. Other processes spawned meanwhile do not see it either.
    """
    main = sys.modules["__main__"]
    before = getattr(main, "__spec__", None)
    if before is None or not before.name.endswith("__main__"):
        main.__spec__ = importlib.util.find_spec("tipcast.__main__")

    try:
        yield
    finally:
        main.__spec__ = before


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """Keep new processes from importing files of the working folder in place of libraries."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            # Another cluster of this process, opened later, may have removed it already.
            os.environ.pop(SAFE_PATH, None)
        else:
            os.environ[SAFE_PATH] = before


class Nanny(distributed.Nanny):
    """A nanny that survives a worker process that ends, or hangs, while it starts.

    Dask's own nanny starts the next process through the same object. There a start that was cut
    short takes the message of the next one from the queue, and the nanny believes for ever that its
    worker is starting.
    """

    def __init__(self, *args: Any, environment: Mapping[str, str], **settings: Any) -> None:
        # Not as ``env`` of the cluster: Dask-CUDA replaces that by the variables of the worker's
        # GPU.
        super().__init__(*args, **settings | {"env": {**environment, **settings.get("env", {})}})

    async def instantiate(self) -> Status:
        if self.process is not None and self.process.status is Status.stopped:
            self.process = None
        return await super().instantiate()

    async def kill(self, timeout: float = 5, reason: str = "nanny-kill") -> None:
        """Kill the worker process, at once if it has not come up.

        Dask would wait for its answer for ever.
        """
        if self.process is None or self.process.status not in {Status.starting, Status.failed}:
            await super().kill(timeout, reason)
        elif self.process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)


class SilenceLoggers(WorkerPlugin):
    """Silences workers' loggers, also of workers that join later.

    They do not read the driver's settings.
    """

    name = "tipcast-quiet"

    def setup(self, worker: distributed.Worker) -> None:  # noqa: ARG002 - Dask's interface
        for name in NOISY_LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
