"""XGBoost over all workers and inside one process: boosted trees, and a random forest as one round
of many trees.
"""

import ctypes
import json
import logging
import re
import sys
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, final
from urllib.parse import urlsplit

import dask
import numpy as np
import xgboost
from dask.base import annotate
from distributed import WorkerPlugin
from xgboost import collective
from xgboost.callback import TrainingCallback

from tipcast.config.errors import TipcastError
from tipcast.config.gate import gate
from tipcast.models import base, native
from tipcast.models.base import Estimator, Fitted, Progress, Split
from tipcast.models.fit import parts_of, watched, worker_lock, workers_of
from tipcast.tasks.kinds import Boosting

if TYPE_CHECKING:
    from distributed import Client

EXECUTOR = "tipcast-xgboost"
"""Name of the thread of a worker that trains together with others."""
LOOPBACK = "127.0.0.1"
DEVICE = "tipcast_device"
"""Booster attribute: the device that the rounds really ran on."""
TRAIN = "train"
EVERY = 10
"""Rounds from one evaluation of the training rows to the next."""
PARAMS = {
    "base_score",
    "colsample_bylevel",
    "colsample_bynode",
    "colsample_bytree",
    "eval_metric",
    "gamma",
    "grow_policy",
    "learning_rate",
    "max_bin",
    "max_cat_threshold",
    "max_cat_to_onehot",
    "max_delta_step",
    "max_depth",
    "max_leaves",
    "min_child_weight",
    "n_estimators",
    "reg_alpha",
    "reg_lambda",
    "sampling_method",
    "scale_pos_weight",
    "subsample",
    "tree_method",
    "verbosity",
}
"""By the names of XGBoost's scikit-learn interface."""
ABOVE_ZERO = (
    "learning_rate",
    "subsample",
    "colsample_bytree",
    "colsample_bylevel",
    "colsample_bynode",
)
"""At 0 nothing is learned, which XGBoost does not refuse."""
HINTS = {
    **base.RESERVED,
    "eta": "model.params.learning_rate",
    "num_boost_round": "model.params.n_estimators",
    "early_stopping_rounds": "model.fit.early_stopping_rounds",
    "seed": "seed=...",
    "nthread": "cluster.threads_per_worker",
    "device": "backend=cpu or backend=gpu",
    "num_parallel_tree": "model=xgboost_forest and model.params.n_estimators",
    "objective": "task=...: it implies the objective",
}

Matrices = tuple[xgboost.QuantileDMatrix, xgboost.QuantileDMatrix | None, list[str]]
"""Binned rows to train on, those that decide when to stop, and the names of features."""


class RecordTraining(TrainingCallback):
    """Records on the worker which device a booster was trained on, and now and then its metric of
    training rows.
    """

    def before_training(self, model: Any) -> Any:
        """Pass the gate of a fit, in every process that takes part, and leave most evaluations of
        training rows out.
        """
        gate("fit")
        # Evaluating all training rows in every round would take a fifth of the training.
        evaluate = model.eval_set

        def evaluate_some(evals: Any, epoch: int, *settings: Any) -> Any:
            return evaluate(
                [rows for rows in evals if rows[1] != TRAIN or epoch % EVERY == 0], epoch, *settings
            )

        model.eval_set = evaluate_some
        return model

    def after_training(self, model: Any) -> Any:
        """Copy the device of the booster's configuration into an attribute, which travels with
        it.
        """
        del model.eval_set
        model.set_attr(
            **{DEVICE: json.loads(model.save_config())["learner"]["generic_param"]["device"]}
        )
        # Otherwise the driver that receives the booster would initialize a GPU, or warn of none.
        model.set_param({"device": "cpu"})
        return model


