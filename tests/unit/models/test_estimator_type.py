"""Classes that predict something else than a task asks for."""

from dataclasses import replace

import pytest

from tipcast.config.errors import TipcastError
from tipcast.models.build import build
from tipcast.models.estimator_type import type_of
from tipcast.models.library_class import find_class
from tipcast.tasks.kinds import CLUSTERING, KINDS

RIDGE = "sklearn.linear_model.Ridge"
LOGISTIC = "sklearn.linear_model.LogisticRegression"
KMEANS = "sklearn.cluster.KMeans"


def _find_class(spec, kind, **entry):
    """A model that its yaml gives one class."""
    return replace(spec("ridge"), kinds=[kind], params={}, classes={kind: {"cpu": entry}})


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("classification", RIDGE, "is a regressor, but classification needs a classifier"),
        ("multiclass", RIDGE, "is a regressor, but multiclass needs a classifier"),
        ("classification", "sklearn.tree.DecisionTreeRegressor", "is a regressor"),
        ("classification", KMEANS, "is a clusterer"),
        ("classification", "sklearn.ensemble.IsolationForest", "is an outlier detector"),
        ("classification", "sklearn.mixture.GaussianMixture", "is a density estimator"),
        ("regression", LOGISTIC, "is a classifier, but regression needs a regressor"),
        ("regression", KMEANS, "is a clusterer"),
        ("clustering", LOGISTIC, "is a classifier, but clustering needs a clusterer"),
        ("clustering", "sklearn.ensemble.IsolationForest", "is an outlier detector"),
    ],
)
def test_a_class_of_another_type_is_refused_before_the_fit(spec, kind, name, expected):
    with pytest.raises(TipcastError, match=rf"C002\] model.classes.{kind}: {name} {expected}"):
        build(_find_class(spec, kind, local=name), "cpu", (), KINDS[kind]).check()


@pytest.mark.parametrize(
    ("kind", "local", "distributed"),
    [
        ("classification", LOGISTIC, "dask_ml.linear_model.LinearRegression"),
        ("regression", RIDGE, "dask_ml.cluster.KMeans"),
        ("clustering", KMEANS, "dask_ml.linear_model.LogisticRegression"),
    ],
)
def test_so_is_the_class_that_all_workers_would_fit(spec, kind, local, distributed):
    pytest.importorskip("dask_ml")
    model = _find_class(spec, kind, local=local, distributed=distributed)
    with pytest.raises(TipcastError, match=rf"C002\] model.classes.{kind}: {distributed} is a"):
        build(model, "cpu", (), KINDS[kind]).check()


def test_the_components_of_a_mixture_are_clusters(spec):
    model = _find_class(spec, "clustering", local="sklearn.mixture.GaussianMixture")
    build(model, "cpu", (), CLUSTERING).check()


def test_a_class_may_say_its_type_itself():
    """As cuML's do."""

    class Theirs:
        _estimator_type = "classifier"

    assert type_of(Theirs) == "classifier"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("linear_model.LinearRegression", "regressor"),
        ("linear_model.LogisticRegression", "classifier"),
        ("naive_bayes.GaussianNB", "classifier"),
        ("cluster.KMeans", "clusterer"),
        ("cluster.SpectralClustering", "clusterer"),
    ],
)
def test_methods_tell_where_a_class_does_not(name, expected):
    pytest.importorskip("dask_ml")
    assert type_of(find_class(f"dask_ml.{name}")) == expected
