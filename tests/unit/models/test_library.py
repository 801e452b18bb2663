"""Estimators of scikit-learn by name: what the adapter adds to them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_moons
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from tipcast.config.errors import TipcastError
from tipcast.models import native
from tipcast.models.base import Split
from tipcast.models.build import build
from tipcast.models.library import Library
from tipcast.models.library_rows import chosen_by_part
from tipcast.tasks.kinds import BINARY, CLUSTERING, REGRESSION, named

X, GROUPS = make_moons(400, noise=0.05, random_state=0)
FRAME = pd.DataFrame(X.astype(np.float32), columns=["a", "b"])
SPECTRAL = {"n_clusters": 2, "affinity": "nearest_neighbors"}


def clusters(library: str, params: dict[str, object], training: dict[str, object]) -> Library:
    return Library(params, training, "cpu", (), CLUSTERING, 0, library=library, reference=library)


@pytest.mark.parametrize("standardize", [False, True])
def test_clusters_without_a_rule_for_other_rows(tmp_path: Path, standardize: bool) -> None:
    """Two moons, which no centres tell apart; rows of the fit keep their cluster, others get the
    nearest one's.
    """
    training = {"rows": 300, "standardize": standardize}
    fitted = clusters("sklearn.cluster.SpectralClustering", SPECTRAL, training).fit(
        Split([FRAME]), seed=0
    )
    assert fitted.info["rows"] == 300
    saved = fitted.save(tmp_path)
    labels, far = native.load(saved, "skops").score(FRAME.to_numpy()).T
    assert adjusted_rand_score(GROUPS, labels) == 1.0
    assert (far < 1e-6).sum() == 300
    others, _ = make_moons(100, noise=0.05, random_state=1)
    expected = [
        labels[np.argmin(((X - row) ** 2).sum(axis=1) + 1e9 * (far >= 1e-6))] for row in others
    ]
    if not standardize:
        np.testing.assert_array_equal(
            fitted.scorer.score(others.astype(np.float32))[:, 0], expected
        )


def test_rows_in_no_cluster_are_refused() -> None:
    with pytest.raises(TipcastError, match=r"C003.*100\.0% of the training rows in no cluster"):
        clusters("sklearn.cluster.DBSCAN", {"eps": 0.001}, {}).fit(Split([FRAME]), seed=0)


DRAW = np.random.default_rng(0)
SHOPS = pd.DataFrame({"size": DRAW.normal(50, 20, 900), "shop": DRAW.integers(1, 40, 900)}).astype(
    np.float32
)
PRICES = (SHOPS["size"] * 0.3 + (SHOPS["shop"] * 37 % 11) ** 2 + DRAW.random(900)).astype(
    np.float32
)


def by_shop(library: str, training: dict[str, object], **params: object) -> Library:
    reference = f"sklearn.{library}"
    return Library(
        params, training, "cpu", ("shop",), REGRESSION, 0, library=reference, reference=reference
    )


@pytest.mark.parametrize("standardize", [False, True])
def test_categories_are_columns_of_their_own(tmp_path: Path, standardize: bool) -> None:
    """As DictVectorizer makes them; a shop that training rows did not have is in none."""
    estimator = by_shop("linear_model.LinearRegression", {"standardize": standardize})
    estimator.check()
    fitted = estimator.fit(Split([SHOPS[:500], SHOPS[500:]], [PRICES[:500], PRICES[500:]]), seed=0)
    saved = fitted.save(tmp_path)
    new = (
        SHOPS[:50]
        .assign(shop=lambda rows: rows["shop"].where(rows["shop"] < 35, 77))
        .astype(np.float32)
    )
    vectorizer = DictVectorizer()
    rows = vectorizer.fit_transform(SHOPS.assign(shop=SHOPS["shop"].astype(str)).to_dict("records"))
    theirs = LinearRegression().fit(rows, PRICES.astype(float))
    others = vectorizer.transform(new.assign(shop=new["shop"].astype(str)).to_dict("records"))
    expected = theirs.predict(others)
    np.testing.assert_allclose(
        native.load(saved, "skops").score(new.to_numpy()), expected, rtol=1e-4
    )


PLATT = CalibratedClassifierCV(SVC(C=2.0, gamma=0.1), cv=3, ensemble=False)
NEAR = {"n_neighbors": 30, "weights": "distance"}
THEIRS = [
    ("logistic", "classification", None, {"C": 0.5}, LogisticRegression(C=0.5)),
    ("svc", "classification", 900, {"C": 2.0}, PLATT),
    ("knn", "multiclass", 900, NEAR, KNeighborsClassifier(**NEAR)),
    ("knn", "regression", None, NEAR, KNeighborsRegressor(**NEAR)),
]


@pytest.mark.parametrize(
    ("name", "kind", "most", "params", "theirs"),
    THEIRS,
    ids=[f"{name}-{kind}" for name, kind, *_ in THEIRS],
)
def test_a_sample_is_fitted_as_scikit_learn_does(
    client, parts, spec, joined, scattered, tmp_path, name, kind, most, params, theirs
):
    """The same of rows on several workers as of rows in one process, and of the saved file."""
    draw = np.random.default_rng(0)
    target = {
        "multiclass": lambda x: (x["pickup_weekday"] // 3).astype("int32"),
        "regression": lambda x: (x["pickup_hour"] + draw.random(len(x))).astype("float32"),
    }
    parts = [(x, target[kind](x)) if kind in target else (x, y) for x, y in parts]
    classes = 3 if kind == "multiclass" else 0
    estimator = build(spec(name, fit={"rows": most}, **params), "cpu", (), named(kind), classes)
    empty = tuple(side.iloc[:0] for side in parts[0])
    x, y = joined(parts[:3])
    found = estimator.fit_distributed(client, Split(*scattered([empty, *parts[:3]])), seed=5)
    here = estimator.fit(Split(x, y), seed=5)
    at = (
        np.sort(np.random.default_rng(5).choice(len(x), most, replace=False))
        if most
        else slice(None)
    )
    targets = y.to_numpy(float if kind == "regression" else int)
    reference = make_pipeline(StandardScaler(), theirs).fit(x.to_numpy(float)[at], targets[at])
    held_out = parts[3][0].to_numpy()
    expected = (
        reference.predict(held_out) if kind == "regression" else reference.predict_proba(held_out)
    )
    expected = expected[:, 1] if kind == "classification" else expected
    saved = found.save(tmp_path)
    for scorer in (found.scorer, here.scorer, native.load(saved, "skops")):
        apart = np.abs(scorer.score(held_out) - expected)
        assert np.mean(apart < 1e-6) > 0.99, "neighbours at the same distance are either's choice"
    assert found.info["rows"] == here.info["rows"] == (most or len(x))


def test_values_are_learned_as_they_are(spec) -> None:
    """Rows are float32: values of a float64 target keep their digits beside them."""
    draw = np.random.default_rng(0)
    x = pd.DataFrame(draw.normal(size=(200, 3)).astype(np.float32), columns=["a", "b", "c"])
    y = pd.Series(1000 + draw.random(200))
    fitted = build(spec("extra_trees"), "cpu", (), REGRESSION).fit(Split(x, y), seed=0)
    theirs = ExtraTreesRegressor(100, max_depth=12, random_state=0).fit(x.to_numpy(), y.to_numpy())
    found = fitted.scorer.score(x.to_numpy())
    np.testing.assert_allclose(found, theirs.predict(x.to_numpy()), rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "ones", "message"),
    [
        ("logistic", 0, "D015.*1 of 2 classes have training rows"),
        ("svc", 2, "C003.*rejects the training rows.*3-fold"),
        ("knn", 20, "C003.*rejects the training rows.*n_neighbors = 100, n_samples_fit = 40"),
    ],
)
def test_rows_that_a_library_cannot_fit_are_refused(
    client, rows, spec, scattered, name, ones, message
):
    x, _ = rows(40, 0)
    y = pd.Series(np.arange(40) < ones, dtype="int32")
    with pytest.raises(TipcastError, match=message):
        build(spec(name), "cpu").fit_distributed(client, Split(*scattered([(x, y)])), seed=0)


def test_a_class_whose_file_nothing_would_load_is_refused_before_the_fit() -> None:
    """Skops trusts none of a Gaussian process' kernels, with which its file would be loaded."""
    gaussian = "sklearn.gaussian_process.GaussianProcessClassifier"
    model = Library({}, {}, "cpu", (), BINARY, 2, library=gaussian, reference=gaussian)
    says = (
        r"C003. model.classes: its file would contain .*kernels\.RBF, which cannot be loaded\. "
        "Fix: use another class"
    )
    with pytest.raises(TipcastError, match=says):
        model.check()


