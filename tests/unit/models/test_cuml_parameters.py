"""scikit-learn's names become cuML's; what cuML cannot do is refused in one line."""

from __future__ import annotations

import pytest

from tipcast.config.errors import TipcastError
from tipcast.models.build import check
from tipcast.models.cuml_forest import settings

SHIPPED = {
    "n_estimators": 100,
    "max_depth": 10,
    "min_samples_leaf": 1,
    "max_features": "sqrt",
    "max_samples": None,
    "criterion": "gini",
}


def test_what_is_shipped(spec):
    assert settings(SHIPPED, {}) == {
        "n_estimators": 100,
        "max_depth": 10,
        "split_criterion": "gini",
        "max_features": "sqrt",
        "bootstrap": True,
        "max_samples": 1.0,
        "max_leaves": -1,
        "min_samples_leaf": 1,
    }
    check(spec("random_forest"), "gpu")
    check(spec("random_forest"), "cuda")


def test_other_values():
    given = {
        "max_depth": None,
        "max_features": 0.5,
        "max_samples": 0.632,
        "criterion": "log_loss",
        "max_leaf_nodes": 64,
        "min_samples_leaf": 0.001,
        "min_samples_split": 5,
        "min_impurity_decrease": 0,
        "bootstrap": False,
        "n_bins": 256,
        "max_batch_size": 1024,
    }
    found = settings(given, {})
    assert found["max_depth"] is None
    assert (found["split_criterion"], found["max_leaves"], found["n_bins"]) == ("entropy", 64, 256)
    assert found["min_impurity_decrease"] == 0.0
    assert settings({"max_features": None}, {})["max_features"] is None
    assert settings({"max_features": 3}, {})["max_features"] == 3


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"n_stimators": 1}, "C001.*n_stimators.*n_estimators"),
        ({"class_weight": "balanced"}, "C001.*class_weight.*backend=cpu"),
        ({"random_state": 1}, "C001.*seed"),
        ({"n_estimators": 0}, "C003.*n_estimators"),
        ({"max_depth": 0}, "C003.*max_depth"),
        ({"max_depth": True}, "C003.*max_depth"),
        ({"max_samples": 1000}, "C003.*max_samples.*share"),
        ({"max_samples": 1.5}, "C003.*max_samples"),
        ({"max_features": "auto"}, "C003.*max_features"),
        ({"criterion": "mse"}, "C003.*criterion.*gini"),
        ({"min_samples_leaf": 0}, "C003.*min_samples_leaf"),
        ({"min_samples_split": 1}, "C003.*min_samples_split"),
        ({"n_bins": 1}, "C003.*n_bins"),
        ({"bootstrap": 1}, "C003.*bootstrap"),
        ({"min_impurity_decrease": -0.1}, "C003.*min_impurity_decrease"),
    ],
)
def test_what_cuml_cannot_do(params, told):
    with pytest.raises(TipcastError, match=told):
        settings(params, {})
