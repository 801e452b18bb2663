"""cuML's random forest, over all GPU workers or inside one process, with scikit-learn's parameter names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, final

import numpy as np

from tipcast.config.errors import TipcastError
from tipcast.models import native
from tipcast.models.base import Estimator, Fitted, Progress, Split, check_names, columns, judge, shares, stacked
from tipcast.models.fit import parts_of, watched, worker_lock, workers_of
from tipcast.models.forest import RESERVED, unfitted

OWN = {"n_bins": 2, "max_batch_size": 1}
"""Parameters that scikit-learn lacks -> least value."""
NAMES = {"criterion": "split_criterion", "max_leaf_nodes": "max_leaves"}
"""scikit-learn's name -> cuML's, where they differ."""
VALID = (
    "n_estimators", "max_depth", "min_samples_leaf", "min_samples_split", "min_impurity_decrease", "max_features",
    "max_leaf_nodes", "max_samples", "bootstrap", "criterion", *OWN,
)  # fmt: skip
HINTS = {**RESERVED, "class_weight": "backend=cpu: cuML weighs no classes over several GPUs"}
CRITERIA = {
    "classification": {"gini": "gini", "entropy": "entropy", "log_loss": "entropy"},
    "multiclass": {"gini": "gini", "entropy": "entropy", "log_loss": "entropy"},
    "regression": {"squared_error": "mse", "poisson": "poisson"},
}
"""Kind -> scikit-learn's name -> cuML's; the first is taken where none is named."""


@final
@dataclass(frozen=True)
class CumlForest(Estimator):
    """One forest, without early stopping; cuML reports no progress."""

    def check(self) -> None:
        """Refuse parameters that cuML would."""
        settings(self.params, self.training, self.kind)

    def fit(self, rows: Split, seed: int, threads: int = 1) -> Fitted:
        """Grow the trees from frames in device memory, several at once."""
        import cuml.ensemble

        model = self._make(cuml.ensemble, random_state=seed)
        return _fitted(model.fit(*stacked(rows.x, rows.y)), columns(rows.x), 1)

    def fit_distributed(self, client: Any, rows: Split, seed: int, progress: Progress = None) -> Fitted:
        """Grow each tree by all workers together, from the rows of all."""
        import cuml.dask.ensemble

        workers = workers_of(client, parts_of(client, rows.x))

        def grow() -> Any:
            model = self._make(cuml.dask.ensemble, client=client, workers=workers, random_state=seed)
            return model.fit(rows.x, rows.y).get_combined_model()

        with worker_lock(client, workers):
            model = watched(client, workers, grow)
        return _fitted(model, columns(rows.x), len(workers))

    def _make(self, module: ModuleType, **more: Any) -> Any:
        name = "RandomForestRegressor" if self.kind == "regression" else "RandomForestClassifier"
        return getattr(module, name)(**settings(self.params, self.training, self.kind), **more)


def _fitted(model: Any, features: Sequence[str], workers: int) -> Fitted:
    import cupy

    checkpoint = model.as_treelite().serialize_bytes()
    importance = cupy.asnumpy(cupy.asarray(model.feature_importances_))
    return Fitted(
        scorer=native.NvForestScorer(checkpoint, device="cuda"),
        importance=shares(features, np.maximum(np.nan_to_num(importance), 0)),
        importance_kind="decrease of impurity",
        info={"device": f"cuda:{cupy.cuda.Device().id}", "workers": workers},
        model=checkpoint,
        format="treelite",
        content=bytes,
    )


def settings(params: Mapping[str, Any], training: Mapping[str, Any], kind: str = "classification") -> dict[str, Any]:
    """Translate a model's ``params``, whose values scikit-learn's forest validates.

    C001 unknown name, C003 a value that cuML refuses, or takes for something else.
    """
    check_names("params", list(params), VALID, HINTS)
    check_names("fit", list(training), (), {})
    given = {name: value for name, value in params.items() if value is not None}
    criteria = CRITERIA[kind]
    for name, value in given.items():
        if name in OWN and (not isinstance(value, int) or value < OWN[name]):
            wanted = f"a whole number of at least {OWN[name]}"
        elif name == "max_samples" and not (isinstance(value, float) and 0 < value <= 1):
            wanted = "a share of the rows above 0 and at most 1.0"
        elif name == "criterion" and value not in criteria:
            wanted = f"one of {', '.join(criteria)}"
        elif isinstance(value, bool) and name != "bootstrap":
            wanted = "a number"
        else:
            continue
        what = f"must be {wanted} for cuML's forest, got {value!r}"
        raise TipcastError("C003", f"model.params.{name}", what, "change it, or use backend=cpu")
    theirs = {name: value for name, value in given.items() if name not in (*OWN, "max_samples")}
    judge(partial(unfitted, kind, theirs), theirs, kind)
    translated = {
        "n_estimators": 100,
        "max_depth": None,
        "bootstrap": True,
        "max_samples": 1.0,
        "max_leaf_nodes": -1,
        **given,
        "max_features": params.get("max_features", "sqrt"),
        "criterion": criteria[given.get("criterion", next(iter(criteria)))],
    }
    return {NAMES.get(name, name): value for name, value in translated.items()}
