"""Clusters: what is refused before anything starts, how each kind is opened, waited for and
ended.
"""

import atexit
import contextlib
import importlib.util
import logging
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urlsplit

import dask
import dask.system
import distributed
from distributed import Client, LocalCluster, SpecCluster, Status, as_completed
from distributed.comm.core import connect as connect_comm
from distributed.deploy.spec import close_clusters
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.security import Security
from distributed.utils import LoopRunner, wait_for

from tipcast.compute import forkserver, gpus
from tipcast.compute.forkserver import HIDDEN, left_alone, waiting
from tipcast.config import schema
from tipcast.config.errors import TipcastError, failed_to, incompatible, must_be, needs_value

LOG = logging.getLogger("tipcast")

CORES_PER_PROCESS = 16
"""Threads of one process share its data, but contend with each other beyond about this many."""
TOGETHER = {"NCCL_COMM_BLOCKING": "1"}
"""Without it XGBoost polls NCCL every 5 ms, for each level of a tree. With it XGBoost cannot time
out while NCCL starts, which does no harm here: these workers are killed with the job."""
SIZES = ("memory_limit", "device_memory_limit", "rmm_pool_size")
"""Keys that hold a size or a share of memory."""

# that this process may use, by its affinity and its container's limit
cores = dask.system.cpu_count

SAFE_PATH = "PYTHONSAFEPATH"
"""Variable that keeps the working folder off a new process's path."""
HANDSHAKE_S = 2.0
"""Seconds for a connection's handshake, on top of the connect timeout."""
TLS_FIX = (
    "name PEM files in Dask's configuration: ca-file, client.cert and client.key below "
    "distributed.comm.tls"
)
QUIET = (
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

SLOW = "raise cluster.wait_s, or lower cluster.n_workers"
PAUSED_LOOK_S = 5.0
"""Seconds between two checks whether all workers are paused."""
CLOSE_S = 10.0
"""Seconds that a cluster may take to close: a nanny whose worker died while it started may wait for
ever.
"""


def check(spec: schema.ClusterSpec) -> None:
    """Refuse a cluster that cannot or must not be opened, without opening it.

    C003 an unknown kind, a bad value or a bad certificate, C004 certificates that are missing, C009
    an address that needs TLS, K002 processes that a daemon may not start, K006 fewer GPUs than
    workers.
    """
    kind = next(
        (name for name, of_kind in schema.CLUSTERS.items() if type(spec) is of_kind), "local"
    )
    if spec.kind != kind:
        fix = f"leave it out and choose cluster={kind}, or another of {', '.join(schema.CLUSTERS)}"
        raise must_be("cluster.kind", kind, spec.kind, fix)

    for name in SIZES:
        value = getattr(spec, name, None)
        try:
            good = value is None or (
                0 < value <= 1 if isinstance(value, float) else dask.utils.parse_bytes(value) > 0
            )
        except (ValueError, TypeError):
            good = False
        if not good:
            fix = "write bytes as 8GiB, a share of a GPU as 0.5, none as null"
            raise must_be(f"cluster.{name}", "a share or a size", repr(value), fix)

    if isinstance(spec, schema.LocalCluster):
        most = max(4 * cores(), 8)
        if (spec.n_workers or 1) > most:
            raise must_be(
                "cluster.n_workers",
                f"at most {most} on {cores()} cores",
                spec.n_workers,
                "use fewer",
            )
        if spec.environment and spec.processes is False:
            fix = "set the variables of the command itself"
            raise incompatible("cluster.environment", "cluster.processes=false", fix)

    local = isinstance(spec, schema.LocalCluster | schema.LocalCudaCluster)
    if local and multiprocessing.current_process().daemon and not in_threads(spec):
        what = (
            "a daemonic process, as a task of Celery or of a multiprocessing.Pool, may start "
            "no worker processes"
        )
        other = "run it in a process that is no daemon"
        fix = (
            f"set cluster.processes=false, or {other}"
            if isinstance(spec, schema.LocalCluster)
            else other
        )
        raise TipcastError("K002", f"cluster={spec.kind}", what, fix)

    if isinstance(spec, schema.LocalCudaCluster) and (spec.n_workers or 0) > (
        there := len(gpus.visible())
    ):
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
    own: dict[str, Any] = {}

    if in_threads(spec):
        own = {"processes": False, "host": None}
        if spec.processes is None:
            LOG.warning(
                "workers are threads (cluster.processes=false): a daemonic process may start no "
                "others"
            )

    return local(LocalCluster, spec, n_workers, {}, threads_per_worker=threads, **own)


def in_threads(spec: schema.ClusterSpec) -> bool:
    """Tell whether the workers are threads of this process: as asked for, or in a daemon, which has
    no children.
    """
    if not isinstance(spec, schema.LocalCluster):
        return False
    free = spec.processes is None and not spec.environment
    return spec.processes is False or (free and multiprocessing.current_process().daemon)


def shared_out(spec: schema.LocalCluster) -> tuple[int, int]:
    """Return the number of workers of a local cluster and the threads of each, by default chosen
    for the machine.
    """
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
        local(
            LocalCUDACluster, spec, spec.n_workers or len(gpus.visible()), variables, **own
        ) as client,
    ):
        yield client


