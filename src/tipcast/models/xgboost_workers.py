"""What XGBoost needs on workers that train together: a thread, and a tracker."""

import contextlib
import ctypes
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import dask
import xgboost
from dask.base import annotate
from distributed import WorkerPlugin, wait

if TYPE_CHECKING:
    from distributed import Client, Worker

EXECUTOR = "tipcast-xgboost"
"""Name of the thread of a worker that trains together with others."""
LEAVE_S = 10.0
"""Seconds in which a thread must have left a training that has lost a worker."""
LOOPBACK = "127.0.0.1"


def tracker_host(client: "Client") -> str | None:
    """Return the address of XGBoost's tracker for a local cluster; None if XGBoost is to choose one
    that workers reach.
    """
    if dask.config.get("xgboost.scheduler_address", None):
        return None
    scheduler: Any = client.scheduler
    addresses = [scheduler.address, *client.nthreads()]
    if all(urlsplit(address).hostname == LOOPBACK for address in addresses):
        return LOOPBACK
    return None


def busy_threads(client: "Client") -> list[str]:
    """Return the workers whose training thread takes no task for ``LEAVE_S`` seconds.

    NCCL may wait for a lost worker for as long as its peers live.
    """
    has_thread = client.run(_has_thread, on_error="ignore")
    with annotate(executor=EXECUTOR):
        tasks = {
            address: client.submit(bool, workers=[address], pure=False)
            for address, has in has_thread.items()
            if has
        }
    if not tasks:
        return []

    with contextlib.suppress(TimeoutError), client.as_current():  # Dask's wait takes no client
        wait(list(tasks.values()), timeout=LEAVE_S)

    busy = [address for address, task in tasks.items() if not task.done()]
    client.cancel(list(tasks.values()))
    return busy


def _has_thread(dask_worker: "Worker") -> bool:
    return EXECUTOR in dask_worker.executors


class TrainingThread(WorkerPlugin):
    """Gives a worker a thread to train together with others, on which XGBoost does not print each
    worker's rank.

    No verbosity keeps that line from the terminal. XGBoost's C interface registers a callback for
    messages, per thread, and ``xgboost.dask`` announces the ranks before any code of ours runs on
    its thread.
    """

    name = EXECUTOR
    idempotent = True

    def setup(self, worker: "Worker") -> None:
        """Start the thread."""
        # XGBoost would warn of a worker without rows.
        logging.getLogger("[xgboost.dask]").setLevel(logging.ERROR)
        if EXECUTOR not in worker.executors:
            library = ctypes.CDLL(xgboost.libpath.find_lib_path()[0])
            register = library.XGBRegisterLogCallback
            worker.executors[EXECUTOR] = ThreadPoolExecutor(
                1, EXECUTOR, initializer=register, initargs=(_MESSAGE,)
            )


def _message(message: bytes) -> None:
    """Write a message of XGBoost's to standard error, unless it is of a rank."""
    if b" got rank " not in message:
        sys.stderr.write(message.decode(errors="replace") + "\n")


_MESSAGE = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_message)  # XGBoost keeps its address
