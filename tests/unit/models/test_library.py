"""Estimators of scikit-learn by name: what the adapter adds to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.cluster import SpectralClustering
from sklearn.datasets import make_moons
from sklearn.ensemble import RandomForestRegressor
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LinearRegression
from sklearn.metrics import adjusted_rand_score

from tipcast.config.errors import TipcastError
from tipcast.models import native
from tipcast.models.base import Split
from tipcast.models.library import Library

X, GROUPS = make_moons(400, noise=0.05, random_state=0)
FRAME = pd.DataFrame(X.astype(np.float32), columns=["a", "b"])
SPECTRAL = {"n_clusters": 2, "affinity": "nearest_neighbors"}


def clusters(library: str, params: dict[str, object], training: dict[str, object]) -> Library:
    return Library(params, training, "cpu", (), "clustering", 0, library=library, reference=library)


@pytest.mark.parametrize("standardize", [False, True])
def test_clusters_without_a_rule_for_other_rows(tmp_path: Path, standardize: bool) -> None:
    """Two moons, which no centres tell apart; rows of the fit keep their cluster, others get the nearest one's."""
    training = {"rows": 300, "standardize": standardize}
    fitted = clusters("sklearn.cluster.SpectralClustering", SPECTRAL, training).fit(Split([FRAME]), seed=0)
    assert fitted.info["rows"] == 300
    saved = fitted.save(tmp_path)
    labels, far = native.load(saved.path, saved.format).score(FRAME.to_numpy()).T
    assert adjusted_rand_score(GROUPS, labels) == 1.0
    assert (far < 1e-6).sum() == 300
    others, _ = make_moons(100, noise=0.05, random_state=1)
    expected = [labels[np.argmin(((X - row) ** 2).sum(axis=1) + 1e9 * (far >= 1e-6))] for row in others]
    if not standardize:
        np.testing.assert_array_equal(fitted.scorer.score(others.astype(np.float32))[:, 0], expected)


@pytest.mark.filterwarnings("ignore:Graph is not fully connected:UserWarning")
def test_clusters_are_the_librarys() -> None:
    own = clusters("sklearn.cluster.SpectralClustering", SPECTRAL, {}).fit(Split([FRAME]), seed=0)
    theirs = SpectralClustering(**SPECTRAL, random_state=0).fit(X)
    assert adjusted_rand_score(own.scorer.score(FRAME.to_numpy())[:, 0], theirs.labels_) == 1.0


def test_rows_in_no_cluster_are_refused() -> None:
    scattered = clusters("sklearn.cluster.DBSCAN", {"eps": 0.001}, {})
    with pytest.raises(TipcastError, match=r"C003.*100\.0% of the training rows in no cluster"):
        scattered.fit(Split([FRAME]), seed=0)


DRAW = np.random.default_rng(0)
SHOPS = pd.DataFrame({"size": DRAW.normal(50, 20, 900), "shop": DRAW.integers(1, 40, 900)}).astype(np.float32)
PRICES = (SHOPS["size"] * 0.3 + (SHOPS["shop"] * 37 % 11) ** 2 + DRAW.random(900)).astype(np.float32)


def by_shop(library: str, training: dict[str, object], **params: object) -> Library:
    reference = f"sklearn.{library}"
    return Library(params, training, "cpu", ("shop",), "regression", 0, library=reference, reference=reference)


@pytest.mark.parametrize("standardize", [False, True])
def test_categories_are_columns_of_their_own(tmp_path: Path, standardize: bool) -> None:
    """As DictVectorizer makes them; a shop that training rows did not have is in none."""
    estimator = by_shop("linear_model.LinearRegression", {"standardize": standardize})
    estimator.check()
    fitted = estimator.fit(Split([SHOPS[:500], SHOPS[500:]], [PRICES[:500], PRICES[500:]]), seed=0)
    saved = fitted.save(tmp_path)
    new = SHOPS[:50].assign(shop=lambda rows: rows["shop"].where(rows["shop"] < 35, 77)).astype(np.float32)
    vectorizer = DictVectorizer()
    rows = vectorizer.fit_transform(SHOPS.assign(shop=SHOPS["shop"].astype(str)).to_dict("records"))
    theirs = LinearRegression().fit(rows, PRICES.astype(float))
    others = vectorizer.transform(new.assign(shop=new["shop"].astype(str)).to_dict("records"))
    expected = theirs.predict(others)
    np.testing.assert_allclose(native.load(saved.path, saved.format).score(new.to_numpy()), expected, rtol=1e-4)
    assert list(fitted.importance) == ["size", "shop"]
    assert fitted.importance["shop"] > fitted.importance["size"] > 0


def test_a_forest_of_categories_is_scikit_learns() -> None:
    """Bit by bit: the columns are in the order of the values, the others come after them."""
    estimator = by_shop("ensemble.RandomForestRegressor", {}, n_estimators=5, max_depth=6)
    fitted = estimator.fit(Split([SHOPS], [PRICES]), seed=3, threads=2)
    rows = pd.get_dummies(SHOPS, columns=["shop"], dtype=float)
    rows = scipy.sparse.csr_array(rows[[*rows.columns[1:], "size"]])
    theirs = RandomForestRegressor(n_estimators=5, max_depth=6, random_state=3).fit(rows, PRICES.astype(float))
    np.testing.assert_array_equal(fitted.scorer.score(SHOPS.to_numpy()), theirs.predict(rows))
    assert fitted.importance["shop"] == pytest.approx(theirs.feature_importances_[:-1].sum())


def test_a_model_that_takes_no_sparse_rows_is_refused_before_it_is_fitted() -> None:
    with pytest.raises(TipcastError, match=r"C003.*[Ss]parse"):
        by_shop("ensemble.HistGradientBoostingRegressor", {}, max_iter=5).check()
