"""How a cluster that a job started ends: at once when a block fails, and in a bounded time in any case."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from multiprocessing import resource_tracker
from typing import TypeVar

from distributed import Client, Nanny, SpecCluster
from distributed.deploy.spec import close_clusters

Started = TypeVar("Started", bound=SpecCluster)

CLOSE_S = 10.0
"""How long a cluster may take to close, in seconds: a nanny whose worker died while it started may wait for ever."""

LEFT = "ignore:resource_tracker"
"""Option of Python's process that clears up what killed processes shared: it would warn of that after our last word."""


@contextlib.contextmanager
def closed(start: Callable[[], Started]) -> Iterator[tuple[Started, Client]]:
    """Start a cluster and connect to it; close both at the end, also when Dask does not get there."""
    with _main_not_run(), _closed(start) as both:
        yield both


@contextlib.contextmanager
def _closed(start: Callable[[], Started]) -> Iterator[tuple[Started, Client]]:
    with _left_alone():
        try:
            cluster = start()
        except BaseException:
            # It takes none that has half started, and the processes end with this one.
            atexit.unregister(close_clusters)
            raise
    try:
        with Client(cluster) as client:
            try:
                yield cluster, client
            except BaseException:
                _kill(cluster)
                raise
    finally:
        try:
            cluster.close(timeout=CLOSE_S)
        except BaseException as problem:
            _kill(cluster)
            cluster.shutdown_on_close = False  # or Dask would try again as the process ends
            if not isinstance(problem, Exception):  # Ctrl-C; what else fails counts less than what the block ended with
                raise
            logging.getLogger("tipcast").debug("the cluster did not close: %r", problem)


_held: list[ModuleSpec | None] = []
"""What ``__main__`` was before the clusters that are open, one entry for each of them."""
_holding = threading.Lock()


@contextlib.contextmanager
def _main_not_run() -> Iterator[None]:
    """Keep worker processes from running the script of this one, which starts the job where its end has no guard.

    Python runs it in processes that it spawns, at any time, but for that of a package (``python -m PACKAGE``). Workers
    need nothing of it: Dask sends what is defined there by value. Other processes that are spawned meanwhile do not see
    what the script defines either.
    """
    main = sys.modules["__main__"]
    with _holding:
        _held.append(_held[0] if _held else getattr(main, "__spec__", None))
        if _held[0] is None or not _held[0].name.endswith("__main__"):
            main.__spec__ = importlib.util.find_spec("tipcast.__main__")
    try:
        yield
    finally:
        with _holding:
            before = _held.pop()
            if not _held:
                main.__spec__ = before


@contextlib.contextmanager
def _left_alone() -> Iterator[None]:
    """Keep Ctrl-C, which a terminal sends to the whole process group, from the threads and processes that start."""
    sys.warnoptions.append(LEFT)
    resource_tracker.ensure_running()  # where it starts with the first process, it lets the signal in again
    sys.warnoptions.remove(LEFT)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)  # one that came meanwhile is raised here


def _kill(cluster: SpecCluster) -> None:
    """End worker processes at once: a task in native code would keep them for many seconds."""
    for nanny in cluster.workers.values():
        if isinstance(nanny, Nanny) and nanny.pid:
            nanny.close_gracefully(reason="tipcast-kill")  # or it starts another, which closing would wait for
            with contextlib.suppress(ProcessLookupError):
                os.kill(nanny.pid, signal.SIGKILL)
