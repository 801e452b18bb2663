"""XGBoost over all workers and inside one process: boosted trees, and a random forest as one round
of many trees.
"""

import logging
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, final

import numpy as np
import xgboost
from dask.base import annotate
from xgboost import collective
from xgboost.callback import TrainingCallback

from tipcast.config.errors import TipcastError
from tipcast.models import base, native
from tipcast.models.base import Estimator, Fitted, Progress, Split
from tipcast.models.checkpoints import (
    VALIDATION,
    Checkpoint,
    EvaluationLog,
    KeepCheckpoints,
    joined_logs,
    newest,
    resumes_exactly,
    stopping_after,
)
from tipcast.models.fit import parts_of, watched, worker_lock, workers_of
from tipcast.models.xgboost_matrix import binned
from tipcast.models.xgboost_params import ABOVE_ZERO, HINTS, PARAMS, parameter_error
from tipcast.models.xgboost_workers import (
    DEVICE,
    EXECUTOR,
    TRAIN,
    RecordTraining,
    TrainingThread,
    busy_threads,
    history_of,
    tracker_host,
)
from tipcast.tasks.kinds import Boosting

if TYPE_CHECKING:
    from distributed import Client

LOG = logging.getLogger("tipcast")

Matrices = tuple[xgboost.QuantileDMatrix, xgboost.QuantileDMatrix | None, list[str]]
"""Binned rows to train on, binned rows that decide when to stop, and the names of features."""


@dataclass(frozen=True)
class Training:
    """A training in XGBoost's terms."""

    params: Mapping[str, Any]
    """Parameters by XGBoost's own names."""
    rounds: int
    early_stopping_rounds: int | None
    """Rounds without improvement that end the training; None to run all rounds."""


