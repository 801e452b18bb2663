"""XGBoost over all workers and inside one process: boosted trees, and a random forest as one round of many trees."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import dask.dataframe as dd
import xgboost
from xgboost import dask as dxgb
from xgboost.callback import TrainingCallback
from xgboost.collective import Config

from tipcast.backends.base import Frame
from tipcast.config.errors import TipcastError
from tipcast.estimators import native
from tipcast.estimators.base import Fitted, Future, History, Progress, columns, shares
from tipcast.estimators.xgboost_plan import MISSING, Plan, plan, try_out

COLLECTIVE = {"retry": 1, "timeout": 300}
"""A worker that does not answer its peers for 300 s ends the training with an error."""
LOOPBACK = ("inproc://", "tcp://127.0.0.1:", "tcp://localhost:")

DEVICE = "tipcast_device"
"""Booster attribute: the device that the rounds really ran on."""


@final
@dataclass(frozen=True)
class DistributedXGBoost:
    """One booster trained by all workers together, each on the rows that it holds."""

    CATEGORIES = True
    """Whether ``task.categorical`` means anything to it."""

    params: Mapping[str, Any]
    training: Mapping[str, Any]
    device: str
    categorical: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse parameters that XGBoost would."""
        try_out(plan(self.params, self.training, self.device, self.categorical))

    def fit(
        self,
        client: Any,
        x: Sequence[Future],
        y: Sequence[Future],
        validation: tuple[Sequence[Future], Sequence[Future]] | None,
        seed: int,
        progress: Progress | None = None,
    ) -> Fitted:
        """Train; with validation rows stop early and keep the best rounds.

        Parameters
        ----------
        client
            ``distributed.Client`` whose workers hold the rows.
        x, y
            Futures of (n, features) float32 DataFrames and (n,) int32 Series, part by part alike.
        validation
            The same of the rows that decide when to stop.
        seed
            Of the row and column samples.
        progress
            Not called: XGBoost's rounds run inside the workers.

        Raises
        ------
        TipcastError
            C010 when XGBoost computed on another device, K003 when a worker was lost.

        """
        planned = plan(self.params, self.training, self.device, self.categorical)
        empty_x, empty_y = client.gather(client.map(_empty, [x[0], y[0]], pure=False))
        features = columns(empty_x)
        before = set(client.nthreads())
        options = planned.matrix(features)
        try:
            with client.as_current():  # xgboost.dask asks for the current client, whichever it is given
                rows = dxgb.DaskQuantileDMatrix(client, _collection(x, empty_x), _collection(y, empty_y), **options)
                evals = []
                if validation:
                    held_out = (_collection(validation[0], empty_x), _collection(validation[1], empty_y))
                    evals = [(dxgb.DaskQuantileDMatrix(client, *held_out, ref=rows, **options), "validation")]
                result = dxgb.train(
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
        except (xgboost.core.XGBoostError, RuntimeError, ValueError, AssertionError) as problem:
            lost = before - set(client.nthreads())
            if not lost:
                raise
            raise TipcastError(
                "K003",
                ", ".join(sorted(lost)),
                "worker lost while training",
                "give workers more memory (cluster.memory_limit) and repeat the command",
            ) from problem
        return fitted(planned, result["booster"], result["history"], features)


@final
@dataclass(frozen=True)
class LocalXGBoost:
    """One booster trained inside one process."""

    CATEGORIES = True
    """Whether ``task.categorical`` means anything to it."""

    params: Mapping[str, Any]
    training: Mapping[str, Any]
    device: str
    categorical: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse parameters that XGBoost would."""
        try_out(plan(self.params, self.training, self.device, self.categorical))

    def fit(self, x: Frame, y: Frame, validation: tuple[Frame, Frame] | None, seed: int, threads: int = 1) -> Fitted:
        """Train on frames in memory; with validation rows stop early and keep the best rounds."""
        planned = plan(self.params, self.training, self.device, self.categorical)
        features = columns(x)
        options = planned.matrix(features)
        rows = xgboost.QuantileDMatrix(x, y, nthread=threads, **options)
        held_out = xgboost.QuantileDMatrix(*validation, ref=rows, nthread=threads, **options) if validation else None
        return train(planned, rows, held_out, seed, threads)


def train(
    planned: Plan, rows: xgboost.QuantileDMatrix, held_out: xgboost.QuantileDMatrix | None, seed: int, threads: int = 1
) -> Fitted:
    """Train on matrices that may be shared with other trainings of the same ``max_bin``."""
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
    return fitted(planned, booster, history, list(rows.feature_names or []))


def fitted(planned: Plan, booster: xgboost.Booster, history: History, features: Sequence[str]) -> Fitted:
    """Keep the best rounds, and say on which device they were trained.

    Raises
    ------
    TipcastError
        C010 when XGBoost fell back to another device than the session's.

    """
    used = booster.attr(DEVICE) or "unknown"
    if used.partition(":")[0] != planned.device:
        raise TipcastError(
            "C010",
            "backend",
            f"XGBoost computed on {used} and not on {planned.device}",
            "run where XGBoost finds a GPU, or use backend=cpu",
        )
    trained = booster.num_boosted_rounds()
    info: dict[str, str | float] = {"device": used, "rounds": trained}
    if booster.attr("best_iteration") is not None:
        info |= {"best_iteration": booster.best_iteration, "best_score": booster.best_score}
        if booster.best_iteration + 1 < trained:
            booster = booster[: booster.best_iteration + 1]
    if planned.categorical:
        booster.set_attr(**{native.MISSING: str(MISSING)})
    booster.feature_names = list(features)
    gain = booster.get_score(importance_type="gain")
    return Fitted(
        scorer=native.XGBoostScorer(booster, device=planned.device),
        history=history,
        importance=shares(features, [float(gain.get(name, 0)) for name in features]),  # type: ignore[arg-type]
        importance_kind="gain",
        info=info,
        model=booster,
        file="model.ubj",
        format="xgboost-ubj",
        write=_write,
    )


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


def _collection(parts: Sequence[Future], empty: Frame) -> Any:
    return dd.from_delayed(list(parts), meta=empty, verify_meta=False)


def _empty(frame: Frame) -> Frame:
    return frame.iloc[:0]


def _write(booster: Any, path: Path) -> None:
    booster.save_model(path)
