"""The look-up: shipped classes only, and bad parameters refused with the nearest name."""

import logging
from dataclasses import replace

import pytest

from tipcast.config.errors import TipcastError
from tipcast.models.build import build
from tipcast.tasks.kinds import REGRESSION, named


def _local(name):
    """Another class for rows in one process."""
    return {"classes": {"classification": {"cpu": {"local": name}}}}


@pytest.mark.parametrize(
    ("name", "changes", "device", "expected"),
    [
        ("xgboost", {"cpu": "os.system"}, "cpu", "C006.*model.cpu"),
        ("xgboost", {"name": "random_forest"}, "cpu", "C006"),
        ("xgboost", {"name": "../backend/cpu"}, "cpu", "C002.*xgboost"),
        ("xgboost", {"name": "nothing"}, "cpu", "C002.*xgboost"),
        ("extra_trees", {}, "cuda", "C002.*model=extra_trees: has no class for gpu.*one for cpu"),
        ("extra_trees", _local("os.system"), "cpu", "C006.*outside sklearn"),
        (
            "extra_trees",
            _local("sklearn.utils.murmurhash3_32"),
            "cpu",
            "C002.*not a class with fit",
        ),
        (
            "extra_trees",
            _local("sklearn.preprocessing.StandardScaler"),
            "cpu",
            "C002.*a class with fit and predict",
        ),
        ("extra_trees", _local("sklearn.ensemble.NoForest"), "cpu", "C002"),
    ],
)
def test_an_override_may_name_only_what_is_known(spec, name, changes, device, expected):
    with pytest.raises(TipcastError, match=expected):
        build(replace(spec(name), **changes), device).check()


@pytest.mark.parametrize(
    ("model", "section", "key", "value", "expected"),
    [
        (
            "xgboost",
            "params",
            "max_dept",
            3,
            "C001.*model.params.max_dept.*did you mean model.params.max_depth",
        ),
        ("xgboost", "params", "eta", 0.1, "C001.*learning_rate"),
        ("xgboost", "params", "num_parallel_tree", 4, "C001.*xgboost_forest"),
        ("xgboost", "params", "n_estimators", -1, "C003.*n_estimators"),
        ("xgboost", "params", "n_estimators", True, "C003.*n_estimators"),
        ("xgboost", "params", "max_depth", "abc", "C003.*max_depth.*abc"),
        ("xgboost", "params", "max_bin", 1, "C003.*max_bin.*2"),
        ("xgboost", "params", "tree_method", "exact", "C003.*hist.*tree method"),
        ("xgboost", "params", "eval_metric", "foo", "C003.*eval_metric.*foo"),
        ("xgboost", "params", "eval_metric", ["logloss", "merror"], "C003.*eval_metric.*merror"),
        ("xgboost", "params", "learning_rate", float("inf"), "C003.*learning_rate"),
        ("xgboost", "params", "subsample", 0, "C003.*subsample"),
        ("xgboost", "params", "device", "cuda", "C001.*device.*backend=gpu"),
        ("xgboost_forest", "params", "subsample", 7, "C003.*subsample.*bound"),
        ("random_forest", "params", "n_jobs", 3, "C001.*cluster.threads_per_worker"),
        ("logistic", "params", "C", -1, "C003.*model.params.C"),
        ("svc", "params", "random_state", 1, "C001.*seed="),
        ("knn", "params", "n_neighbours", 5, "C001.*did you mean model.params.n_neighbors"),
        (
            "xgboost",
            "fit",
            "early_stopping_round",
            3,
            "C001.*did you mean model.fit.early_stopping_rounds",
        ),
        ("xgboost", "fit", "early_stopping_rounds", 0, "C003.*early_stopping_rounds"),
        ("xgboost_forest", "fit", "num_boost_round", 3, "C003.*num_boost_round"),
        ("random_forest", "fit", "epochs", 3, "C001.*model.fit.epochs"),
        ("random_forest", "fit", "max_depth", 3, "C001.*use model.params.max_depth"),
        ("xgboost", "fit", "learning_rate", 0.1, "C001.*use model.params.learning_rate"),
        ("svc", "fit", "folds", 0, "C003.*model.fit.folds"),
        ("incremental", "fit", "passes", 0, "C003.*model.fit.passes"),
        ("incremental", "fit", "passes", 1.5, "C003.*model.fit.passes"),
        (
            "ridge regression",
            "fit",
            "passes",
            1,
            "C003.*model.fit.passes.*Ridge has no partial_fit",
        ),
        ("extra_trees regression", "params", "n_jobs", 3, "C001.*cluster.threads_per_worker"),
        (
            "hist_gradient_boosting multiclass",
            "params",
            "learning_rate",
            -1.0,
            "C003.*learning_rate",
        ),
        ("kmeans clustering", "params", "n_clusters", 0, "C003.*n_clusters"),
        (
            "xgboost regression",
            "params",
            "eval_metric",
            "logloss",
            "C003.*is not a metric for regression.*rmse",
        ),
        (
            "logistic regression",
            "params",
            "C",
            1.0,
            "C003.*task.kind.*logistic does not support regression.*model=ridge",
        ),
        (
            "linear classification",
            "params",
            "fit_intercept",
            True,
            "C003.*linear does not support classification.*model=logistic",
        ),
    ],
)
def test_check_refuses(spec, model, section, key, value, expected):
    name, *kind = model.split()
    with pytest.raises(TipcastError, match=expected):
        build(
            spec(name, **({key: value} if section == "params" else {"fit": {key: value}})),
            "cpu",
            (),
            *map(named, kind),
        ).check()