@contextlib.contextmanager
def _scheduler(spec: schema.SchedulerCluster) -> Iterator[Client]:
    """Connect and wait for the workers; K001 where no scheduler answers in time."""
    if _is_open(spec):
        LOG.warning(
            "%s is reached without TLS (cluster.insecure): whoever reaches it can run code there",
            spec.address,
        )
    security = _certificates(spec)

    async def answer() -> None:
        arguments = security.get_connection_args("client") if security else {}
        (await connect_comm(spec.address, timeout=spec.connect_timeout_s, **arguments)).abort()

    try:
        # Dask's Client has a timeout for the connection but none for the handshake.
        LoopRunner().run_sync(wait_for, answer(), spec.connect_timeout_s + HANDSHAKE_S)
        client = Client(spec.address, timeout=spec.connect_timeout_s, security=security)
    except (OSError, TimeoutError, ValueError) as problem:
        why = (
            str(problem).replace(f" to {spec.address}", "")
            or f"it accepts connections but does not answer within {spec.connect_timeout_s:g} s"
        )
        fix = (
            "start one with `dask scheduler`, set cluster.address, or raise "
            "cluster.connect_timeout_s"
        )
        raise TipcastError("K001", spec.address, f"no Dask scheduler here: {why}", fix) from problem
    with client:
        fix = "start workers with `dask worker ADDRESS`, or lower cluster.n_workers"
        wait(client, spec.n_workers, spec.wait_s, fix)
        yield client


def _is_open(spec: schema.SchedulerCluster) -> bool:
    """Tell whether others could read or change what goes to the scheduler."""
    host = urlsplit(spec.address if "://" in spec.address else f"tcp://{spec.address}").hostname
    return not spec.address.startswith("tls://") and host not in {"127.0.0.1", "localhost", "::1"}


def _certificates(spec: schema.SchedulerCluster) -> Security | None:
    """Return those of Dask's configuration where the address needs them; C003 bad ones, C004
    none.
    """
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


class Nanny(distributed.Nanny):
    """A nanny that survives a worker process that ends, or hangs, while it starts.

    Dask's own starts the next process through the same object, so that a start that was cut short
    takes the next one's word from its queue, and the nanny believes for ever that its worker is
    starting.
    """

    def __init__(self, *args: Any, environment: Mapping[str, str], **settings: Any) -> None:
        # Dask-CUDA's own ``env``, with the worker's GPU, replaces what one gives its cluster by
        # that name.
        super().__init__(*args, **settings | {"env": {**environment, **settings.get("env", {})}})

    async def instantiate(self) -> Status:
        if self.process is not None and self.process.status is Status.stopped:
            self.process = None
        return await super().instantiate()

    async def kill(self, timeout: float = 5, reason: str = "nanny-kill") -> None:
        """Kill the worker process; at once where it has not come up, as Dask would wait for its
        answer for ever.
        """
        if self.process is None or self.process.status not in {Status.starting, Status.failed}:
            await super().kill(timeout, reason)
        elif self.process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)


class Quiet(WorkerPlugin):
    """Silences workers' loggers, also of workers that join later and do not read the driver's
    settings.
    """

    name = "tipcast-quiet"

    def setup(self, worker: Any) -> None:  # noqa: ARG002 - Dask's interface
        for name in QUIET:
            logging.getLogger(name).setLevel(logging.CRITICAL)


