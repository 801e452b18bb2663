"""XGBoost over all workers and inside one process: boosted trees, and a random forest as one round of many trees."""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import sys
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import xgboost
from dask.base import annotate
from distributed import WorkerPlugin

from tipcast.compute.base import Frame
from tipcast.config.errors import TipcastError
from tipcast.models import native, xgboost_shared
from tipcast.models.base import Collection, Estimator, Fitted, History, Parts, Progress, columns, parts, shares
from tipcast.models.fit import watched, worker_lock, workers_of
from tipcast.models.sharing import Grown, Split
from tipcast.models.xgboost_plan import MISSING, Plan, plan, try_out
from tipcast.models.xgboost_shared import DEVICE, RecordDevice, boost, threaded

EXECUTOR = "tipcast-xgboost"
"""Name of the thread of a worker that trains together with others."""


@dataclass(frozen=True)
class _XGBoost(Estimator):
    CATEGORIES: ClassVar[bool] = True
    """Whether ``task.categorical`` means anything to it."""

    def check(self) -> None:
        """Refuse parameters that XGBoost would."""
        try_out(self.plan(tell=True))

    def plan(self, classes: int = 0, tell: bool = False) -> Plan:
        """Return what is passed to XGBoost."""
        number = classes or self.classes
        return plan(self.params, self.training, self.device, self.categorical, self.kind, number, tell=tell)