def test_parameters_beyond_the_shipped_ones_pass_through(spec, caplog):
    with caplog.at_level(logging.WARNING, logger="tipcast"):
        build(spec("xgboost", tree_method="gpu_hist"), "cpu").check()
    assert "gpu_hist is now hist" in caplog.text
    build(
        spec("xgboost", max_leaves=31, grow_policy="lossguide", eval_metric=["auc", "logloss"]),
        "cpu",
    ).check()
    build(spec("xgboost", eval_metric="error@0.4"), "cpu").check()
    build(
        spec("random_forest", min_samples_split=4, class_weight="balanced", max_depth=None), "cpu"
    ).check()
    build(spec("random_forest", monotonic_cst=[0, 0, 0, 0, 1, 0, 0], max_features=5), "cpu").check()


def test_a_forest_refuses_categories(spec):
    with pytest.raises(TipcastError, match=r"C003.*task.categorical.*does not support categories"):
        build(spec("random_forest"), "cpu", ("zone",), REGRESSION)


@pytest.mark.parametrize(
    "name", ["ridge", "incremental_linear", "linear_dask", "kmeans", "knn", "xgboost"]
)
def test_other_models_take_categories(spec, name):
    assert build(spec(name), "cpu", ("zone",)).categorical == ("zone",)


@pytest.mark.parametrize("name", ["xgboost", "hist_gradient_boosting", "extra_trees"])
def test_models_that_learn_from_missing_values_get_them(spec, name):
    assert build(spec(name), "cpu").takes_missing


@pytest.mark.parametrize(
    "name", ["random_forest", "ridge", "logistic", "svc", "knn", "kmeans", "incremental"]
)
def test_missing_values_are_filled_for_other_models(spec, name):
    assert not build(spec(name), "cpu").takes_missing


@pytest.mark.parametrize(
    "name", ["ridge", "logistic", "svc", "knn", "kmeans", "incremental", "poisson"]
)
def test_models_that_add_or_measure_distances_get_a_column_for_each_text(spec, name):
    assert build(spec(name), "cpu").one_hot


@pytest.mark.parametrize(
    "name", ["xgboost", "hist_gradient_boosting", "extra_trees", "random_forest"]
)
def test_trees_get_codes_of_texts(spec, name):
    assert not build(spec(name), "cpu").one_hot


@pytest.mark.parametrize(
    "library", ["xgboost.XGBClassifier", "lightgbm.LGBMClassifier", "catboost.CatBoostClassifier"]
)
def test_a_class_that_cannot_be_saved_is_refused_before_the_fit(spec, library):
    model = replace(spec("logistic"), classes={"classification": {"cpu": {"local": library}}})
    with pytest.raises(
        TipcastError, match=r"C006.*cannot be saved without a pickle.*model=xgboost"
    ):
        build(model, "cpu").check()
