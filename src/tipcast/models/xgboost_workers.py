"""What XGBoost needs on workers that train: a thread, a tracker, and a record of the device."""

import contextlib
import ctypes
import json
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import dask
import xgboost
from dask.base import annotate
from distributed import WorkerPlugin, wait
from xgboost.callback import TrainingCallback

from tipcast.config.gate import gate
from tipcast.models.checkpoints import EvaluationLog

if TYPE_CHECKING:
    from distributed import Client, Worker

EXECUTOR = "tipcast-xgboost"
"""Name of the thread of a worker that trains together with others."""
LEAVE_S = 10.0
"""Seconds in which a thread must have left a training that has lost a worker."""
LOOPBACK = "127.0.0.1"
DEVICE = "tipcast_device"
"""Booster attribute: the device that the rounds really ran on."""
TRAIN = "train"
"""Name of the training rows among those that are evaluated."""
EVERY = 10
"""Rounds from one evaluation of the training rows to the next."""


class RecordTraining(TrainingCallback):
    """Records on the worker which device a booster was trained on, and every few rounds its metric
    on training rows.
    """

    def before_training(self, model: Any) -> Any:
        """Pass the gate of a fit, in every process that takes part, and skip most evaluations of
        training rows.
        """
        gate("fit")
        # Evaluating all training rows in every round would take a fifth of the training.
        evaluate = model.eval_set
        earlier = model.num_boosted_rounds()

        def evaluate_some(evals: Any, epoch: int, *settings: Any) -> Any:
            evaluates_all = (earlier + epoch) % EVERY == 0
            due = [rows for rows in evals if evaluates_all or rows[1] != TRAIN]
            return evaluate(due, epoch, *settings)

        model.eval_set = evaluate_some
        return model

    def after_training(self, model: Any) -> Any:
        """Copy the device from the booster's configuration to an attribute, which is pickled with
        it.
        """
        del model.eval_set
        config = json.loads(model.save_config())
        model.set_attr(**{DEVICE: config["learner"]["generic_param"]["device"]})
        # Otherwise the driver that receives the booster would initialize a GPU, or warn of none.
        model.set_param({"device": "cpu"})
        return model


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


def history_of(log: EvaluationLog) -> dict[str, dict[int, float]]:
    """Return rows and metric -> round -> value; training rows are evaluated every few rounds."""
    history = {}
    for rows, metrics in log.items():
        step = 1
        if rows == TRAIN:
            step = EVERY
        for metric, values in metrics.items():
            history[f"{rows}_{metric}"] = {at * step: value for at, value in enumerate(values)}
    return history
