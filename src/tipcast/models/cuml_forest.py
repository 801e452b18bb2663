"""cuML's random forest over all GPU workers and inside one process, under scikit-learn's parameter names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from tipcast.compute import cuml_models
from tipcast.config.errors import TipcastError
from tipcast.models import native
from tipcast.models.base import Collection, Estimator, Fitted, Parts, Progress, columns, parts, shares
from tipcast.models.fit import watched, worker_lock, workers_of
from tipcast.models.parameters import check_names, positive_int

VALID = (
    "n_estimators",
    "max_depth",
    "min_samples_leaf",
    "min_samples_split",
    "min_impurity_decrease",
    "max_features",
    "max_leaf_nodes",
    "max_samples",
    "bootstrap",
    "criterion",
    "n_bins",
    "max_batch_size",
)
"""All but the last two are scikit-learn's."""
HINTS = {
    "random_state": "seed=...",
    "n_jobs": "nothing: a GPU grows the trees",
    "n_streams": "nothing: cuML 26.12 drops it",
    "verbose": "nothing: cuML does not tell",
    "warm_start": "nothing: a run grows its trees once",
    "oob_score": "task.validation",
    "class_weight": "backend=cpu: cuML weighs no classes over several GPUs",
    "split_criterion": "model.params.criterion",
    "max_leaves": "model.params.max_leaf_nodes",
}
CRITERIA = (
    {"gini": "gini", "entropy": "entropy", "log_loss": "entropy"},
    {"squared_error": "mse", "poisson": "poisson"},
)
"""Of classes and of values: scikit-learn's name -> cuML's; the first is taken where none is named."""


@dataclass(frozen=True)
class _CumlForest(Estimator):
    def check(self) -> None:
        """Refuse parameters that cuML would."""
        settings(self.params, self.training, self.kind)

    @property
    def library(self) -> str:
        """Name of cuML's class."""
        return "RandomForestRegressor" if self.kind == "regression" else "RandomForestClassifier"


@final
@dataclass(frozen=True)
class DistributedCumlForest(_CumlForest):
    """One forest grown from the rows of all workers, each tree by all of them together: ``cuml.dask``'s."""

    def fit(
        self,
        client: Any,
        x: Collection,
        y: Collection,
        validation: tuple[Collection, Collection] | None,
        seed: int,
        progress: Progress | None = None,
    ) -> Fitted:
        """Grow the trees.

        Parameters
        ----------
        client
            ``distributed.Client`` whose workers hold the rows.
        x, y
            dask-cuDF DataFrame of (n, features) float32 and Series of (n,) targets.
        validation
            Not used: a forest has no rounds to choose from.
        seed
            Of the whole forest.
        progress
            Not called: cuML does not tell.

        Raises
        ------
        TipcastError
            K003 when a worker was lost.

        """
        params, features = settings(self.params, self.training, self.kind), columns(x)
        workers = workers_of(client, x)
        with worker_lock(client, workers):
            grown = watched(
                client, workers, lambda: cuml_models.grow_together(self.library, client, workers, x, y, params, seed)
            )
        return _fitted(grown, features, self.device, len(workers))


@final
@dataclass(frozen=True)
class LocalCumlForest(_CumlForest):
    """One forest grown inside one process, several trees at once."""

    def fit(self, x: Parts, y: Parts, validation: tuple[Parts, Parts] | None, seed: int, threads: int = 1) -> Fitted:
        """Grow the trees from frames in device memory."""
        params = settings(self.params, self.training, self.kind)
        return _fitted(cuml_models.grow(self.library, parts(x), parts(y), params, seed), columns(x), self.device, 1)


def settings(params: Mapping[str, Any], training: Mapping[str, Any], kind: str = "classification") -> dict[str, Any]:
    """Translate a model's ``params``.

    Raises
    ------
    TipcastError
        C001 unknown name, C003 a value that cuML refuses, or takes for something else.

    """
    check_names("params", list(params), VALID, HINTS)
    check_names("fit", list(training), (), {})
    given = {name: value for name, value in params.items() if value is not None}
    criteria = CRITERIA[kind == "regression"]
    found: dict[str, Any] = {
        "n_estimators": positive_int("model.params.n_estimators", given.pop("n_estimators", 100)),
        "max_depth": None if params.get("max_depth") is None else _whole("max_depth", given.pop("max_depth"), 1),
        "split_criterion": _chosen("criterion", given.pop("criterion", next(iter(criteria))), criteria),
        "max_features": _features(params.get("max_features", "sqrt")),
        "bootstrap": _boolean("bootstrap", given.pop("bootstrap", True)),
        "max_samples": _share("max_samples", given.pop("max_samples", 1.0)),
        "max_leaves": _whole("max_leaf_nodes", given.pop("max_leaf_nodes"), 2) if "max_leaf_nodes" in given else -1,
    }
    given.pop("max_features", None)
    for name, least in (("min_samples_leaf", 1), ("min_samples_split", 2)):
        if name in given:
            value = given.pop(name)
            found[name] = _share(name, value) if isinstance(value, float) else _whole(name, value, least)
    for name, least in (("n_bins", 2), ("max_batch_size", 1)):
        if name in given:
            found[name] = _whole(name, given.pop(name), least)
    if "min_impurity_decrease" in given:
        value = given.pop("min_impurity_decrease")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise _refused("min_impurity_decrease", value, "a number of 0 or more")
        found["min_impurity_decrease"] = float(value)
    return found


def _features(value: Any) -> Any:
    if value is None or value in ("sqrt", "log2"):
        return value
    if isinstance(value, str):
        raise _refused("max_features", value, "sqrt, log2, a share or a number of features")
    return _share("max_features", value) if isinstance(value, float) else _whole("max_features", value, 1)


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _refused(name, value, f"a whole number of at least {least}")
    return value


def _share(name: str, value: Any) -> float:
    if not isinstance(value, float) or not 0 < value <= 1:
        raise _refused(name, value, "a share of the rows above 0 and at most 1.0")
    return value


def _chosen(name: str, value: Any, choices: Mapping[str, str]) -> str:
    if value not in choices:
        raise _refused(name, value, f"one of {', '.join(choices)}")
    return choices[value]


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _refused(name, value, "true or false")
    return value


def _refused(name: str, value: Any, wanted: str) -> TipcastError:
    return TipcastError(
        "C003", f"model.params.{name}", f"{value!r} is not what cuML's forest takes", f"set it to {wanted}"
    )


def _fitted(grown: cuml_models.Grown, features: Sequence[str], device: str, workers: int) -> Fitted:
    """Make sure that it was grown on the device, and say so.

    Raises
    ------
    TipcastError
        C010 otherwise.

    """
    if grown.device.partition(":")[0] != device:
        raise TipcastError(
            "C010", "backend", f"cuML computed on {grown.device} and not on {device}", "run where cuML finds a GPU"
        )
    importance = np.maximum(np.nan_to_num(grown.importance), 0)
    return Fitted(
        scorer=native.NvForestScorer(grown.checkpoint),
        history={},
        importance=shares(features, importance),
        importance_kind="decrease of impurity",
        info={"device": grown.device, "workers": workers},
        model=grown.checkpoint,
        format="treelite",
        write=_write,
    )


def _write(checkpoint: bytes, path: Path) -> None:
    path.write_bytes(checkpoint)
