"""Worker processes forked from a server that loads their libraries while the driver loads its own.

The server is :mod:`multiprocessing`'s own: it starts no thread before it forks. A further or
restarted worker costs a fork and shares the libraries' memory.
"""

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver, resource_tracker

from tipcast.compute import gpus
from tipcast.config import schema

LOG = logging.getLogger("tipcast")

SPAWN_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Variables set in worker processes before they load a library: Dask's own, without
MALLOC_TRIM_THRESHOLD_, which makes every task fault its pages in again.
"""
HIDDEN = ("MLFLOW_", "DATABRICKS_")
"""Prefixes of variables hidden from workers: only the driver talks to MLflow."""
LIBRARIES = (
    "distributed.nanny",
    "pandas",
    "pyarrow.parquet",
    "tipcast.datasets.rows",
    "tipcast.models.fit",
    "tipcast.evaluation.classification",
)
"""Modules that every worker loads."""
GPU_LIBRARIES = ("cudf", "cupy", "rmm", "xgboost", "dask_cuda")
"""Modules that workers with GPUs load too. None calls CUDA at import, which no fork would survive;
cuDF needs RAPIDS_NO_INITIALIZE for that.
"""
DISTRIBUTED_FITS = {"tipcast.models.xgboost": "xgboost.dask"}
"""Module of a model -> module for a fit by several workers, which does not call CUDA at import."""
FITS = {"tipcast.models.xgboost": "tipcast.models.xgboost_fit"}
"""Module of a model -> module with its fit, if only that loads the library."""
CORES_PER_PROCESS = 16
"""Threads of one process share its data, but contend with each other beyond about this many."""
WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "5000"}
"""Variables that let waiting OpenMP threads spin for a moment and then sleep: sleeping at once
costs an idle machine wake-ups, spinning as long as GNU's OpenMP does costs a busy one its cores
(`benchmarks/busy_cores.py`).
"""
LEFT = "ignore:resource_tracker"
"""Warning filter for Python's resource tracker, which would warn about killed processes after the
job's last line.
"""

own_process = False
"""Whether this process runs only a tipcast command. No other process starts the server."""
method = "spawn"
"""How Dask starts workers on this machine; ``forkserver`` once the server runs. Dask too tells the
server which modules to load, but too late if it runs already.
"""


def waiting() -> dict[str, str]:
    """Return ``WAITING``, or the user's values, to be set before OpenMP is loaded."""
    configured = {name: os.environ[name] for name in WAITING if name in os.environ}
    return configured or WAITING


def start_ahead(cluster: schema.ClusterSpec, modules: Sequence[str]) -> None:
    """Start the fork server if the cluster's workers would be forked from it.

    The server then loads those of ``modules`` that can be imported. Libraries may read the
    cluster's variables as they are loaded. Call it before the process has threads: it changes the
    environment for a moment.
    """
    global method
    # On other systems libraries do not survive a fork.
    if not own_process or sys.platform != "linux":
        return
    if not isinstance(cluster, schema.LocalCluster | schema.LocalCudaCluster):
        return
    if not _has_processes(cluster):
        return

    before = dict(os.environ)
    try:
        _set_variables(cluster)
        multiprocessing.set_forkserver_preload(_preloaded(cluster, modules))
        with left_alone():
            forkserver.ensure_running()
    except OSError as problem:  # no folder takes its socket: Dask starts each worker by itself
        LOG.debug("no fork server: %s", problem)
        return
    finally:
        os.environ.clear()
        os.environ.update(before)

    method = "forkserver"


def _has_processes(cluster: schema.LocalCluster | schema.LocalCudaCluster) -> bool:
    """Tell whether the workers will be processes, for GPUs if there are any."""
    if isinstance(cluster, schema.LocalCudaCluster):
        return bool(gpus.visible())
    return cluster.processes is not False


def _set_variables(cluster: schema.LocalCluster | schema.LocalCudaCluster) -> None:
    """Give this process the variables of worker processes, which the server inherits."""
    for name in [name for name in os.environ if name.startswith(HIDDEN)]:
        del os.environ[name]

    quiet = {"DASK_LOGGING__DISTRIBUTED": "critical", "RAPIDS_NO_INITIALIZE": "1"}
    configured = {name: str(value) for name, value in cluster.environment.items()}
    os.environ.update(SPAWN_ENVIRONMENT | waiting() | quiet | configured)


def _preloaded(
    cluster: schema.LocalCluster | schema.LocalCudaCluster, modules: Sequence[str]
) -> list[str]:
    """Return the modules that the server loads: those of all workers, of GPUs, and ``modules``."""
    libraries = [*LIBRARIES]
    if isinstance(cluster, schema.LocalCudaCluster):
        libraries += GPU_LIBRARIES
    if _has_several_workers(cluster):
        libraries += [DISTRIBUTED_FITS[name] for name in modules if name in DISTRIBUTED_FITS]

    fits = [FITS[name] for name in modules if name in FITS]
    return [*libraries, *modules, *fits]


def _has_several_workers(cluster: schema.LocalCluster | schema.LocalCudaCluster) -> bool:
    """Tell whether the cluster may have more than one worker."""
    if cluster.n_workers:
        return cluster.n_workers > 1
    if isinstance(cluster, schema.LocalCudaCluster):
        return len(gpus.visible()) > 1
    return len(os.sched_getaffinity(0)) > CORES_PER_PROCESS


@contextlib.contextmanager
def left_alone() -> Iterator[None]:
    """Keep Ctrl-C from threads and processes that the block starts.

    A terminal sends it to the whole process group.
    """
    sys.warnoptions.append(LEFT)
    # The tracker starts here: were it to start with the first process, it would unblock the signal.
    resource_tracker.ensure_running()
    sys.warnoptions.remove(LEFT)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        # A signal that came meanwhile is raised here.
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