def known(client: Client) -> dict[str, Any]:
    """Return what the scheduler knows about each worker, by address."""
    # Not by Client.scheduler_info: the client's periodic refresh may overwrite the answer before it
    # is returned.
    answer = (
        client.sync(client.scheduler.identity, n_workers=-1)
        if client.scheduler
        else {"workers": {}}
    )
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
    """End a block when all workers have been paused for lack of memory for ``wait_s``, idle, with
    tasks waiting.

    K003 after that time; the client is closed by then. ``pause`` waits between two looks.
    """
    # Dask leaves workers paused where what they hold cannot be moved to disk: whoever waits for a
    # task waits for ever.
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
    return (
        bool(there)
        and idle
        and any(task.state in waiting_states for task in dask_scheduler.tasks.values())
    )


def completed(client: Client, futures: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each future with its result as it ends; raise its error, also of one that was
    cancelled.
    """
    for future, result in as_completed(list(futures), client.loop, with_results=True):
        # as all are when the scheduler goes: Dask makes the error the result
        if isinstance(result, CancelledError):
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
    """Start a cluster of this machine, wait for its workers, close it at the end, even where Dask's
    closing hangs.

    Workers get the ``variables`` that the configuration does not set; ``own`` are settings of the
    kind of cluster. K002 workers that do not come up.
    """
    settings = {
        "n_workers": n_workers,
        "memory_limit": spec.memory_limit or "auto",
        "host": "127.0.0.1",
        "dashboard_address": "127.0.0.1:0",
        "scheduler_kwargs": {"dashboard": spec.dashboard},  # its pages take a second to import
    }
    # by the user's configuration of Dask
    if dask.config.get("distributed.comm.require-encryption", False):
        settings["security"] = Security.temporary()
        own = {name: "tls" if name == "protocol" else value for name, value in own.items()}

    processes = own.get("processes", True)
    if processes:
        hidden = dict.fromkeys((name for name in os.environ if name.startswith(HIDDEN)), "")
        # which override all others
        configured = {name: str(value) for name, value in spec.environment.items()}
        environment = {**variables, **hidden, **waiting(), **configured}
        settings |= {
            "worker_class": Nanny,
            "death_timeout": spec.wait_s,
            "environment": environment,
        }

    with (
        dask.config.set({"distributed.worker.multiprocessing-method": forkserver.method}),
        _main_not_run(),
        _safe_path(),
    ):
        with left_alone(), warnings.catch_warnings():
            # of Dask-CUDA, about CPU affinity that the system does not tell it
            warnings.simplefilter("ignore")
            try:
                cluster = kind(**settings | own)
            except BaseException as problem:
                # Dask's hook at exit takes no cluster that has half started, and its processes end
                # with this one.
                atexit.unregister(close_clusters)
                # of Dask; of the fork server
                if isinstance(problem, RuntimeError | EOFError | TimeoutError):
                    what = (
                        "a worker process ended while it started, or did not come up within "
                        "cluster.wait_s"
                    )
                    fix = f"correct what it says above, {SLOW}"
                    what = f"{what}: {_first_cause(problem)}"
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


def _first_cause(problem: BaseException) -> str:
    """Return the first line of the error that others came from, or its kind."""
    while problem.__cause__ is not None:
        problem = problem.__cause__
    return (str(problem).strip() or type(problem).__name__).partition("\n")[0]


def _close(cluster: SpecCluster) -> None:
    try:
        cluster.close(timeout=CLOSE_S)
    except BaseException as problem:
        _kill(cluster)
        cluster.shutdown_on_close = False  # or Dask would try again as the process ends
        # Ctrl-C; any other error matters less than the one that ended the block
        if not isinstance(problem, Exception):
            raise
        LOG.debug("the cluster did not close: %r", problem)


@contextlib.contextmanager
def _main_not_run() -> Iterator[None]:
    """Keep worker processes from running this process's script, which would start the job again
    without a main guard.

    Python runs the main script in every process that it spawns, except a package's (``python -m
    PACKAGE``). Workers do not need it: Dask pickles what it defines by value. Other processes
    spawned meanwhile do not see it either.
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
    """Keep processes that are started from importing files of the working folder in place of
    libraries.
    """
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            # another cluster of this process, opened later, may have ended before
            os.environ.pop(SAFE_PATH, None)
        else:
            os.environ[SAFE_PATH] = before


def _kill(cluster: SpecCluster) -> None:
    """Kill worker processes at once: a task in native code would keep them alive for many
    seconds.
    """
    for nanny in cluster.workers.values():
        if isinstance(nanny, distributed.Nanny) and nanny.pid:
            # or it starts another, which closing would wait for
            nanny.close_gracefully(reason="tipcast-kill")
            with contextlib.suppress(ProcessLookupError):
                os.kill(nanny.pid, signal.SIGKILL)
