"""A user's parameters as XGBoost's own: names and values checked, old spellings translated, rounds counted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xgboost

from tipcast.config.errors import TipcastError
from tipcast.models import native
from tipcast.models.base import check_names, positive

MISSING = -1.0
"""What features hold where a value is missing."""

LEARNING = frozenset({
    "base_score", "colsample_bylevel", "colsample_bynode", "colsample_bytree", "eval_metric", "gamma", "grow_policy",
    "learning_rate", "max_bin", "max_cat_threshold", "max_cat_to_onehot", "max_delta_step", "max_depth", "max_leaves",
    "min_child_weight", "reg_alpha", "reg_lambda", "sampling_method", "scale_pos_weight", "subsample", "tree_method",
    "verbosity",
})  # fmt: skip
"""Parameters that go to XGBoost as they are, by the names of its scikit-learn interface."""

PARAMS = LEARNING | {"n_estimators", "device"}
TRAINING = frozenset({"num_boost_round", "early_stopping_rounds"})

ABOVE_ZERO = ("learning_rate", "subsample", "colsample_bytree", "colsample_bylevel", "colsample_bynode")
"""At 0 nothing is learned, which XGBoost does not refuse."""

METRICS = {
    "classification": re.compile(r"(logloss|auc|aucpr|pre|error(@[\d.]+)?|rmse|mae)"),
    "multiclass": re.compile(r"(mlogloss|merror|auc)"),
    "regression": re.compile(r"(rmse|rmsle|mae|mape|mphe)"),
}
"""Kind -> evaluation metrics that mean something for it."""
OBJECTIVES = {
    "classification": ("binary:logistic", "logloss"),
    "multiclass": ("multi:softprob", "mlogloss"),
    "regression": ("reg:squarederror", "rmse"),
}
"""Kind -> objective, and the metric that stops early unless another is named."""
JUDGED = {"classification": "two classes", "multiclass": "several classes", "regression": "values"}

HINTS = {
    "eta": "model.params.learning_rate",
    "lambda": "model.params.reg_lambda",
    "alpha": "model.params.reg_alpha",
    "min_split_loss": "model.params.gamma",
    "num_boost_round": "model.params.n_estimators",
    "num_parallel_tree": "model=xgboost_forest and model.params.n_estimators",
    "early_stopping_rounds": "model.fit.early_stopping_rounds",
    "objective": "task=...: it implies the objective",
    "seed": "seed=...",
    "random_state": "seed=...",
    "nthread": "cluster.threads_per_worker",
    "n_jobs": "cluster.threads_per_worker",
    "missing": "nothing: features hold -1 where a value is missing",
}


@dataclass(frozen=True)
class Plan:
    """What one training passes to XGBoost."""

    params: Mapping[str, Any]
    rounds: int
    stop_after: int | None
    """Rounds without improvement on the validation rows after which training stops."""
    categorical: tuple[str, ...]

    @property
    def max_bin(self) -> Any:
        """Bins of a feature at most."""
        return self.params.get("max_bin", 256)

    def matrix(self, features: Sequence[str]) -> dict[str, Any]:
        """Return keyword arguments of a QuantileDMatrix of these features.

        A missing value is an ordinary, lowest value: the matrix stays dense, and so small and fast. Categories must
        not be negative, so with categories a missing value is one to XGBoost too.
        """
        options: dict[str, Any] = {"max_bin": self.max_bin, "feature_names": native.booster_names(list(features))}
        if self.categorical:
            types = ["c" if name in self.categorical else "q" for name in features]
            options |= {"feature_types": types, "enable_categorical": True, "missing": MISSING}
        return options


def plan(
    params: Mapping[str, Any],
    training: Mapping[str, Any],
    device: str,
    categorical: Sequence[str] = (),
    kind: str = "classification",
    classes: int = 0,
) -> Plan:
    """Translate a model's ``params``, by the names of XGBoost's scikit-learn interface, and ``fit``.

    Of ``params`` ``n_estimators`` counts trees, and a null leaves the choice to XGBoost. Of ``training``
    ``num_boost_round`` are the rounds that the trees are spread over, null for one tree a round;
    ``early_stopping_rounds`` may be null for never. The others as of ``build.build``; names of categories that the data
    lacks are of no effect.

    C001 unknown name, C003 impossible count, C010 a device that is not the session's.
    """
    check_names("params", list(params), PARAMS, HINTS)
    check_names("fit", list(training), TRAINING, {"n_estimators": "model.params.n_estimators"})
    given = {name: value for name, value in params.items() if value is not None}
    asked = str(given.pop("device", device))
    if asked.partition(":")[0] != device:
        what = f"{asked} asked for, but this backend computes on {device}"
        raise TipcastError("C010", "model.params.device", what, "choose the device by backend=cpu or backend=gpu")
    if given.get("tree_method") == "gpu_hist":
        given["tree_method"] = "hist"
    if given.get("tree_method", "hist") != "hist":
        what = f"{given['tree_method']} needs the rows in one place"
        raise TipcastError("C003", "model.params.tree_method", what, "use hist")
    for name in ABOVE_ZERO:
        if name in given:
            positive(f"model.params.{name}", given[name], whole=False)
    objective, metric = OBJECTIVES[kind]
    metrics = given.setdefault("eval_metric", metric)
    for metric in [metrics] if isinstance(metrics, str) else metrics:
        if not METRICS[kind].fullmatch(str(metric)):
            fix = f"use {OBJECTIVES[kind][1]}, or null for it"
            raise TipcastError("C003", "model.params.eval_metric", f"{metric} does not judge {JUDGED[kind]}", fix)
    trees = positive("model.params.n_estimators", given.pop("n_estimators", 100))
    rounds = positive("model.fit.num_boost_round", training.get("num_boost_round") or trees)
    if trees % rounds:
        what = f"{trees} trees do not spread evenly over {rounds} rounds"
        fix = "set it to null or to a divisor of model.params.n_estimators"
        raise TipcastError("C003", "model.fit.num_boost_round", what, fix)
    stop = training.get("early_stopping_rounds")
    number = {"num_class": classes or 2} if kind == "multiclass" else {}
    return Plan(
        params={"objective": objective, "device": device, "num_parallel_tree": trees // rounds, **given, **number},
        rounds=rounds,
        stop_after=None if stop is None else positive("model.fit.early_stopping_rounds", stop),
        categorical=tuple(categorical),
    )


def try_out(planned: Plan) -> None:
    """Let XGBoost itself judge the values, by one round on eight rows: C003 with its own words."""
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    settings = dict(planned.params) | {"device": "cpu", "num_parallel_tree": 1, "verbosity": 0}
    try:
        rows = xgboost.QuantileDMatrix(x, np.array([0, 1] * 4), max_bin=planned.max_bin)
        xgboost.train(settings, rows, 1, evals=[(rows, "validation")], verbose_eval=False)
    except (xgboost.core.XGBoostError, ValueError, TypeError) as problem:
        said = str(problem).split("\nStack trace")[0].split("\n")[0]
        said = re.sub(r"^\[[\d:]+\] \S+?:\d+: (Check failed: [^:]*: )?", "", said)
        name = next((name for name in planned.params if name in said), None)
        name = name or next((name for name, value in planned.params.items() if str(value) in said), "")
        key, fix = f"model.params.{name}".rstrip("."), "see XGBoost's parameter documentation"
        raise TipcastError("C003", key, said, fix) from problem
