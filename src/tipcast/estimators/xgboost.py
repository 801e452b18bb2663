"""XGBoost over all workers and inside one process: boosted trees, and a random forest as one round of many trees."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import xgboost

from tipcast.backends.base import Frame
from tipcast.config.errors import TipcastError
from tipcast.estimators import native, xgboost_shared
from tipcast.estimators.base import Fitted, Future, History, Progress, columns, shares
from tipcast.estimators.placement import by_worker
from tipcast.estimators.sharing import Grown, Split
from tipcast.estimators.xgboost_plan import MISSING, Plan, plan, try_out
from tipcast.estimators.xgboost_rounds import DEVICE, alone, boost, threaded, together


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
        try_out(plan(self.params, self.training, self.device, self.categorical, tell=True))

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
        features: list[str] = client.submit(columns, x[0], pure=False).result()
        both = (x, y) if validation is None else (x, y, *validation)
        held = [by_worker(client, rows) for rows in both[::2]]  # labels lie where their features do
        workers = set().union(*held)
        if len(workers) == 1:
            booster, history = alone(client, workers.pop(), planned, features, both, seed)
        else:
            booster, history = together(client, held, planned, features, both, seed)
        return fitted(planned, booster, history, features)


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
        try_out(plan(self.params, self.training, self.device, self.categorical, tell=True))

    def fit(self, x: Frame, y: Frame, validation: tuple[Frame, Frame] | None, seed: int, threads: int = 1) -> Fitted:
        """Train on frames in memory; with validation rows stop early and keep the best rounds."""
        planned = self._plan()
        features = columns(x)
        options = planned.matrix(features)
        with threaded(threads):
            rows = xgboost.QuantileDMatrix(x, y, nthread=threads, **options)
            held_out = (
                xgboost.QuantileDMatrix(*validation, ref=rows, nthread=threads, **options) if validation else None
            )
        return train(planned, rows, held_out, seed, threads)

    @property
    def sharing(self) -> Hashable:
        """What binned rows depend on."""
        return self._plan().max_bin, self.categorical

    @property
    def trees(self) -> int | None:
        """Rounds of one tree; None for a forest, whose one round has them all."""
        planned = self._plan()
        return planned.rounds if planned.params["num_parallel_tree"] == 1 else None

    def prepared(self, rows: Split, threads: int) -> xgboost_shared.Matrices:
        """Bin rows, once for all fits that share them."""
        return xgboost_shared.matrices(self._plan(), rows, threads)

    def fit_prepared(self, prepared: xgboost_shared.Matrices, seed: int, threads: int = 1) -> Fitted:
        """Train on shared matrices."""
        return train(self._plan(), prepared.rows, prepared.held_out, seed, threads)

    def cut(self, prepared: xgboost_shared.Matrices, sizes: Sequence[int], seed: int, threads: int = 1) -> list[Fitted]:
        """Train the most rounds once and cut the booster for each size."""
        planned = dataclasses.replace(self._plan(), rounds=max(sizes))
        booster, history = boost(planned, prepared.rows, prepared.held_out, seed, threads)
        return xgboost_shared.cut(planned, booster, history, list(prepared.rows.feature_names or []), sizes, fitted)

    def grow(self, prepared: xgboost_shared.Matrices, trees: int, state: Any, seed: int, threads: int = 1) -> Grown:
        """Train on to so many rounds."""
        return xgboost_shared.grow(self._plan(), prepared, trees, state, seed, threads, fitted)

    def _plan(self) -> Plan:
        return plan(self.params, self.training, self.device, self.categorical)


def train(
    planned: Plan, rows: xgboost.QuantileDMatrix, held_out: xgboost.QuantileDMatrix | None, seed: int, threads: int = 1
) -> Fitted:
    """Train on matrices that may be shared with other trainings of the same ``max_bin``."""
    booster, history = boost(planned, rows, held_out, seed, threads)
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


def _write(booster: Any, path: Path) -> None:
    path.write_bytes(booster.save_raw("ubj"))  # the library itself does not notice a full disk at a file's end