@final
@dataclass(frozen=True)
class XGBoost(Estimator):
    """One booster, trained inside one process or by all workers together, by ``xgboost.dask``."""

    @property
    def takes_categories(self) -> bool:
        """Yes, as sets."""
        return True

    @property
    def takes_missing(self) -> bool:
        """Yes: each split learns the side of missing values."""
        return True

    @property
    def planned(self) -> tuple[dict[str, Any], int, int | None]:
        """Parameters, number of rounds, and rounds without improvement that end a training, as
        XGBoost takes them.

        ``n_estimators`` counts trees, spread over ``num_boost_round`` rounds, null for one tree a
        round; a null parameter leaves the choice to XGBoost. C001 unknown name, C003 impossible
        count.
        """
        base.check_names("params", self.params, PARAMS, HINTS)
        base.check_names("fit", self.training, {"num_boost_round", "early_stopping_rounds"}, {})
        given = {name: value for name, value in self.params.items() if value is not None}
        if given.get("tree_method") == "gpu_hist":
            given["tree_method"] = "hist"

        for name in ABOVE_ZERO:
            if name in given:
                base.positive(f"model.params.{name}", given[name], whole=False)

        boosting = self.kind.boosting
        if boosting is None:
            what = f"XGBoost has no objective for {self.kind}"
            raise TipcastError("C003", "task.kind", what, "choose another model")

        self._check_metrics(given.setdefault("eval_metric", boosting.metric), boosting)
        trees = base.positive("model.params.n_estimators", given.pop("n_estimators", 100))
        rounds = self._rounds(trees)
        stop = self.training.get("early_stopping_rounds")
        if stop is not None:
            base.positive("model.fit.early_stopping_rounds", stop)

        params = {
            "objective": boosting.objective,
            "device": self.device,
            "num_parallel_tree": trees // rounds,
            **given,
        }
        if self.kind.column_per_class:
            params["num_class"] = self.classes or 2
        return params, rounds, stop

    def _check_metrics(self, metrics: str | list[str], boosting: Boosting) -> None:
        """Refuse (C003) a metric that does not judge the kind of task."""
        for metric in [metrics] if isinstance(metrics, str) else metrics:
            if not boosting.metrics.fullmatch(str(metric)):
                what = f"{metric} does not judge {self.kind}"
                fix = f"use {boosting.metric}, or null for it"
                raise TipcastError("C003", "model.params.eval_metric", what, fix)

    def _rounds(self, trees: int) -> int:
        """Return the number of rounds that trees are spread over; C003 where they do not divide."""
        asked = self.training.get("num_boost_round") or trees
        rounds: int = base.positive("model.fit.num_boost_round", asked)
        if trees % rounds:
            what = f"{trees} trees do not spread evenly over {rounds} rounds"
            fix = "set it to null or to a divisor of model.params.n_estimators"
            raise TipcastError("C003", "model.fit.num_boost_round", what, fix)
        return rounds

    @property
    def bins(self) -> Any:
        """Bins of a feature at most."""
        most = self.params.get("max_bin")
        return 256 if most is None else most

    def check(self) -> None:
        """Refuse parameters that XGBoost would: it judges the values by one round on eight rows."""
        planned, _, _ = self.planned
        if self.params.get("tree_method") == "gpu_hist":
            message = "tree_method=gpu_hist is now hist: backend=%s decides the device"
            logging.getLogger("tipcast").warning(
                message, "gpu" if self.device == "cuda" else self.device
            )

        x = np.arange(16, dtype=np.float32).reshape(8, 2)
        settings = planned | {"device": "cpu", "num_parallel_tree": 1, "verbosity": 0}
        try:
            rows = xgboost.QuantileDMatrix(x, np.array([0, 1] * 4), max_bin=self.bins)
            xgboost.train(settings, rows, 1, evals=[(rows, "validation")], verbose_eval=False)
        except (xgboost.core.XGBoostError, ValueError, TypeError) as problem:
            message = str(problem).split("\nStack trace")[0].split("\n")[0]
            message = re.sub(r"^\[[\d:]+\] \S+?:\d+: (Check failed: [^:]*: )?", "", message)
            name = next((name for name in planned if name in message), None)
            name = name or next(
                (name for name, value in planned.items() if str(value) in message), ""
            )
            key = f"model.params.{name}".rstrip(".")
            fix = "see XGBoost's parameter documentation"
            raise TipcastError("C003", key, message, fix) from problem

    @property
    def sharing(self) -> Hashable:
        """What binned rows depend on."""
        return self.bins, self.categorical

    def prepared(self, rows: Split, threads: int) -> Matrices:
        """Bin rows, once for all fits that share them."""
        options = self._matrix_options(features := base.columns(rows.x))
        # Dask sets OpenMP to one, which nthread alone does not lift
        with xgboost.config_context(nthread=threads):
            train = _matrix(rows.x, rows.y, threads, options)
            if rows.validation is None:
                return train, None, features
            x, y = rows.validation
            return train, _matrix(x, y, threads, {**options, "ref": train}), features

    def fit(self, rows: Split | Matrices, seed: int, threads: int = 1) -> Fitted:
        """Train; with validation rows stop early and keep the best. Fits of several threads may
        share the rows.
        """
        train, held_out, features = (
            self.prepared(rows, threads) if isinstance(rows, Split) else rows
        )
        history: dict[str, dict[str, list[float]]] = {}
        with xgboost.config_context(nthread=threads):
            shown = train if isinstance(rows, Split) else None  # a trial's curve is not kept
            options = self._options(seed, held_out, shown, nthread=threads)
            booster = xgboost.train(dtrain=train, evals_result=history, **options)
        return self.fitted(booster, history, features)

    def fit_distributed(
        self, client: "Client", rows: Split, seed: int, progress: Progress = None
    ) -> Fitted:
        """Train, each worker on the rows that it holds, as ``fit`` does. XGBoost does not tell its
        progress.
        """
        from xgboost import dask as dxgb  # imports Dask's DataFrame, which takes half a second

        sides = (rows.x, *(rows.validation or ())[:1])
        workers = workers_of(client, [part for side in sides for part in parts_of(client, side)])
        features = base.columns(rows.x)
        options = self._matrix_options(features)

        def train() -> Any:
            with xgboost.config_context(verbosity=0):  # where a worker has no rows it would warn
                client.register_plugin(_TrainingThread())
                matrix = dxgb.DaskQuantileDMatrix(client, rows.x, rows.y, **options)
                held_out = rows.validation and dxgb.DaskQuantileDMatrix(
                    client, *rows.validation, ref=matrix, **options
                )
                with annotate(executor=EXECUTOR):
                    tracker = collective.Config(tracker_host_ip=_loopback(client))
                    return dxgb.train(
                        client,
                        dtrain=matrix,
                        coll_cfg=tracker,
                        **self._options(seed, held_out, matrix),
                    )

        with worker_lock(client, workers):
            trained = watched(client, workers, train)
        return self.fitted(trained["booster"], trained["history"], features)

    def _matrix_options(self, features: Sequence[str]) -> dict[str, Any]:
        """Return keyword arguments of a QuantileDMatrix.

        NaN is a missing value. A fill value of the dataset's own is an ordinary, lowest value: the
        matrix stays dense, and so small and fast. Categories must not be negative, so with
        categories it is a missing value too.
        """
        options: dict[str, Any] = {
            "max_bin": self.bins,
            "feature_names": native.booster_names(list(features)),
        }
        if self.categorical:
            types = ["c" if name in self.categorical else "q" for name in features]
            options |= {"feature_types": types, "enable_categorical": True, "missing": self.missing}

        return options

    def _options(self, seed: int, held_out: Any, train: Any, **more: Any) -> dict[str, Any]:
        """Return keyword arguments of a training, which stops early by the rows that are held out,
        if any.
        """
        params, rounds, stop = self.planned
        # The margins of training rows are at hand where each round adds one tree.
        shown = [(train, TRAIN)] if train and params["num_parallel_tree"] == 1 else []
        return {
            "params": {**params, "seed": seed, **more},
            "num_boost_round": rounds,
            # The last one decides on early stopping.
            "evals": [*shown, (held_out, "validation")] if held_out else [],
            "early_stopping_rounds": stop if held_out else None,
            "verbose_eval": False,
            "callbacks": [RecordTraining()],
        }

    def fitted(
        self,
        booster: xgboost.Booster,
        history: Mapping[str, Mapping[str, Sequence[float]]],
        features: Sequence[str],
    ) -> Fitted:
        """Keep the best rounds, and say on which device they were trained.

        C010 when XGBoost fell back to another device than the session's.
        """
        used = booster.attr(DEVICE) or "unknown"
        if used.partition(":")[0] != self.device:
            what = f"XGBoost computed on {used} and not on {self.device}"
            raise TipcastError(
                "C010", "backend", what, "run where XGBoost finds a GPU, or use backend=cpu"
            )

        trained = booster.num_boosted_rounds()
        info: dict[str, str | float] = {"device": used, "rounds": trained}
        if booster.attr("best_iteration") is not None:
            info["best_iteration"] = booster.best_iteration
            if booster.best_iteration + 1 < trained:
                booster = booster[: booster.best_iteration + 1]

        if self.categorical:
            booster.set_attr(**{native.MISSING: str(self.missing)})

        booster.feature_names = names = native.booster_names(list(features))
        gain: dict[str, Any] = booster.get_score(importance_type="gain")
        return Fitted(
            scorer=native.XGBoostScorer(bytes(booster.save_raw("ubj")), device=self.device),
            history=_history(history),
            importance=base.shares(features, [gain.get(name, 0.0) for name in names]),
            importance_kind="gain",
            info=info,
            format="xgboost-ubj",
            content=attrgetter("content"),
        )


