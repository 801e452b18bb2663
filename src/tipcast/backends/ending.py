"""How a cluster that a job started ends: at once when a block fails, and in a bounded time in any case."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
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
        except Exception as problem:  # it counts less than what the block has ended with
            logging.getLogger("tipcast").debug("the cluster did not close: %r", problem)
            _kill(cluster)
            cluster.shutdown_on_close = False  # or Dask would try again as the process ends


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
            with contextlib.suppress(ProcessLookupError):
                os.kill(nanny.pid, signal.SIGKILL)
