"""The look-up: shipped classes only, and bad parameters refused with the nearest name."""

from __future__ import annotations

import logging

import pytest

from tipcast.config.errors import TipcastError
from tipcast.models.base import Split
from tipcast.models.build import build, check
from tipcast.models.xgboost import XGBoost


def test_build_finds_the_class_of_a_device(spec):
    assert isinstance(build(spec("xgboost"), "cpu"), XGBoost)
    assert isinstance(build(spec("xgboost_forest"), "cpu"), XGBoost)


def test_an_override_cannot_name_a_class(spec):
    model = spec("xgboost")
    model.cpu = "os.system"
    with pytest.raises(TipcastError, match="C006.*model.cpu"):
        build(model, "cpu")


def test_a_table_of_another_model_is_refused(spec):
    model = spec("xgboost")
    model.name = "random_forest"
    with pytest.raises(TipcastError, match="C006"):
        build(model, "cpu")


@pytest.mark.parametrize("name", ["../backend/cpu", "nothing"])
def test_a_model_that_is_not_shipped_is_refused(spec, name):
    model = spec("xgboost")
    model.name = name
    with pytest.raises(TipcastError, match="C002.*xgboost"):
        build(model, "cpu")


def test_a_variant_that_is_not_there_is_named(spec):
    with pytest.raises(TipcastError, match="C002.*model=extra_trees: has no class for gpu.*one for cpu"):
        build(spec("extra_trees"), "cuda")


@pytest.mark.parametrize(
    ("model", "param", "value", "expected"),
    [
        ("xgboost", "max_dept", 3, "C001.*model.params.max_dept.*did you mean model.params.max_depth"),
        ("xgboost", "eta", 0.1, "C001.*learning_rate"),
        ("xgboost", "num_parallel_tree", 4, "C001.*xgboost_forest"),
        ("xgboost", "random_state", 4, "C001.*seed="),
        ("xgboost", "n_estimators", -1, "C003.*n_estimators"),
        ("xgboost", "n_estimators", 2.5, "C003.*n_estimators"),
        ("xgboost", "n_estimators", True, "C003.*n_estimators"),
        ("xgboost", "max_depth", "abc", "C003.*max_depth.*abc"),
        ("xgboost", "learning_rate", -1, "C003.*learning_rate"),
        ("xgboost", "max_bin", 1, "C003.*max_bin.*2"),
        ("xgboost", "max_bin", "x", "C003.*max_bin"),
        ("xgboost", "tree_method", "exact", "C003.*tree_method.*hist"),
        ("xgboost", "eval_metric", "foo", "C003.*eval_metric.*foo"),
        ("xgboost", "eval_metric", "ndcg", "C003.*eval_metric.*ndcg"),
        ("xgboost", "eval_metric", ["logloss", "merror"], "C003.*eval_metric.*merror"),
        ("xgboost", "learning_rate", float("inf"), "C003.*learning_rate"),
        ("xgboost", "subsample", 0, "C003.*subsample"),
        ("xgboost", "device", "cuda", "C010.*device.*backend=gpu"),
        ("xgboost_forest", "subsample", 7, "C003.*subsample.*bound"),
        ("random_forest", "n_estimator", 3, "C001.*did you mean model.params.n_estimators"),
        ("random_forest", "n_jobs", 3, "C001.*cluster.threads_per_worker"),
        ("random_forest", "n_estimators", -1, "C003.*n_estimators"),
        ("random_forest", "max_depth", "abc", "C003.*max_depth.*abc"),
        ("random_forest", "max_samples", -1.0, "C003.*max_samples"),
        ("logistic", "penality", "l1", "C001.*did you mean model.params.penalty"),
        ("logistic", "C", -1, "C003.*model.params.C"),
        ("svc", "gamma", "steep", "C003.*model.params.gamma"),
        ("svc", "random_state", 1, "C001.*seed="),
        ("knn", "n_neighbors", 0, "C003.*model.params.n_neighbors"),
        ("knn", "weights", "inverse", "C003.*model.params.weights"),
        ("knn", "n_neighbours", 5, "C001.*did you mean model.params.n_neighbors"),
    ],
)
def test_check_refuses(spec, model, param, value, expected):
    with pytest.raises(TipcastError, match=expected):
        check(spec(model, **{param: value}))


