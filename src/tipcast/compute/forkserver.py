"""Worker processes forked from one that loads their libraries while the job's own process loads its.

The server is :mod:`multiprocessing`'s own. It computes nothing and starts no thread before it forks. More workers, and
those that are started again, cost a fork each and share the libraries' memory.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver, resource_tracker
from typing import Any

SPAWN_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Of worker processes, before they load a library: Dask's own but for MALLOC_TRIM_THRESHOLD_, which makes every task
fault its pages in anew."""
HIDDEN = ("MLFLOW_", "DATABRICKS_")
"""Variables that workers do not get: they compute and return; only the driver may talk to MLflow."""
LIBRARIES = (
    "distributed.nanny",
    "pandas",
    "pyarrow.parquet",
    "tipcast.datasets.rows",
    "tipcast.models.fit",
    "tipcast.evaluation.classification",
)
"""What every worker loads."""
WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "5000"}
"""Threads that compute together spin for a moment while they wait, and then sleep. Asleep at once, each wait costs an
idle machine a wake-up; spinning as long as GNU's OpenMP does costs a busy one the cores that others need:
`benchmarks/busy_cores.py`."""
LEFT = "ignore:resource_tracker"
"""Option of Python's process that clears up what killed processes shared: it would warn of that after our last word."""

own_process = False
"""Whether a command has this process to itself: no server is started elsewhere."""
_started = False


def waiting() -> dict[str, str]:
    """Return the variables of ``WAITING``, to be set before OpenMP is loaded: the user's where there are such."""
    given = {name: os.environ[name] for name in WAITING if name in os.environ}
    return given or WAITING


def method() -> str:
    """Return how Dask should start workers of this machine: from the server where there is one, else from nothing."""
    return "forkserver" if _started else "spawn"


def start_ahead(cluster: Any, modules: Sequence[str]) -> None:
    """Start the server if workers of a cluster would be forked from it, see ``start``."""
    local = getattr(cluster, "kind", None) == "local" and getattr(cluster, "processes", None) is not False
    if own_process and local and sys.platform == "linux":  # elsewhere libraries do not bear a fork
        start(modules)


def start(modules: Sequence[str]) -> None:
    """Start the server, which goes on to load modules; those that cannot be imported are left out.

    To be called before the process has threads, as its environment is another one for a moment.
    """
    global _started
    before = dict(os.environ)
    for name in [name for name in before if name.startswith(HIDDEN)]:
        del os.environ[name]
    os.environ.update(SPAWN_ENVIRONMENT | waiting() | {"DASK_LOGGING__DISTRIBUTED": "critical"})
    try:
        multiprocessing.set_forkserver_preload([*LIBRARIES, *modules])
        with left_alone():
            forkserver.ensure_running()
        _started = True
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


@contextlib.contextmanager
def left_alone() -> Iterator[None]:
    """Keep Ctrl-C, which a terminal sends to the whole process group, from the threads and processes that start."""
    sys.warnoptions.append(LEFT)
    resource_tracker.ensure_running()  # where it starts with the first process, it lets the signal in again
    sys.warnoptions.remove(LEFT)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)  # one that came meanwhile is raised here