def _history(
    evaluated: Mapping[str, Mapping[str, Sequence[float]]],
) -> dict[str, dict[int, float]]:
    """Return rows and metric -> round -> value; training rows are evaluated now and then."""
    history = {}
    for rows, metrics in evaluated.items():
        step = EVERY if rows == TRAIN else 1
        for metric, values in metrics.items():
            history[f"{rows}_{metric}"] = {at * step: value for at, value in enumerate(values)}
    return history


def _loopback(client: "Client") -> str | None:
    """Return the address for XGBoost's tracker of a local cluster; None: XGBoost chooses one that
    workers reach.
    """
    if dask.config.get("xgboost.scheduler_address", None):
        return None
    scheduler: Any = client.scheduler
    addresses = [scheduler.address, *client.nthreads()]
    if all(urlsplit(address).hostname == LOOPBACK for address in addresses):
        return LOOPBACK
    return None


class _TrainingThread(WorkerPlugin):
    """Gives a worker a thread that trains together with others, on which XGBoost does not print
    each worker's rank.

    No verbosity keeps that line from the terminal. XGBoost's C interface registers who hears of its
    messages, for one thread; ``xgboost.dask`` announces the ranks before anything of ours runs on
    the thread that it is given.
    """

    name = EXECUTOR
    idempotent = True

    def setup(self, worker: Any) -> None:
        """Start the thread."""
        # XGBoost warns where a worker has no rows.
        logging.getLogger("[xgboost.dask]").setLevel(logging.ERROR)
        if EXECUTOR not in worker.executors:
            hear = ctypes.CDLL(xgboost.libpath.find_lib_path()[0]).XGBRegisterLogCallback
            worker.executors[EXECUTOR] = ThreadPoolExecutor(
                1, EXECUTOR, initializer=hear, initargs=(_MESSAGE,)
            )


