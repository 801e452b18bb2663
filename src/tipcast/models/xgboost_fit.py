"""Fit XGBoost inside one process or over all workers; the estimator is ``models.xgboost``'s."""

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pandas as pd
import xgboost
from dask.base import annotate
from xgboost import collective
from xgboost.callback import TrainingCallback

from tipcast.config.errors import TipcastError
from tipcast.models import base, native
from tipcast.models.base import Fitted, Split
from tipcast.models.checkpoints import (
    VALIDATION,
    Checkpoint,
    EvaluationLog,
    joined_logs,
    resumes_exactly,
)
from tipcast.models.fit import column_names, watched, worker_lock, workers_of
from tipcast.models.xgboost_callbacks import (
    DEVICE,
    TRAIN,
    KeepCheckpoints,
    RecordTraining,
    history_of,
    stopping_after,
)
from tipcast.models.xgboost_matrix import binned
from tipcast.models.xgboost_workers import EXECUTOR, TrainingThread, tracker_host

if TYPE_CHECKING:
    from distributed import Client

    from tipcast.models.xgboost import XGBoost

Matrices = tuple[xgboost.QuantileDMatrix, xgboost.QuantileDMatrix | None, list[str]]
"""Binned rows to train on, binned rows that decide when to stop, and the names of features."""


def prepare(estimator: "XGBoost", rows: Split, threads: int) -> Matrices:
    """Bin rows, those of validation by the bins of the training rows."""
    features = base.columns(rows.x)
    options = _matrix_options(estimator, features)
    # Dask sets OpenMP to one thread, and nthread alone does not change that.
    with xgboost.config_context(nthread=threads):
        train = binned(rows, threads, estimator.device, options)
        if rows.validation is None:
            return train, None, features

        options["ref"] = train
        return train, binned(rows.validation, threads, estimator.device, options), features


def fit(estimator: "XGBoost", rows: Split | Matrices, seed: int, threads: int) -> Fitted:
    """Train inside this process; see ``XGBoost.fit``."""
    evaluated: xgboost.QuantileDMatrix | None = None  # a trial's curve of these is not kept
    if isinstance(rows, Split):
        train, held_out, features = prepare(estimator, rows, threads)
        evaluated = train
    else:
        train, held_out, features = rows

    booster, log = _train(estimator, train, held_out, evaluated, seed, threads)
    return to_fitted(estimator, booster, log, features)


def continue_fit(
    estimator: "XGBoost", rows: Matrices, seed: int, earlier: Checkpoint | None
) -> Fitted:
    """Train for the rounds that are missing; see ``XGBoost.continue_fit``."""
    if not resumes_exactly(estimator.params):
        earlier = None
    train, held_out, features = rows
    going_on = replace(estimator, checkpoint=earlier)
    booster, log = _train(going_on, train, held_out, None, seed, threads=1)

    state = Checkpoint.of(booster, log)
    grown = state.rounds
    if earlier is not None:
        grown -= earlier.rounds
    fitted = to_fitted(estimator, booster, log, features)
    return replace(fitted, info={**fitted.info, "grown_trees": grown}, state=state)


def _train(
    estimator: "XGBoost", train: Any, held_out: Any, evaluated: Any, seed: int, threads: int
) -> tuple[xgboost.Booster, EvaluationLog]:
    """Train in this process, on from the checkpoint, if any; return the metrics of all rounds
    too.
    """
    log: dict[str, dict[str, list[float]]] = {}
    with xgboost.config_context(nthread=threads):
        options = _options(estimator, seed, evaluated, held_out, nthread=threads)
        booster = xgboost.train(dtrain=train, evals_result=log, **options)
    return booster, joined_logs(_earlier_log(estimator), log)


def fit_together(estimator: "XGBoost", client: "Client", rows: Split, seed: int) -> Fitted:
    """Train over all workers, each on the rows that it holds."""
    from xgboost import dask as dxgb  # imports Dask's DataFrame, which takes half a second

    splits = filter(None, (rows, rows.validation))
    workers = workers_of(client, [part for split in splits for part in split.x])
    features = column_names(client, rows.x)
    options = _matrix_options(estimator, features)

    def train() -> Any:
        with xgboost.config_context(verbosity=0):  # it would warn of workers without rows
            client.register_plugin(TrainingThread())
            matrix = dxgb.DaskQuantileDMatrix(client, **_collections(rows, features), **options)
            held_out = None
            if rows.validation:
                validation = _collections(rows.validation, features)
                held_out = dxgb.DaskQuantileDMatrix(client, **validation, ref=matrix, **options)
            with annotate(executor=EXECUTOR):
                tracker = collective.Config(tracker_host_ip=tracker_host(client))
                return dxgb.train(
                    client,
                    dtrain=matrix,
                    coll_cfg=tracker,
                    **_options(estimator, seed, matrix, held_out),
                )

    with worker_lock(client, workers):
        trained = watched(client, workers, train)
    log = joined_logs(_earlier_log(estimator), trained["history"])
    return to_fitted(estimator, trained["booster"], log, features)


