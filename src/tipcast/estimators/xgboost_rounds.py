"""Where XGBoost's rounds run: in one task on one worker, or in one on each of several that agree on every split."""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import xgboost
from distributed.comm.addressing import get_address_host
from xgboost.callback import TrainingCallback
from xgboost.collective import CommunicatorContext
from xgboost.tracker import RabitTracker

from tipcast.backends.base import Frame
from tipcast.estimators.base import Future, History
from tipcast.estimators.placement import results
from tipcast.estimators.turn import turn
from tipcast.estimators.xgboost_plan import Plan

COLLECTIVE = {"dmlc_retry": 1, "dmlc_timeout": 300}
"""A worker that does not answer its peers for 300 s ends the training with an error."""

DEVICE = "tipcast_device"
"""Booster attribute: the device that the rounds really ran on."""


def alone(
    client: Any, address: str, planned: Plan, features: Sequence[str], parts: Sequence[Sequence[Future]], seed: int
) -> tuple[xgboost.Booster, History]:
    """Train as one task: where all rows are on one worker there is nobody to agree with."""
    threads = client.nthreads()[address]
    lists = [list(each) for each in parts]
    task = client.submit(_train_parts, planned, features, lists, seed, threads, workers=[address], pure=False)
    found: tuple[xgboost.Booster, History] = results(client, {address: task})[address]
    return found