@pytest.mark.parametrize(
    ("model", "training", "expected"),
    [
        ("xgboost", {"early_stopping_round": 3}, "C001.*did you mean model.fit.early_stopping_rounds"),
        ("xgboost", {"early_stopping_rounds": 0}, "C003.*early_stopping_rounds"),
        ("xgboost_forest", {"num_boost_round": 3}, "C003.*num_boost_round"),
        ("random_forest", {"epochs": 3}, "C001.*model.fit.epochs"),
        ("logistic", {"epochs": 3}, "C001.*model.fit.epochs"),
        ("svc", {"rows": 0}, "C003.*model.fit.rows"),
        ("svc", {"folds": 1}, "C003.*model.fit.folds"),
    ],
)
def test_check_refuses_of_fit(spec, model, training, expected):
    with pytest.raises(TipcastError, match=expected):
        check(spec(model, training))


def test_gpu_hist_is_translated_with_a_note(spec, caplog):
    with caplog.at_level(logging.WARNING, logger="tipcast"):
        check(spec("xgboost", tree_method="gpu_hist"))
    assert "gpu_hist" in caplog.text
    assert "hist" in caplog.text


def test_parameters_beyond_the_shipped_ones_pass_through(spec):
    check(spec("xgboost", max_leaves=31, grow_policy="lossguide", device="cpu", eval_metric=["auc", "logloss"]))
    check(spec("xgboost", eval_metric="error@0.4"))
    check(spec("random_forest", min_samples_split=4, class_weight="balanced", max_depth=None))
    check(spec("random_forest", monotonic_cst=[0, 0, 0, 0, 1, 0, 0], max_features=5))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("os.system", "C006.*outside sklearn"),
        ("sklearn.os.system", "C002"),
        ("sklearn.utils.murmurhash3_32", "C002.*not a class with fit"),
        ("sklearn.preprocessing.StandardScaler", "C002.*not a class with fit and predict"),
        ("sklearn.ensemble.NoForest", "C002"),
    ],
)
def test_an_override_may_name_only_estimators_of_known_libraries(spec, name, expected):
    model = spec("extra_trees")
    model.classes["classification"]["cpu"]["local"] = name
    with pytest.raises(TipcastError, match=expected):
        check(model)


def test_an_override_names_another_class(spec, parts):
    model = spec("extra_trees")
    model.classes["classification"]["cpu"]["local"] = "sklearn.ensemble.GradientBoostingClassifier"
    model.params = {"n_estimators": 5}
    check(model)
    fitted = build(model, "cpu").fit(Split(*parts[0]), seed=0)
    assert type(fitted.model).__name__ == "GradientBoostingClassifier"


@pytest.mark.parametrize(
    ("model", "kind", "param", "value", "expected"),
    [
        ("extra_trees", "classification", "max_dept", 3, "C001.*did you mean model.params.max_depth"),
        ("extra_trees", "regression", "n_jobs", 3, "C001.*cluster.threads_per_worker"),
        ("hist_gradient_boosting", "multiclass", "learning_rate", -1.0, "C003.*learning_rate"),
        ("kmeans", "clustering", "n_clusters", 0, "C003.*n_clusters"),
        ("xgboost", "regression", "eval_metric", "logloss", "C003.*does not judge regression.*rmse"),
        ("logistic", "regression", "C", 1.0, "C003.*task.kind.*regression is not what logistic does"),
        ("linear", "classification", "fit_intercept", True, "C003.*classification is not what linear does"),
    ],
)
def test_check_knows_the_kind(spec, model, kind, param, value, expected):
    with pytest.raises(TipcastError, match=expected):
        check(spec(model, **{param: value}), kind=kind)


@pytest.mark.parametrize(
    ("name", "device", "kind"),
    [
        ("ridge", "cuda", "regression"),
        ("incremental_linear", "cpu", "regression"),
        ("linear_dask", "cpu", "regression"),
        ("kmeans", "cpu", "clustering"),
        ("random_forest", "cpu", "regression"),
    ],
)
def test_where_categories_are_not_known(spec, name, device, kind):
    with pytest.raises(TipcastError, match=r"C003.*task.categorical.*knows no categories"):
        build(spec(name), device, ("zone",), kind)
    assert build(spec("ridge"), "cpu", ("zone",), "regression").categorical == ("zone",)