def _collections(rows: Split, features: Sequence[str]) -> dict[str, Any]:
    """Return rows as Dask's collections, by the names that XGBoost has for them.

    XGBoost checks only the collections' types and their numbers of columns and of parts. So pandas'
    types are declared for them: cuDF's would start CUDA in the driver.
    """
    import dask.dataframe as dd

    column = pd.Series(dtype="float32")
    frame = pd.DataFrame(columns=list(features), dtype="float32")
    sides = {
        "data": (rows.x, frame),
        "label": (rows.y, column),
        "weight": (rows.weight, column),
    }
    return {
        name: dd.from_delayed(parts, meta=meta, verify_meta=False)
        for name, (parts, meta) in sides.items()
        if parts is not None
    }


def _earlier_log(estimator: "XGBoost") -> EvaluationLog:
    """Metrics of the rounds before the checkpoint that the training goes on from."""
    if estimator.checkpoint is None:
        return {}
    return estimator.checkpoint.log


def _matrix_options(estimator: "XGBoost", features: Sequence[str]) -> dict[str, Any]:
    """Return keyword arguments of a QuantileDMatrix.

    NaN is a missing value. The value that the dataset fills in is an ordinary value, the
    lowest: the matrix stays dense, and so small and fast. Categories must not be negative, so
    with categories the fill value counts as missing too.
    """
    options: dict[str, Any] = {
        "max_bin": estimator.bins,
        "feature_names": native.booster_names(list(features)),
    }
    if estimator.categorical:
        types = ["c" if name in estimator.categorical else "q" for name in features]
        options |= {
            "feature_types": types,
            "enable_categorical": True,
            "missing": estimator.missing,
        }

    return options


def _options(
    estimator: "XGBoost", seed: int, train: Any, held_out: Any, **params: Any
) -> dict[str, Any]:
    """Return keyword arguments of a training.

    It stops early by the rows that are held out, if any, and also evaluates the rows of
    ``train``, if any.
    """
    training = estimator.to_xgboost()
    rounds = training.rounds
    callbacks: list[TrainingCallback] = [RecordTraining()]
    evals = []
    booster = None
    if estimator.checkpoint:
        booster = estimator.checkpoint.booster()
        rounds -= estimator.checkpoint.rounds

    if held_out:
        evals.append((held_out, VALIDATION))
        # If each round adds one tree, the margins of training rows are at hand.
        if train and training.params["num_parallel_tree"] == 1:
            evals.insert(0, (train, TRAIN))
        if training.early_stopping_rounds is not None:
            stopping = stopping_after(training.early_stopping_rounds, estimator.checkpoint)
            callbacks.append(stopping)
            if stopping.current_rounds >= stopping.rounds:  # the checkpoint is of its end
                rounds = 0

    # After early stopping, so that no training that has ended is kept.
    if estimator.keep_in and estimator.checkpoint_s is not None:
        keeping = KeepCheckpoints(
            estimator.keep_in, estimator.checkpoint_s, _earlier_log(estimator)
        )
        callbacks.append(keeping)

    return {
        "params": {**training.params, "seed": seed, **params},
        "num_boost_round": rounds,
        "evals": evals,
        "verbose_eval": False,
        "callbacks": callbacks,
        "xgb_model": booster,
    }


def to_fitted(
    estimator: "XGBoost",
    booster: xgboost.Booster,
    log: EvaluationLog,
    features: Sequence[str],
) -> Fitted:
    """Keep the best rounds, and say on which device they were trained.

    Raises C010 if XGBoost fell back to another device than the session's.
    """
    used = booster.attr(DEVICE) or "unknown"
    if used.partition(":")[0] != estimator.device:
        what = f"XGBoost ran on {used}, not on {estimator.device}"
        fix = "run where XGBoost finds a GPU, or use backend=cpu"
        raise TipcastError("C010", "backend", what, fix)

    trained = booster.num_boosted_rounds()
    info: dict[str, str | float] = {"device": used, "rounds": trained}
    if booster.attr("best_iteration") is not None:
        info["best_iteration"] = booster.best_iteration
        if booster.best_iteration + 1 < trained:
            booster = booster[: booster.best_iteration + 1]

    if estimator.categorical:
        booster.set_attr(**{native.MISSING_ATTRIBUTE: str(estimator.missing)})

    names = native.booster_names(list(features))
    booster.feature_names = names
    gain: dict[str, Any] = booster.get_score(importance_type="gain")
    return Fitted(
        scorer=native.XGBoostScorer(bytes(booster.save_raw("ubj")), device=estimator.device),
        history=history_of(log),
        importance=base.shares(features, [gain.get(name, 0.0) for name in names]),
        importance_kind="gain",
        info=info,
        format="xgboost-ubj",
        content=attrgetter("content"),
    )