def together(
    client: Any,
    held: Sequence[Mapping[str, Sequence[int]]],
    planned: Plan,
    features: Sequence[str],
    parts: Sequence[Sequence[Future]],
    seed: int,
) -> tuple[xgboost.Booster, History]:
    """Train as one task on each worker that holds rows, which agree on every split by XGBoost's collective.

    Parameters
    ----------
    client
        ``distributed.Client`` whose workers hold the parts.
    held
        Worker's address -> numbers of the parts that it holds; of the rows to train on, and of the validation rows
        where there are such.
    planned, features, seed
        What to train.
    parts
        Features and labels, part by part alike; then those of the validation rows.

    Raises
    ------
    TipcastError
        K003 as soon as a worker is lost.

    """
    threads = client.nthreads()
    workers = [*held[0], *sorted(set().union(*held) - set(held[0]))]  # the first has rows, and returns the booster
    lists = [
        [[part[at] for at in held[number // 2].get(address, ())] for number, part in enumerate(parts)]
        for address in workers
    ]
    with turn(client, workers):  # or two jobs on the same workers may each wait for the other's second task
        first = workers[0]
        # In a worker's process: a tracker may abort its own when a peer is lost.
        tracker = client.submit(_tracker, len(workers), get_address_host(first), workers=[first], pure=False)
        reached = client.submit(RabitTracker.worker_args, tracker, workers=[first], pure=False)
        peers = results(client, {first: reached})[first]
        tasks = {
            address: client.submit(
                _train_share, planned, features, own, seed, threads[address], peers, rank, workers=[address], pure=False
            )
            for rank, (address, own) in enumerate(zip(workers, lists, strict=True))
        }
        found: tuple[xgboost.Booster, History] = results(client, tasks)[first]
    return found


def _log(message: bytes) -> None:
    """Write what XGBoost says but for the rank of each worker, which no verbosity keeps from the terminal."""
    if b" got rank " not in message:
        sys.stderr.write(message.decode(errors="replace") + "\n")


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_log)  # XGBoost keeps its address


@contextlib.contextmanager
def _without_ranks() -> Iterator[None]:
    """Filter what XGBoost says on this thread; its public settings have no place for a callback."""
    library = xgboost.core._LIB
    registered = library.XGBRegisterLogCallback(_LOG) == 0
    try:
        yield
    finally:
        if registered:
            library.XGBRegisterLogCallback(library.callback)


def _tracker(workers: int, host: str) -> RabitTracker:
    """Start what tells workers where their peers are; it runs until all have left or it is deleted."""
    tracker = RabitTracker(n_workers=workers, host_ip=host, sortby="task")
    tracker.start()
    return tracker


def _train_share(
    planned: Plan,
    features: Sequence[str],
    parts: Sequence[Sequence[Frame]],
    seed: int,
    threads: int,
    peers: Mapping[str, Any],
    rank: int,
) -> tuple[xgboost.Booster, History] | None:
    """Take part in training on the rows of all workers; all end up with the same booster, and the first returns it."""
    quiet = xgboost.config_context(verbosity=0)  # where a worker has no rows it would warn
    with _without_ranks(), quiet, CommunicatorContext(**peers, **COLLECTIVE, dmlc_task_id=f"{rank:06d}"):
        found = _train_parts(planned, features, parts, seed, threads)
    return None if rank else found


def _train_parts(
    planned: Plan, features: Sequence[str], parts: Sequence[Sequence[Frame]], seed: int, threads: int
) -> tuple[xgboost.Booster, History]:
    """Train on features and labels of parts, and on those of the validation rows where there are such."""
    with threaded(threads):
        rows = _matrix(planned, features, parts[0], parts[1], threads)
        held_out = _matrix(planned, features, parts[2], parts[3], threads, ref=rows) if len(parts) > 2 else None
    booster, history = boost(planned, rows, held_out, seed, threads)
    booster.set_param({"device": "cpu"})  # or the driver that it travels to would wake a GPU, or warn of none
    return booster, history


def _matrix(
    planned: Plan,
    features: Sequence[str],
    x: Sequence[Frame],
    y: Sequence[Frame],
    threads: int,
    ref: xgboost.QuantileDMatrix | None = None,
) -> xgboost.QuantileDMatrix:
    """Bin parts; a worker without any takes part with no rows."""
    options = planned.matrix(features)
    if not x:
        nothing = np.empty((0, len(features)), np.float32)
        return xgboost.QuantileDMatrix(nothing, np.empty(0), feature_names=list(features), ref=ref, **options)
    types = options.pop("feature_types", None)
    return xgboost.QuantileDMatrix(_Parts(x, y, types), ref=ref, nthread=threads, **options)


class _Parts(xgboost.DataIter):
    """Passes parts to a matrix one by one, so that they are never joined."""

    def __init__(self, x: Sequence[Frame], y: Sequence[Frame], types: Sequence[str] | None) -> None:
        self._x, self._y, self._types = x, y, types
        self._at = 0
        super().__init__()

    def next(self, input_data: Any) -> bool:
        """Pass the next part; False after the last."""
        if self._at == len(self._x):
            return False
        input_data(data=self._x[self._at], label=self._y[self._at], feature_types=self._types)
        self._at += 1
        return True

    def reset(self) -> None:
        """Begin again."""
        self._at = 0


def boost(
    planned: Plan, rows: xgboost.QuantileDMatrix, held_out: xgboost.QuantileDMatrix | None, seed: int, threads: int
) -> tuple[xgboost.Booster, History]:
    """Train, and leave the rest to ``fitted``."""
    history: dict[str, dict[str, list[float]]] = {}
    with threaded(threads):
        booster = xgboost.train(
            {**planned.params, "seed": seed, "nthread": threads},
            rows,
            planned.rounds,
            evals=[(held_out, "validation")] if held_out else [],
            early_stopping_rounds=planned.stop_after if held_out else None,
            evals_result=history,
            verbose_eval=False,
            callbacks=[Witness()],
        )
    return booster, history


def threaded(threads: int) -> AbstractContextManager[None]:
    """Let XGBoost use so many threads: Dask sets OpenMP to one in a worker process, which ``nthread`` does not lift."""
    context: AbstractContextManager[None] = xgboost.config_context(nthread=threads)
    return context


class Witness(TrainingCallback):
    """Records on the worker which device a booster was trained on: elsewhere its configuration may say another."""

    def after_training(self, model: Any) -> Any:
        """Copy the device of the booster's configuration into an attribute, which travels with it."""
        model.set_attr(**{DEVICE: json.loads(model.save_config())["learner"]["generic_param"]["device"]})
        return model
