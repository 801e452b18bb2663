"""The forest grown in chunks is scikit-learn's own forest; its parameters' names become cuML's."""

import dataclasses
from operator import attrgetter

import numpy as np
import pandas as pd
import pytest
import treelite
from distributed import Client, LocalCluster
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_auc_score
from tests.conftest import NO_PAGES

from tipcast.config.errors import TipcastError
from tipcast.models import cuml_forest, forest, native
from tipcast.models.base import Split
from tipcast.models.build import build
from tipcast.models.cuml_forest import CumlForest
from tipcast.tasks.kinds import named

SMALL = {"n_estimators": 21, "max_depth": 6}


def theirs(rows, **params):
    """Return scikit-learn's forest of all rows."""
    return RandomForestClassifier(**params, random_state=5).fit(*(side.to_numpy() for side in rows))


@pytest.mark.parametrize("weights", [None, "balanced"])
def test_every_tree_is_scikit_learns(pair, parts, spec, joined, scattered, weights):
    """Over two processes, and of rows in one; weights of rows stay out of the model."""
    steps = []
    params = {**SMALL, "class_weight": weights}
    rows = Split(*scattered(parts[:3], pair))
    estimator = build(spec("random_forest", **params), "cpu")
    model = estimator.fit_distributed(pair, rows, seed=5, progress=lambda *step: steps.append(step))
    x = parts[3][0]
    reference = theirs(joined(parts[:3]), **params)
    for fitted in (model, estimator.fit(Split(*joined(parts[:3])), seed=5, threads=2)):
        np.testing.assert_array_equal(
            fitted.scorer.score(x), reference.predict_proba(x.to_numpy())[:, 1]
        )
    assert [t.random_state for t in model.scorer.model.estimators_] == [
        t.random_state for t in reference.estimators_
    ]
    assert model.importance == pytest.approx(
        dict(zip(x.columns, reference.feature_importances_, strict=True))
    )
    assert model.info == {"device": "cpu", "trees": 21, "rows_seen": "all"}
    assert model.scorer.model._sample_weight is None
    assert steps[-1] == (21, 21)
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)


def test_rows_that_do_not_fit_are_split_among_the_workers(
    pair, parts, spec, monkeypatch, joined, scattered
):
    monkeypatch.setattr(forest, "SHARE_OF_MEMORY", 1e-9)
    one, other = sorted(pair.nthreads())
    rows = Split(*scattered(parts[:3], pair, (one, other, one)))
    model = build(spec("random_forest", **SMALL), "cpu").fit_distributed(pair, rows, seed=5)
    assert model.info["rows_seen"] == "each worker's own"
    assert len(model.scorer.model.estimators_) == 21
    seen = {int(tree.tree_.n_node_samples[0] * 1) for tree in model.scorer.model.estimators_}
    whole, (held_out, labels) = joined(parts[:3]), parts[3]
    assert max(seen) < len(whole[0]) * 0.632  # no tree drew from all rows
    expected = theirs(whole, **SMALL).predict_proba(held_out.to_numpy())[:, 1]
    assert (
        abs(roc_auc_score(labels, model.scorer.score(held_out)) - roc_auc_score(labels, expected))
        < 0.02
    )


@pytest.mark.parametrize(("together", "seen"), [(True, "all"), (False, "each worker's own")])
def test_the_configuration_says_which_rows_trees_see(
    pair, parts, spec, scattered, monkeypatch, together, seen
):
    monkeypatch.setattr(forest, "SHARE_OF_MEMORY", 1e-9 if together else 1)
    one, other = sorted(pair.nthreads())
    rows = Split(*scattered(parts[:2], pair, (one, other)))
    model = spec("random_forest", **SMALL)
    model.fit["together"] = together
    assert build(model, "cpu").fit_distributed(pair, rows, seed=5).info["rows_seen"] == seen


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"together": "yes"}, "C003.*model.fit.together.*true, false or null"),
        ({"together": 1}, "C003.*model.fit.together.*true, false or null"),
        ({"togther": True}, "C001.*model.fit.togther.*together"),
        ({"max_depth": 3}, "C001.*model.params.max_depth"),
    ],
)
def test_settings_of_the_fit_that_are_refused(spec, backend, settings, message):
    model = spec("random_forest")
    model.fit.update(settings)
    with pytest.raises(TipcastError, match=message):
        build(model, backend).check()


@pytest.mark.parametrize("reach", ["local", "distributed"])
@pytest.mark.parametrize(
    ("kind", "classes", "told"), [("classification", 2, "1 of 2"), ("multiclass", 3, "2 of 3")]
)
def test_a_class_without_rows_is_refused(
    client, parts, spec, scattered, reach, kind, classes, told
):
    x, y = parts[0]
    y = y * 0 if classes == 2 else y
    forest = build(spec("random_forest", **SMALL), "cpu", (), named(kind), classes)
    with pytest.raises(TipcastError, match=f"D015.*{told} classes"):
        if reach == "local":
            forest.fit(Split(x, y), 5)
        else:
            forest.fit_distributed(client, Split(*scattered([(x, y)])), seed=5)


def settings(params):
    """Return what cuML gets."""
    return CumlForest(params, {}, "cuda").settings