def _message(message: bytes) -> None:
    """Write what XGBoost says, but for the ranks."""
    if b" got rank " not in message:
        sys.stderr.write(message.decode(errors="replace") + "\n")


_MESSAGE = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_message)  # XGBoost keeps its address


def _matrix(x: Any, y: Any, threads: int, options: Mapping[str, Any]) -> xgboost.QuantileDMatrix:
    """Bin a frame, or parts one by one, so that they are never joined."""
    # XGBoost wants them with each part
    of_features = {name: options.get(name) for name in ("feature_names", "feature_types")}
    of_matrix = {name: value for name, value in options.items() if name not in of_features}
    pairs = zip(base.parts(x), base.parts(y), strict=True)
    batches = [{"data": part, "label": target, **of_features} for part, target in pairs]
    return xgboost.QuantileDMatrix(_Batches(batches), nthread=threads, **of_matrix)


class _Batches(xgboost.DataIter):
    """Passes batches to a matrix one by one, as often as it asks."""

    def __init__(self, batches: Sequence[Mapping[str, Any]]) -> None:
        self._batches = batches
        self.reset()
        super().__init__()

    def next(self, input_data: Any) -> bool:
        batch = next(self._left, None)
        if batch:
            input_data(**batch)
        return batch is not None

    def reset(self) -> None:
        self._left = iter(self._batches)