@final
@dataclass(frozen=True)
class DistributedXGBoost(_XGBoost):
    """One booster trained by all workers together, each on the rows that it holds, by ``xgboost.dask``."""

    def fit(
        self,
        client: Any,
        x: Collection,
        y: Collection,
        validation: tuple[Collection, Collection] | None,
        seed: int,
        progress: Progress | None = None,
    ) -> Fitted:
        """Train; with validation rows stop early and keep the best rounds.

        Parameters
        ----------
        client
            ``distributed.Client`` whose workers hold the rows.
        x, y
            Dask DataFrame of (n, features) float32 and Series of (n,) targets.
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
        from xgboost import dask as dxgb  # imports Dask's DataFrame, which takes half a second

        workers = workers_of(client, x, *(validation or ())[:1])
        targets = [y, validation[1]] if validation else [y]
        classes = 0
        if self.kind == "multiclass":
            classes = self.classes or int(max(client.gather(client.compute([each.max() for each in targets])))) + 1
        planned, features = self.plan(classes), columns(x)

        def train() -> Any:
            options = planned.matrix(features)
            with xgboost.config_context(verbosity=0):  # where a worker has no rows it would warn
                client.register_plugin(_TrainingThread())
                rows = dxgb.DaskQuantileDMatrix(client, x, y, **options)
                held_out = dxgb.DaskQuantileDMatrix(client, *validation, ref=rows, **options) if validation else None
                with annotate(executor=EXECUTOR):
                    return dxgb.train(
                        client,
                        {**planned.params, "seed": seed},
                        rows,
                        planned.rounds,
                        evals=[(held_out, "validation")] if held_out else [],
                        early_stopping_rounds=planned.stop_after if held_out else None,
                        verbose_eval=False,
                        callbacks=[RecordDevice()],
                    )

        with worker_lock(client, workers):
            trained = watched(client, workers, train)
        return fitted(planned, trained["booster"], trained["history"], features)


class _TrainingThread(WorkerPlugin):
    """Gives a worker a thread that trains together with others, on which XGBoost does not print each worker's rank.

    No verbosity keeps that line from the terminal. XGBoost's C interface registers who hears of its messages, for one
    thread; ``xgboost.dask`` announces the ranks before anything of ours runs on the thread that it is given.
    """

    name = EXECUTOR
    idempotent = True

    def setup(self, worker: Any) -> None:
        """Start the thread."""
        logging.getLogger("[xgboost.dask]").setLevel(logging.ERROR)  # it warns where a worker has no rows
        if EXECUTOR not in worker.executors:
            worker.executors[EXECUTOR] = ThreadPoolExecutor(1, EXECUTOR, initializer=_hear)


def _message(message: bytes) -> None:
    """Write what XGBoost says, but for the ranks."""
    if b" got rank " not in message:
        sys.stderr.write(message.decode(errors="replace") + "\n")


_MESSAGE = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_message)  # XGBoost keeps its address


def _hear() -> None:
    ctypes.CDLL(xgboost.libpath.find_lib_path()[0]).XGBRegisterLogCallback(_MESSAGE)


@final
@dataclass(frozen=True)
class LocalXGBoost(_XGBoost):
    """One booster trained inside one process."""

    def fit(self, x: Parts, y: Parts, validation: tuple[Parts, Parts] | None, seed: int, threads: int = 1) -> Fitted:
        """Train on frames in memory; with validation rows stop early and keep the best rounds."""
        planned = self.plan(self.class_count(y, validation[1] if validation else None))
        features = columns(x)
        with threaded(threads):
            rows = _matrix(planned, features, x, y, threads)
            held_out = _matrix(planned, features, *validation, threads, ref=rows) if validation else None
        booster, history = boost(planned, rows, held_out, seed, threads)
        return fitted(planned, booster, history, features)

    @property
    def sharing(self) -> Hashable:
        """What binned rows depend on."""
        return self.plan().max_bin, self.categorical

    @property
    def trees(self) -> int | None:
        """Rounds of one tree; None for a forest, whose one round has them all."""
        planned = self.plan()
        return planned.rounds if planned.params["num_parallel_tree"] == 1 else None

    def prepared(self, rows: Split, threads: int) -> xgboost_shared.Matrices:
        """Bin rows, once for all fits that share them."""
        return xgboost_shared.matrices(self.plan(), rows, threads)

    def fit_prepared(self, prepared: xgboost_shared.Matrices, seed: int, threads: int = 1) -> Fitted:
        """Train on shared matrices."""
        planned = self._shared(prepared)
        booster, history = boost(planned, prepared.rows, prepared.held_out, seed, threads)
        return fitted(planned, booster, history, list(prepared.rows.feature_names or []))

    def cut(self, prepared: xgboost_shared.Matrices, sizes: Sequence[int], seed: int, threads: int = 1) -> list[Fitted]:
        """Train the most rounds once and cut the booster for each size."""
        planned = dataclasses.replace(self._shared(prepared), rounds=max(sizes))
        booster, history = boost(planned, prepared.rows, prepared.held_out, seed, threads)
        return xgboost_shared.cut(planned, booster, history, list(prepared.rows.feature_names or []), sizes, fitted)

    def grow(self, prepared: xgboost_shared.Matrices, trees: int, state: Any, seed: int, threads: int = 1) -> Grown:
        """Train on to so many rounds."""
        return xgboost_shared.grow(self._shared(prepared), prepared, trees, state, seed, threads, fitted)

    def _shared(self, prepared: xgboost_shared.Matrices) -> Plan:
        labels = [each.get_label() for each in (prepared.rows, prepared.held_out)]
        return self.plan(self.class_count(labels))


def _matrix(
    planned: Plan,
    features: Sequence[str],
    x: Parts,
    y: Parts,
    threads: int,
    ref: xgboost.QuantileDMatrix | None = None,
) -> xgboost.QuantileDMatrix:
    """Bin rows: a frame at once, parts one by one, so that they are never joined."""
    options = planned.matrix(features)
    if not isinstance(x, list):
        return xgboost.QuantileDMatrix(x, y, ref=ref, nthread=threads, **options)
    types = options.pop("feature_types", None)
    return xgboost.QuantileDMatrix(_Parts(x, parts(y), types), ref=ref, nthread=threads, **options)


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
        format="xgboost-ubj",
        write=_write,
    )


def _write(booster: Any, path: Path) -> None:
    path.write_bytes(booster.save_raw("ubj"))  # the library itself does not notice a full disk at a file's end
