"""Where XGBoost's rounds run: in one task on one worker, or on several workers by xgboost.dask."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import xgboost
from xgboost import dask as dxgb
from xgboost.callback import TrainingCallback
from xgboost.collective import Config

from tipcast.backends.base import Frame
from tipcast.estimators.base import Future, History, columns
from tipcast.estimators.placement import results, watched
from tipcast.estimators.xgboost_plan import Plan

COLLECTIVE = {"retry": 1, "timeout": 300}
"""A worker that does not answer its peers for 300 s ends the training with an error."""
LOOPBACK = ("inproc://", "tcp://127.0.0.1:", "tcp://localhost:")

DEVICE = "tipcast_device"
"""Booster attribute: the device that the rounds really ran on."""


def alone(
    client: Any, address: str, planned: Plan, parts: Sequence[Sequence[Future]], seed: int
) -> tuple[xgboost.Booster, History]:
    """Train as one task: where all rows are on one worker there is nobody to agree with."""
    threads = client.nthreads()[address]
    lists = [list(each) for each in parts]
    task = client.submit(_train_parts, planned, lists, seed, threads, workers=[address], pure=False)
    found: tuple[xgboost.Booster, History] = results(client, {address: task})[address]
    return found


def _train_parts(
    planned: Plan, parts: Sequence[Sequence[Frame]], seed: int, threads: int
) -> tuple[xgboost.Booster, History]:
    """Train on features and labels of parts, and on those of the validation rows where there are such."""
    options = planned.matrix(columns(parts[0][0]))
    types = options.pop("feature_types", None)
    rows = xgboost.QuantileDMatrix(_Parts(parts[0], parts[1], types), nthread=threads, **options)
    held_out = None
    if len(parts) > 2:
        held_out = xgboost.QuantileDMatrix(_Parts(parts[2], parts[3], types), ref=rows, nthread=threads, **options)
    booster, history = boost(planned, rows, held_out, seed, threads)
    booster.set_param({"device": "cpu"})  # or the driver that it travels to would wake a GPU, or warn of none
    return booster, history


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


def together(
    client: Any, planned: Plan, features: Sequence[str], parts: Sequence[Sequence[Future]], seed: int
) -> tuple[xgboost.Booster, History]:
    """Train by xgboost.dask on all workers that hold rows."""
    options = planned.matrix(features)
    x_like = pd.DataFrame({name: np.empty(0, np.float32) for name in features})
    y_like = pd.Series(np.empty(0, np.int32), name="target")

    def train() -> Any:
        with client.as_current():  # xgboost.dask asks for the current client, whichever it is given
            rows = dxgb.DaskQuantileDMatrix(
                client, _collection(parts[0], x_like), _collection(parts[1], y_like), **options
            )
            evals = []
            if len(parts) > 2:
                held_out = (_collection(parts[2], x_like), _collection(parts[3], y_like))
                evals = [(dxgb.DaskQuantileDMatrix(client, *held_out, ref=rows, **options), "validation")]
            return dxgb.train(
                client,
                {**planned.params, "seed": seed},
                rows,
                planned.rounds,
                evals=evals,
                early_stopping_rounds=planned.stop_after if evals else None,
                verbose_eval=False,
                callbacks=[Witness()],
                coll_cfg=_collective(client),
            )

    result = watched(client, train)
    return result["booster"], result["history"]


def boost(
    planned: Plan, rows: xgboost.QuantileDMatrix, held_out: xgboost.QuantileDMatrix | None, seed: int, threads: int
) -> tuple[xgboost.Booster, History]:
    """Train, and leave the rest to ``fitted``."""
    history: dict[str, dict[str, list[float]]] = {}
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


def _collective(client: Any) -> Config:
    """Return how workers find each other; on one machine the tracker listens on the loopback only."""
    local = str(client.scheduler_info(n_workers=0)["address"]).startswith(LOOPBACK)
    return Config(**COLLECTIVE, tracker_host_ip="127.0.0.1" if local else None)


class Witness(TrainingCallback):
    """Records on the worker which device a booster was trained on: elsewhere its configuration may say another."""

    def after_training(self, model: Any) -> Any:
        """Copy the device of the booster's configuration into an attribute, which travels with it."""
        model.set_attr(**{DEVICE: json.loads(model.save_config())["learner"]["generic_param"]["device"]})
        return model


def _collection(parts: Sequence[Future], like: Frame) -> Any:
    """Return parts as a collection like a frame of the host, which a driver without a GPU can make."""
    return dd.from_delayed(list(parts), meta=like, verify_meta=False)
