"""The names of XGBoost's parameters, and its errors about them."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tipcast.config.errors import TipcastError
from tipcast.models import base

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
"""Parameters, by the names of XGBoost's scikit-learn interface."""
ABOVE_ZERO = (
    "learning_rate",
    "subsample",
    "colsample_bytree",
    "colsample_bylevel",
    "colsample_bynode",
)
"""Parameters that must be above 0: at 0 nothing is learned, which XGBoost does not refuse."""
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
"""Names that are refused -> what to use in their place."""


def try_params(params: Mapping[str, Any], bins: Any) -> None:
    """Let XGBoost check parameters in one round on eight rows.

    Raises C003, and K007 if XGBoost is not installed.
    """
    try:
        import xgboost
    except ModuleNotFoundError as problem:
        fix = "run pip install 'tipcast[cpu]', or '.[cpu]' in a checkout"
        raise TipcastError("K007", "xgboost", "is not installed", fix) from problem

    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    settings = {**params, "device": "cpu", "num_parallel_tree": 1, "verbosity": 0}
    try:
        rows = xgboost.QuantileDMatrix(x, np.array([0, 1] * 4), max_bin=bins)
        xgboost.train(settings, rows, 1, evals=[(rows, "validation")], verbose_eval=False)
    except (xgboost.core.XGBoostError, ValueError, TypeError) as problem:
        raise parameter_error(params, str(problem)) from problem


def parameter_error(params: Mapping[str, Any], text: str) -> TipcastError:
    """Return XGBoost's error at the parameter whose name, or else value, its text has."""
    message = text.split("\nStack trace")[0].split("\n")[0]
    message = re.sub(r"^\[[\d:]+\] \S+?:\d+: (Check failed: [^:]*: )?", "", message)

    by_name = [name for name in params if name in message]
    by_value = [name for name, value in params.items() if str(value) in message]
    name = next(iter([*by_name, *by_value]), "")
    key = f"model.params.{name}".rstrip(".")
    return TipcastError("C003", key, message, "see XGBoost's parameter documentation")
