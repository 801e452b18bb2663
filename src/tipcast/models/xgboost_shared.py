"""Boosted trees on matrices, which many fits of one process may share: trained, cut to fewer rounds, trained on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import xgboost
from xgboost.callback import TrainingCallback

from tipcast.models.base import Fitted, History, columns
from tipcast.models.sharing import Grown, Split
from tipcast.models.xgboost_plan import Plan

DEVICE = "tipcast_device"
"""Booster attribute: the device that the rounds really ran on."""

MAXIMISED = ("auc", "aucpr", "pre")
"""Evaluation metrics of which more is better."""


@dataclass(frozen=True)
class Matrices:
    """Binned rows."""

    rows: xgboost.QuantileDMatrix
    held_out: xgboost.QuantileDMatrix


@dataclass(frozen=True)
class State:
    """Boosted rounds as they were left."""

    raw: bytearray
    scores: tuple[float, ...]
    """Of the validation rows after each round, by the metric that stops early."""


def matrices(planned: Plan, split: Split, threads: int) -> Matrices:
    """Bin rows."""
    options = planned.matrix(columns(split.x))
    with threaded(threads):
        rows = xgboost.QuantileDMatrix(split.x, split.y, nthread=threads, **options)
        return Matrices(rows, xgboost.QuantileDMatrix(*split.validation, ref=rows, nthread=threads, **options))


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
            callbacks=[RecordDevice()],
        )
    return booster, history


def threaded(threads: int) -> AbstractContextManager[None]:
    """Let XGBoost use so many threads: Dask sets OpenMP to one in a worker process, which ``nthread`` does not lift."""
    context: AbstractContextManager[None] = xgboost.config_context(nthread=threads)
    return context


class RecordDevice(TrainingCallback):
    """Records on the worker which device a booster was trained on: elsewhere its configuration may say another."""

    def after_training(self, model: Any) -> Any:
        """Copy the device of the booster's configuration into an attribute, which travels with it."""
        model.set_attr(**{DEVICE: json.loads(model.save_config())["learner"]["generic_param"]["device"]})
        model.set_param({"device": "cpu"})  # or the driver that it travels to would wake a GPU, or warn of none
        return model


def cut(
    planned: Plan,
    booster: xgboost.Booster,
    history: History,
    features: Sequence[str],
    sizes: Sequence[int],
    fitted: Callable[..., Fitted],
) -> list[Fitted]:
    """Return what fits of fewer rounds would have returned, bit by bit.

    Parameters
    ----------
    planned
        Of the longest fit.
    booster, history
        Of the longest fit: all rounds that were trained.
    features
        In the order of the rows.
    sizes
        Rounds wanted.
    fitted
        Makes a ``Fitted`` of a plan, a booster, a history and the features' names.

    """
    trained = booster.num_boosted_rounds()
    found = []
    for size in sizes:
        if size >= trained:  # it ended there by itself, or was to
            found.append(fitted(planned, booster, history, features))
            continue
        short = {name: {key: list(of[key])[:size] for key in of} for name, of in history.items()}
        part = booster[:size]
        if planned.stop_after is not None:
            _mark_best(part, *list(short["validation"].items())[-1])
        found.append(fitted(planned, part, short, features))
    return found


def grow(
    planned: Plan,
    shared: Matrices,
    rounds: int,
    state: State | None,
    seed: int,
    threads: int,
    fitted: Callable[..., Fitted],
) -> Grown:
    """Train on to so many rounds; keep the best where the plan stops early.

    Each round draws from a seed of its own, so that the same stops give the same trees whatever this thread did in
    between. Where rows or columns are drawn, other stops give other trees: XGBoost's sampler begins anew at each.
    """
    history: dict[str, dict[str, list[float]]] = {}
    before = state.scores if state else ()
    with threaded(threads):
        booster = xgboost.train(
            {**planned.params, "seed": seed, "seed_per_iteration": True, "nthread": threads},
            shared.rows,
            rounds - len(before),
            evals=[(shared.held_out, "validation")],
            evals_result=history,
            verbose_eval=False,
            xgb_model=state.raw if state else None,
            callbacks=[RecordDevice()],
        )
    name, new = list(history["validation"].items())[-1]
    scores = (*before, *new)
    left = State(booster.save_raw("ubj"), scores)
    used: Sequence[float] = scores
    over = False
    if planned.stop_after is not None:
        used, over = _until_stopped(name, scores, planned.stop_after)
        booster = booster[: len(used)] if len(used) < len(scores) else booster
        _mark_best(booster, name, used)
    features = list(shared.rows.feature_names or [])
    return Grown(fitted(planned, booster, {"validation": {name: list(used)}}, features), len(scores), left, over)


def _until_stopped(metric: str, scores: Sequence[float], stop_after: int) -> tuple[Sequence[float], bool]:
    """Return the scores up to where early stopping would have ended the fit, and whether it would have."""
    best = 0
    for at, score in enumerate(scores):
        if at and (score > scores[best] if _more_is_better(metric) else score < scores[best]):
            best = at
        if at - best >= stop_after:
            return scores[: at + 1], True
    return scores, False


def _more_is_better(metric: str) -> bool:
    return metric.partition("@")[0] in MAXIMISED


def _mark_best(booster: xgboost.Booster, metric: str, scores: Sequence[float]) -> None:
    """Say in the booster which round was the best, as early stopping does: the first of the best score."""
    pick = max if _more_is_better(metric) else min
    best = list(scores).index(pick(scores))
    booster.set_attr(best_iteration=str(best), best_score=str(scores[best]))