@final
@dataclass(frozen=True)
class XGBoost(Estimator):
    """One booster, trained inside one process or by all workers together, by ``xgboost.dask``."""

    checkpoint: Checkpoint | None = None
    """What the training goes on from; None to begin it."""
    keep_in: str = ""
    """Variable of Dask's scheduler in which checkpoints are kept; empty to keep none."""

    @property
    def checkpoint_s(self) -> float | None:
        """Least seconds between two checkpoints of a training; None to keep none."""
        seconds: float | None = self.fit_settings.get("checkpoint_s")
        return seconds

    def newest_checkpoint(self, contents: Iterable[bytes]) -> bytes:
        """Return the checkpoint of the most rounds; empty if none is whole."""
        return newest(contents)

    def resuming(self, checkpoint: bytes, keep_in: str) -> "XGBoost":
        """Return the estimator that goes on from a checkpoint; a damaged one is as good as none."""
        if self.checkpoint_s is None:
            return self

        whole = Checkpoint.from_bytes(checkpoint)
        if whole:
            LOG.info("fit      continues after round %d", whole.rounds)
            if not resumes_exactly(self.params):
                LOG.warning("XGBoost %s samples other rows after a checkpoint", xgboost.__version__)
        return replace(self, checkpoint=whole, keep_in=keep_in)

    def after_folds(self, infos: Sequence[Mapping[str, str | float]]) -> "XGBoost":
        """Return the training of as many rounds as the folds agree on: the median of their best
        numbers, if they stop early.
        """
        training = self.to_xgboost()
        best = [info["best_iteration"] for info in infos if "best_iteration" in info]
        if training.early_stopping_rounds is None or not best:
            return self

        rounds = 1 + round(statistics.median(map(float, best)))
        trees = rounds * training.params["num_parallel_tree"]
        return replace(
            self,
            params={**self.params, "n_estimators": trees},
            fit_settings={
                **self.fit_settings,
                "num_boost_round": rounds,
                "early_stopping_rounds": None,
            },
        )

    def stuck_workers(self, client: "Client") -> list[str]:
        """Return the workers whose training thread still waits for a worker that is lost."""
        return busy_threads(client)

    @property
    def takes_categories(self) -> bool:
        """Yes, as sets."""
        return True

    @property
    def takes_missing(self) -> bool:
        """Yes: each split learns the side of missing values."""
        return True

    @property
    def takes_weights(self) -> bool:
        """Yes: they scale the gradients of rows, and the metric of validation rows."""
        return True

    def to_xgboost(self) -> Training:
        """Return the training in XGBoost's terms.

        ``n_estimators`` counts trees, which are spread over ``num_boost_round`` rounds; null means
        one tree a round. A parameter that is null is left to XGBoost. Raises C001 for an unknown
        name, C003 for an impossible value.
        """
        base.check_names("params", self.params, PARAMS, HINTS)
        settings = {"num_boost_round", "early_stopping_rounds", "checkpoint_s"}
        base.check_names("fit", self.fit_settings, settings, base.below_params(PARAMS))

        params = self._set_params()
        boosting = self._boosting()
        self._check_metrics(params.setdefault("eval_metric", boosting.metric), boosting)

        trees = base.positive("model.params.n_estimators", params.pop("n_estimators", 100))
        rounds = self._rounds(trees)
        early_stopping_rounds = self.fit_settings.get("early_stopping_rounds")
        if early_stopping_rounds is not None:
            base.positive("model.fit.early_stopping_rounds", early_stopping_rounds)
        if self.checkpoint_s is not None:
            base.positive("model.fit.checkpoint_s", self.checkpoint_s, whole=False)

        params = {
            "objective": boosting.objective,
            "device": self.device,
            "num_parallel_tree": trees // rounds,
            **params,
        }
        if self.kind.column_per_class:
            params["num_class"] = self.classes or 2
        return Training(params, rounds, early_stopping_rounds)

    def _set_params(self) -> dict[str, Any]:
        """Return the parameters that are not null; C003 for a 0 at which nothing is learned."""
        params = {name: value for name, value in self.params.items() if value is not None}
        if params.get("tree_method") == "gpu_hist":
            params["tree_method"] = "hist"

        for name in ABOVE_ZERO:
            if name in params:
                base.positive(f"model.params.{name}", params[name], whole=False)
        return params

    def _boosting(self) -> Boosting:
        """Return how XGBoost learns the kind of task; C003 if it cannot."""
        boosting = self.kind.boosting
        if boosting is None:
            what = f"XGBoost has no objective for {self.kind}"
            raise TipcastError("C003", "task.kind", what, "choose another model")
        return boosting

    def _check_metrics(self, metrics: str | list[str], boosting: Boosting) -> None:
        """Refuse (C003) a metric that means nothing for the kind of task."""
        if isinstance(metrics, str):
            metrics = [metrics]

        for metric in metrics:
            if not boosting.metrics.fullmatch(str(metric)):
                what = f"{metric} is not a metric for {self.kind}"
                fix = f"use {boosting.metric}, or null for it"
                raise TipcastError("C003", "model.params.eval_metric", what, fix)

    def _rounds(self, trees: int) -> int:
        """Return the number of rounds that trees are spread over; C003 if it does not divide
        them.
        """
        configured = self.fit_settings.get("num_boost_round") or trees
        rounds: int = base.positive("model.fit.num_boost_round", configured)
        if trees % rounds:
            what = f"{trees} trees cannot be divided evenly over {rounds} rounds"
            fix = "set it to null or to a divisor of model.params.n_estimators"
            raise TipcastError("C003", "model.fit.num_boost_round", what, fix)
        return rounds

    @property
    def bins(self) -> Any:
        """Most bins of a feature; XGBoost's default is 256."""
        bins = self.params.get("max_bin")
        if bins is None:
            return 256
        return bins

    def check(self) -> None:
        """Refuse parameters that XGBoost would: it checks the values in one round on eight rows."""
        params = self.to_xgboost().params
        if self.params.get("tree_method") == "gpu_hist":
            backend = {"cuda": "gpu"}.get(self.device, self.device)
            message = "tree_method=gpu_hist is now hist: backend=%s decides the device"
            LOG.warning(message, backend)

        x = np.arange(16, dtype=np.float32).reshape(8, 2)
        settings = {**params, "device": "cpu", "num_parallel_tree": 1, "verbosity": 0}
        try:
            rows = xgboost.QuantileDMatrix(x, np.array([0, 1] * 4), max_bin=self.bins)
            xgboost.train(settings, rows, 1, evals=[(rows, "validation")], verbose_eval=False)
        except (xgboost.core.XGBoostError, ValueError, TypeError) as problem:
            raise parameter_error(params, str(problem)) from problem

    @property
    def sharing(self) -> Hashable:
        """What binned rows depend on."""
        return self.bins, self.categorical

    def prepared(self, rows: Split, threads: int) -> Matrices:
        """Bin rows, once for all fits that share them."""
        features = base.columns(rows.x)
        options = self._matrix_options(features)
        # Dask sets OpenMP to one thread, and nthread alone does not change that.
        with xgboost.config_context(nthread=threads):
            train = binned(rows, threads, options)
            if rows.validation is None:
                return train, None, features

            return train, binned(rows.validation, threads, {**options, "ref": train}), features

    def fit(self, rows: Split | Matrices, seed: int, threads: int = 1) -> Fitted:
        """Train; with validation rows stop early and keep the best rounds.

        Fits in several threads may share the rows.
        """
        evaluated: xgboost.QuantileDMatrix | None = None  # a trial's curve of these is not kept
        if isinstance(rows, Split):
            train, held_out, features = self.prepared(rows, threads)
            evaluated = train
        else:
            train, held_out, features = rows

        booster, log = self._train(train, held_out, evaluated, seed, threads)
        return self.fitted(booster, log, features)

    @property
    def continues(self) -> bool:
        """Yes, unless one round has several trees."""
        return self.fit_settings.get("num_boost_round") is None

    def continue_fit(self, rows: Matrices, seed: int, earlier: Checkpoint | None) -> Fitted:
        """Train for the rounds that are missing, and not at all if the earlier fit stopped early;
        the state is a checkpoint.

        An XGBoost that would draw other rows or columns after a checkpoint begins again.
        """
        if not resumes_exactly(self.params):
            earlier = None
        train, held_out, features = rows
        going_on = replace(self, checkpoint=earlier)
        booster, log = going_on._train(train, held_out, None, seed, threads=1)

        state = Checkpoint.of(booster, log)
        grown = state.rounds
        if earlier is not None:
            grown -= earlier.rounds
        fitted = self.fitted(booster, log, features)
        return replace(fitted, info={**fitted.info, "grown_trees": grown}, state=state)

    def _train(
        self, train: Any, held_out: Any, evaluated: Any, seed: int, threads: int
    ) -> tuple[xgboost.Booster, EvaluationLog]:
        """Train in this process, on from the checkpoint, if any; return the metrics of all rounds
        too.
        """
        log: dict[str, dict[str, list[float]]] = {}
        with xgboost.config_context(nthread=threads):
            options = self._options(seed, evaluated, held_out, nthread=threads)
            booster = xgboost.train(dtrain=train, evals_result=log, **options)
        return booster, joined_logs(self._earlier_log, log)

    def fit_distributed(
        self, client: "Client", rows: Split, seed: int, progress: Progress = None
    ) -> Fitted:
        """Train as ``fit`` does, each worker on the rows that it holds. XGBoost does not tell its
        progress.
        """
        from xgboost import dask as dxgb  # imports Dask's DataFrame, which takes half a second

        splits = filter(None, (rows, rows.validation))
        parts = [part for split in splits for part in parts_of(client, split.x)]
        workers = workers_of(client, parts)
        features = base.columns(rows.x)
        options = self._matrix_options(features)

        def train() -> Any:
            with xgboost.config_context(verbosity=0):  # it would warn of workers without rows
                client.register_plugin(TrainingThread())
                matrix = dxgb.DaskQuantileDMatrix(
                    client, rows.x, rows.y, weight=rows.weight, **options
                )
                held_out = None
                if rows.validation:
                    x, y, weight = rows.validation.x, rows.validation.y, rows.validation.weight
                    held_out = dxgb.DaskQuantileDMatrix(
                        client, x, y, weight=weight, ref=matrix, **options
                    )
                with annotate(executor=EXECUTOR):
                    tracker = collective.Config(tracker_host_ip=tracker_host(client))
                    return dxgb.train(
                        client,
                        dtrain=matrix,
                        coll_cfg=tracker,
                        **self._options(seed, matrix, held_out),
                    )

        with worker_lock(client, workers):
            trained = watched(client, workers, train)
        log = joined_logs(self._earlier_log, trained["history"])
        return self.fitted(trained["booster"], log, features)

    @property
    def _earlier_log(self) -> EvaluationLog:
        """Metrics of the rounds before the checkpoint that the training goes on from."""
        if self.checkpoint is None:
            return {}
        return self.checkpoint.log

    def _matrix_options(self, features: Sequence[str]) -> dict[str, Any]:
        """Return keyword arguments of a QuantileDMatrix.

        NaN is a missing value. The value that the dataset fills in is an ordinary value, the
        lowest: the matrix stays dense, and so small and fast. Categories must not be negative, so
        with categories the fill value counts as missing too.
        """
        options: dict[str, Any] = {
            "max_bin": self.bins,
            "feature_names": native.booster_names(list(features)),
        }
        if self.categorical:
            types = ["c" if name in self.categorical else "q" for name in features]
            options |= {"feature_types": types, "enable_categorical": True, "missing": self.missing}

        return options

    def _options(self, seed: int, train: Any, held_out: Any, **params: Any) -> dict[str, Any]:
        """Return keyword arguments of a training.

        It stops early by the rows that are held out, if any, and also evaluates the rows of
        ``train``, if any.
        """
        training = self.to_xgboost()
        rounds = training.rounds
        callbacks: list[TrainingCallback] = [RecordTraining()]
        evals = []
        booster = None
        if self.checkpoint:
            booster = self.checkpoint.booster()
            rounds -= self.checkpoint.rounds

        if held_out:
            evals.append((held_out, VALIDATION))
            # If each round adds one tree, the margins of training rows are at hand.
            if train and training.params["num_parallel_tree"] == 1:
                evals.insert(0, (train, TRAIN))
            if training.early_stopping_rounds is not None:
                stopping = stopping_after(training.early_stopping_rounds, self.checkpoint)
                callbacks.append(stopping)
                if stopping.current_rounds >= stopping.rounds:  # the checkpoint is of its end
                    rounds = 0

        # After early stopping, so that no training that has ended is kept.
        if self.keep_in and self.checkpoint_s is not None:
            keeping = KeepCheckpoints(self.keep_in, self.checkpoint_s, self._earlier_log)
            callbacks.append(keeping)

        return {
            "params": {**training.params, "seed": seed, **params},
            "num_boost_round": rounds,
            "evals": evals,
            "verbose_eval": False,
            "callbacks": callbacks,
            "xgb_model": booster,
        }

    def fitted(
        self,
        booster: xgboost.Booster,
        log: EvaluationLog,
        features: Sequence[str],
    ) -> Fitted:
        """Keep the best rounds, and say on which device they were trained.

        Raises C010 if XGBoost fell back to another device than the session's.
        """
        used = booster.attr(DEVICE) or "unknown"
        if used.partition(":")[0] != self.device:
            what = f"XGBoost ran on {used}, not on {self.device}"
            fix = "run where XGBoost finds a GPU, or use backend=cpu"
            raise TipcastError("C010", "backend", what, fix)

        trained = booster.num_boosted_rounds()
        info: dict[str, str | float] = {"device": used, "rounds": trained}
        if booster.attr("best_iteration") is not None:
            info["best_iteration"] = booster.best_iteration
            if booster.best_iteration + 1 < trained:
                booster = booster[: booster.best_iteration + 1]

        if self.categorical:
            booster.set_attr(**{native.MISSING_ATTRIBUTE: str(self.missing)})

        names = native.booster_names(list(features))
        booster.feature_names = names
        gain: dict[str, Any] = booster.get_score(importance_type="gain")
        return Fitted(
            scorer=native.XGBoostScorer(bytes(booster.save_raw("ubj")), device=self.device),
            history=history_of(log),
            importance=base.shares(features, [gain.get(name, 0.0) for name in names]),
            importance_kind="gain",
            info=info,
            format="xgboost-ubj",
            content=attrgetter("content"),
        )
