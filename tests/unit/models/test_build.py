"""The look-up: shipped classes only, and bad parameters refused with the nearest name."""

import logging

import pytest

from tipcast.config.errors import TipcastError
from tipcast.models.base import Split
from tipcast.models.build import build


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("cpu", "os.system", "C006.*model.cpu"),
        ("name", "random_forest", "C006"),
        ("name", "../backend/cpu", "C002.*xgboost"),
        ("name", "nothing", "C002.*xgboost"),
    ],
)
def test_an_override_cannot_name_a_class_or_another_file(spec, key, value, expected):
    model = spec("xgboost")
    setattr(model, key, value)
    with pytest.raises(TipcastError, match=expected):
        build(model, "cpu")


def test_a_variant_that_is_not_there_is_named(spec):
    with pytest.raises(TipcastError, match="C002.*model=extra_trees: has no class for gpu.*one for cpu"):
        build(spec("extra_trees"), "cuda")


@pytest.mark.parametrize(
    ("model", "section", "key", "value", "expected"),
    [
        ("xgboost", "params", "max_dept", 3, "C001.*model.params.max_dept.*did you mean model.params.max_depth"),
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
        ("xgboost", "fit", "early_stopping_round", 3, "C001.*did you mean model.fit.early_stopping_rounds"),
        ("xgboost", "fit", "early_stopping_rounds", 0, "C003.*early_stopping_rounds"),
        ("xgboost_forest", "fit", "num_boost_round", 3, "C003.*num_boost_round"),
        ("random_forest", "fit", "epochs", 3, "C001.*model.fit.epochs"),
        ("svc", "fit", "folds", 0, "C003.*model.fit.folds"),
        ("incremental", "fit", "passes", 0, "C003.*model.fit.passes"),
        ("incremental", "fit", "passes", 1.5, "C003.*model.fit.passes"),
        ("ridge regression", "fit", "passes", 1, "C003.*model.fit.passes.*Ridge has no partial_fit"),
        ("extra_trees regression", "params", "n_jobs", 3, "C001.*cluster.threads_per_worker"),
        ("hist_gradient_boosting multiclass", "params", "learning_rate", -1.0, "C003.*learning_rate"),
        ("kmeans clustering", "params", "n_clusters", 0, "C003.*n_clusters"),
        ("xgboost regression", "params", "eval_metric", "logloss", "C003.*does not judge regression.*rmse"),
        ("logistic regression", "params", "C", 1.0, "C003.*task.kind.*regression is not what logistic does"),
        ("linear classification", "params", "fit_intercept", True, "C003.*classification is not what linear does"),
    ],
)
def test_check_refuses(spec, model, section, key, value, expected):
    name, *kind = model.split()
    with pytest.raises(TipcastError, match=expected):
        build(spec(name, **({key: value} if section == "params" else {"fit": {key: value}})), "cpu", (), *kind).check()


def test_parameters_beyond_the_shipped_ones_pass_through(spec, caplog):
    with caplog.at_level(logging.WARNING, logger="tipcast"):
        build(spec("xgboost", tree_method="gpu_hist"), "cpu").check()
    assert "gpu_hist is now hist" in caplog.text
    build(spec("xgboost", max_leaves=31, grow_policy="lossguide", eval_metric=["auc", "logloss"]), "cpu").check()
    build(spec("xgboost", eval_metric="error@0.4"), "cpu").check()
    build(spec("random_forest", min_samples_split=4, class_weight="balanced", max_depth=None), "cpu").check()
    build(spec("random_forest", monotonic_cst=[0, 0, 0, 0, 1, 0, 0], max_features=5), "cpu").check()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("os.system", "C006.*outside sklearn"),
        ("sklearn.utils.murmurhash3_32", "C002.*not a class with fit"),
        ("sklearn.preprocessing.StandardScaler", "C002.*not a class with fit and predict"),
        ("sklearn.ensemble.NoForest", "C002"),
    ],
)
def test_an_override_may_name_only_estimators_of_known_libraries(spec, name, expected):
    model = spec("extra_trees")
    model.classes["classification"]["cpu"]["local"] = name
    with pytest.raises(TipcastError, match=expected):
        build(model, "cpu").check()


def test_an_override_names_another_class(spec, parts):
    model = spec("extra_trees")
    model.classes["classification"]["cpu"]["local"] = "sklearn.ensemble.GradientBoostingClassifier"
    model.params = {"n_estimators": 5}
    build(model, "cpu").check()
    fitted = build(model, "cpu").fit(Split(*parts[0]), seed=0)
    assert type(fitted.scorer.model).__name__ == "GradientBoostingClassifier"


@pytest.mark.parametrize(
    ("name", "device", "kind"),
    [
        ("ridge", "cuda", "regression"),
        ("incremental_linear", "cpu", "regression"),
        ("linear_dask", "cpu", "regression"),
        ("kmeans", "cpu", "clustering"),
    ],
)
def test_where_categories_are_not_known(spec, name, device, kind):
    with pytest.raises(TipcastError, match=r"C003.*task.categorical.*knows no categories"):
        build(spec(name), device, ("zone",), kind)
    assert build(spec("ridge"), "cpu", ("zone",), "regression").categorical == ("zone",)