def test_a_sample_is_the_same_however_the_rows_are_parted() -> None:
    (whole,) = chosen_by_part([800], 200, 3)
    for sizes in ([100, 0, 1, 549, 150], [799, 1]):
        pairs = zip(np.cumsum([0, *sizes]), chosen_by_part(sizes, 200, 3), strict=False)
        np.testing.assert_array_equal(
            np.concatenate([start + chosen for start, chosen in pairs]), whole
        )


@pytest.mark.parametrize(
    ("name", "kind"),
    [("incremental", "classification"), ("linear_dask", "regression"), ("kmeans", "clustering")],
)
def test_categories_of_rows_on_several_workers_are_columns_too(
    client, parts, spec, scattered, joined, name, kind
):
    """The weekday, with a missing one: the same model as of all rows in one process."""
    gaps = [
        (x.assign(pickup_weekday=x["pickup_weekday"].where(x["pickup_weekday"] > 0)), y)
        for x, y in parts
    ]
    if kind == "regression":
        gaps = [
            (x, (x["pickup_hour"] + x["pickup_weekday"].fillna(3) % 2).astype("float32"))
            for x, _ in gaps
        ]
    estimator = build(spec(name, fit={"rows": None}), "cpu", ("pickup_weekday",), named(kind))
    settings = {"standardize": True, **estimator.fit_settings}
    estimator = replace(estimator, fit_settings=settings)

    x, y = joined(gaps[:3])
    targets = (None, None) if kind == "clustering" else (y, scattered(gaps[:3])[1])
    together = estimator.fit_distributed(client, Split(scattered(gaps[:3])[0], targets[1]), seed=5)
    alone = estimator.fit(Split(x, targets[0]), seed=5)

    held_out = gaps[3][0].to_numpy()
    scores = together.scorer.score(held_out)
    expected = alone.scorer.score(held_out)
    if kind == "clustering":
        assert scores[:, 1].mean() == pytest.approx(expected[:, 1].mean(), rel=0.05)
    elif name == "incremental":
        assert np.corrcoef(scores, expected)[0, 1] > 0.9
    else:
        np.testing.assert_allclose(scores, expected, atol=0.02)
    encoded = together.scorer.one_hot_rows(held_out)
    assert encoded.shape == (len(held_out), held_out.shape[1] + 5)


CODES = pd.DataFrame({"size": np.arange(4200.0), "code": np.arange(4200)}).astype(np.float32)


def by_code(library: str) -> Library:
    reference = f"sklearn.{library}"
    return Library({}, {}, "cpu", ("code",), REGRESSION, 0, library=reference, reference=reference)


def test_more_values_than_dense_columns_are_refused_with_their_number() -> None:
    neighbors = by_code("neighbors.KNeighborsRegressor")
    with pytest.raises(TipcastError, match=r"C003.*4,200 values of code .*at most 4,096.*none"):
        neighbors.fit(Split([CODES], [CODES["size"]]), seed=0)


def test_any_number_of_values_fits_where_columns_are_sparse() -> None:
    fitted = by_code("linear_model.Ridge").fit(Split([CODES], [CODES["size"]]), seed=0)
    assert fitted.scorer.model[-1].n_features_in_ == 4201