def test_what_cuml_gets(spec):
    shipped = spec("random_forest")
    build(shipped, "gpu").check()
    assert settings(shipped.params) == {
        name: value for name, value in shipped.params.items() if value is not None
    }
    given = {
        "max_depth": None,
        "criterion": "log_loss",
        "max_leaf_nodes": 64,
        "n_bins": 256,
        "max_samples": 0.6,
    }
    found = settings(given | {"min_impurity_decrease": 0, "bootstrap": False})
    assert (found["split_criterion"], found["max_leaves"], found["n_bins"]) == ("entropy", 64, 256)
    assert (found["max_depth"], found["min_impurity_decrease"], found["bootstrap"]) == (
        None,
        0.0,
        False,
    )
    assert settings({"max_features": None})["max_features"] is None


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_stimators": 1}, "C001.*n_stimators.*n_estimators"),
        ({"class_weight": "balanced"}, "C001.*class_weight.*backend=cpu"),
        ({"random_state": 1}, "C001.*seed"),
        ({"n_estimators": 0}, "C003.*n_estimators"),
        ({"max_samples": 1000}, "C003.*max_samples.*share"),
        ({"max_features": "auto"}, "C003.*max_features"),
        ({"criterion": "mse"}, "C003.*criterion.*gini"),
        ({"min_samples_leaf": 0}, "C003.*min_samples_leaf"),
        ({"min_impurity_decrease": -0.1}, "C003.*min_impurity_decrease"),
    ],
)
def test_what_cuml_cannot_do(params, message):
    with pytest.raises(TipcastError, match=message):
        CumlForest(params, {}, "cuda").check()


@pytest.fixture
def two_workers():
    """Two workers that are threads of this process, in which the fit of cuML is another one."""
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": False, **NO_PAGES}
    with LocalCluster(**options) as local, Client(local, set_as_default=False) as connected:
        yield connected


def fitted_by_scikit_learn(estimator, rows, seed, threads=1):
    """Stand in for cuML's fit, which takes a GPU."""
    share = forest.Forest(estimator.params, {}, "cpu", kind=estimator.kind)
    fitted = share.fit(Split(*(pd.concat(side) for side in (rows.x, rows.y))), seed)
    return dataclasses.replace(
        fitted,
        scorer=native.NvForestScorer(fitted.content(fitted.scorer), device="cuda"),
        content=attrgetter("content"),
        info={"device": "cuda:0"},
    )


@pytest.mark.parametrize(
    ("together", "enough", "apart"),
    [(None, 1500, True), (None, 1501, False), (True, 1, False), (False, 10**9, True)],
)
def test_gpus_with_enough_rows_grow_trees_of_their_own(
    two_workers, parts, spec, scattered, monkeypatch, together, enough, apart
):
    monkeypatch.setattr(CumlForest, "fit", fitted_by_scikit_learn)
    monkeypatch.setattr(CumlForest, "_grow_together", lambda *_: "together")
    monkeypatch.setattr(cuml_forest, "ENOUGH_ROWS", enough)
    one, other = sorted(two_workers.nthreads())
    rows = Split(*scattered(parts[:3], two_workers, (one, other, one)))
    model = spec("random_forest", **SMALL)
    model.fit["together"] = together
    fitted = build(model, "gpu").fit_distributed(two_workers, rows, seed=5)
    if not apart:
        assert fitted == "together"
        return

    assert fitted.info == {"device": "cuda:0", "workers": 2, "rows_seen": "each worker's own"}
    assert sum(fitted.importance.values()) == pytest.approx(1)
    on_cpu = native.load(fitted.content(fitted.scorer), fitted.format)
    held_out, labels = parts[3]
    assert roc_auc_score(labels, on_cpu.score(held_out)) > 0.7
    checkpoint = treelite.Model.deserialize_bytes(fitted.content(fitted.scorer))
    assert checkpoint.num_tree == SMALL["n_estimators"]


@pytest.mark.parametrize("together", [None, False])
def test_gpus_whose_rows_lack_a_class(two_workers, parts, spec, scattered, monkeypatch, together):
    monkeypatch.setattr(CumlForest, "fit", fitted_by_scikit_learn)
    monkeypatch.setattr(CumlForest, "_grow_together", lambda *_: "together")
    monkeypatch.setattr(cuml_forest, "ENOUGH_ROWS", 1)
    x, y = parts[0]
    rows = Split(*scattered([(x, y), (x, y * 0)], two_workers, sorted(two_workers.nthreads())))
    model = spec("random_forest", **SMALL)
    model.fit["together"] = together
    estimator = build(model, "gpu")
    if together is None:
        assert estimator.fit_distributed(two_workers, rows, seed=5) == "together"
        return
    with pytest.raises(TipcastError, match=r"D015.*1 of 2 classes"):
        estimator.fit_distributed(two_workers, rows, seed=5)


@pytest.mark.parametrize("weights", [None, "balanced"])
def test_a_forest_of_more_trees_is_that_of_one_go(parts, spec, joined, weights):
    rows = Split(*joined(parts[:3]))
    params = {"max_depth": 6, "class_weight": weights}
    grown = []
    state = None
    for trees in (2, 7, 21):
        estimator = build(spec("random_forest", n_estimators=trees, **params), "cpu")
        fitted = estimator.continue_fit(rows, 5, state)
        state = fitted.state
        grown.append(fitted.info["grown_trees"])

    whole = estimator.fit(rows, 5)
    assert grown == [2, 5, 14]
    assert fitted.importance == whole.importance
    assert fitted.content(fitted.scorer) == whole.content(whole.scorer)


def test_forests_of_a_gpu_and_of_libraries_do_not_continue(spec):
    assert build(spec("random_forest"), "cpu").continues
    assert not build(spec("random_forest"), "gpu").continues
    assert not build(spec("extra_trees"), "cpu").continues
