"""A user's parameters of a random forest as cuML's own: scikit-learn's names where both have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tipcast.config.errors import TipcastError
from tipcast.estimators.parameters import check_names, positive_int

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
CRITERIA = {"gini": "gini", "entropy": "entropy", "log_loss": "entropy"}


def settings(params: Mapping[str, Any], training: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a model's ``params``.

    Raises
    ------
    TipcastError
        C001 unknown name, C003 a value that cuML refuses, or takes for something else.

    """
    check_names("params", list(params), VALID, HINTS)
    check_names("fit", list(training), (), {})
    given = {name: value for name, value in params.items() if value is not None}
    found: dict[str, Any] = {
        "n_estimators": positive_int("model.params.n_estimators", given.pop("n_estimators", 100)),
        "max_depth": None if params.get("max_depth") is None else _whole("max_depth", given.pop("max_depth"), 1),
        "split_criterion": _chosen("criterion", given.pop("criterion", "gini"), CRITERIA),
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
