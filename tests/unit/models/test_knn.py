"""The votes are scikit-learn's; ties are shared out evenly, so that order and parts of the rows make no difference."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tipcast.config.errors import TipcastError
from tipcast.models import knn, native_knn
from tipcast.models.base import Split
from tipcast.models.build import build


@pytest.fixture(scope="module")
def apart():
    """Rows of which no two are as far from a third: (x, labels), and others to score."""
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(2500, 5)) * [1, 5, 20, 0.1, 300] + [0, 1, 2, 3, 1000]).astype(np.float32)
    y = (rng.random(2500) < 1 / (1 + np.exp(-x[:, 0] - x[:, 1] / 5))).astype(np.int32)
    return (pd.DataFrame(x[:1500], columns=list("abcde")), pd.Series(y[:1500])), x[1500:]


def theirs(scorer: native_knn.KnnScorer, x: np.ndarray, y: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return scikit-learn's probabilities by the same standardised rows."""
    own = KNeighborsClassifier(scorer.n_neighbors, weights=scorer.weights, algorithm="kd_tree")
    own.fit((x.astype(float) - scorer.mean) / scorer.scale, y)
    return own.predict_proba((values.astype(float) - scorer.mean) / scorer.scale)[:, 1]


@pytest.mark.parametrize("weights", ["uniform", "distance"])
@pytest.mark.parametrize("number", [1, 2, 30, 1490, 1500])
def test_probabilities_are_scikit_learns(apart, spec, weights, number):
    (x, y), values = apart
    scorer = build(spec("knn", n_neighbors=number, weights=weights), "cpu").fit(Split(x, y), seed=0).scorer
    values = np.concatenate([values, x.to_numpy()[:50]])  # rows at distance 0 of themselves
    expected = theirs(scorer, x.to_numpy(), y.to_numpy(), values)
    np.testing.assert_allclose(scorer.score(values), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_both_reaches_keep_the_same_sample(client, parts, spec, joined, scattered, weights):
    x, y = joined(parts[:3])
    model = spec("knn", fit={"rows": 900}, weights=weights)
    here = build(model, "cpu").fit(Split(x, y), seed=5)
    everywhere = build(model, "cpu").fit_distributed(client, Split(*scattered(parts[:3])), seed=5)
    assert here.info["rows"] == everywhere.info["rows"] == 900
    for name, value in here.model.arrays().items():
        np.testing.assert_array_equal(everywhere.model.arrays()[name], value, err_msg=name)
    at = np.sort(np.random.default_rng(5).choice(len(x), 900, replace=False))
    np.testing.assert_allclose(
        here.scorer.score(parts[3][0]),
        theirs(here.scorer, x.to_numpy()[at], y.to_numpy()[at], parts[3][0].to_numpy()),
        rtol=0,
        atol=1 / 100,
    )
    other = build(model, "cpu").fit(Split(x, y), seed=6)
    assert (other.scorer.score(parts[3][0]) != here.scorer.score(parts[3][0])).any()


def test_the_rows_of_all_workers_vote(client, parts, spec, scattered):
    """As scikit-learn's neighbours of all of them do, ties aside."""
    found = build(spec("knn", fit={"rows": None}), "cpu").fit_distributed(client, Split(*scattered(parts[:3])), seed=5)
    x, y = (pd.concat([part[side] for part in parts[:3]]).to_numpy() for side in (0, 1))
    assert found.info["rows"] == len(x)
    others = parts[3][0].to_numpy()
    z = StandardScaler().fit(x.astype(float))
    number = found.model.n_neighbors
    own = KNeighborsClassifier(number, algorithm="kd_tree").fit(z.transform(x), y)
    far, _ = own.kneighbors(z.transform(others), number + 1)
    apart = ~np.isclose(far[:, -1], far[:, -2], rtol=1e-9)
    assert apart.sum() > 10
    np.testing.assert_allclose(
        found.scorer.score(parts[3][0])[apart], own.predict_proba(z.transform(others))[apart, 1], atol=1e-9
    )


@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_a_tie_is_the_mean_over_every_choice(weights):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 5, (400, 2)).astype(float)  # sixteen rows at each of 25 points, on average
    y = (rng.random(400) < 0.2 + 0.1 * x[:, 0]).astype(int)
    values = np.concatenate([x[:20], rng.integers(0, 5, (60, 2)) + 0.5]).astype(np.float32)
    scorer = knn.kept(x, y, 23, weights)
    assert len(scorer.rows) == 25
    squares = (((values[:, None] - x) / scorer.scale) ** 2).sum(axis=2).round(9)  # alike where they should be
    found = []
    for _ in range(600):
        at = rng.permutation(400)
        nearest = at[np.argsort(squares[:, at], axis=1, kind="stable")[:, :23]]
        far = np.sqrt(np.take_along_axis(squares, nearest, axis=1))
        weigh = np.ones_like(far) if weights == "uniform" else 1 / np.maximum(far, 1e-12)  # 0 outweighs all others
        found.append((weigh * y[nearest]).sum(axis=1) / weigh.sum(axis=1))
    spread = np.std(found, axis=0)
    assert (spread > 0.01).sum() > 40
    error = np.abs(np.mean(found, axis=0) - scorer.score(values))
    assert (error <= 5 * spread / np.sqrt(600) + 1e-9).all()


@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_the_order_of_the_rows_makes_no_difference(parts, weights):
    x, y = parts[1][0].to_numpy().astype(float), parts[1][1].to_numpy()
    at = np.random.default_rng(2).permutation(len(x))
    values = parts[3][0].to_numpy()
    first, other = knn.kept(x, y, 40, weights), knn.kept(x[at], y[at], 40, weights)
    np.testing.assert_allclose(first.score(values), other.score(values), rtol=0, atol=1e-12)


@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_more_are_looked_up_where_all_are_as_near_as_the_last(weights):
    angles = np.arange(64) * 2 * np.pi / 64
    ring = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    x = np.concatenate([ring, 3 * ring])
    labels = np.concatenate([np.arange(64) < 16, np.ones(64, dtype=bool)]).astype(int)
    scorer = knn.kept(x, labels, 10, weights)
    middle = np.zeros((1, 2), dtype=np.float32)
    assert native_knn.SPARE + 10 < 64
    np.testing.assert_allclose(scorer.score(middle), [0.25], rtol=0, atol=1e-9)  # of the ring's 64, not of 26 or of all
    scorer = knn.kept(x, labels, 70, "uniform")
    np.testing.assert_allclose(scorer.score(middle), [(16 + 6) / 70], rtol=0, atol=1e-9)


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_memory_is_bounded_whatever_the_rows(parts, monkeypatch, threads):
    x, y = parts[0][0].to_numpy().astype(float), parts[0][1].to_numpy()
    scorer = knn.kept(x, y, 20, "distance")
    scorer.threads = threads
    values = parts[3][0].to_numpy()
    whole, asked = scorer.score(values), []
    votes = native_knn.votes

    def watched(distances, *more):
        asked.append(distances.shape)
        return votes(distances, *more)

    monkeypatch.setattr(native_knn, "votes", watched)
    monkeypatch.setattr(native_knn, "BLOCK", 700)
    np.testing.assert_array_equal(scorer.score(values), whole)
    assert max(rows * number for rows, number in asked) <= 700
    assert sum(rows for rows, number in asked if number == 36) == len(values)


def test_rows_that_are_not_finite_have_no_score(parts):
    scorer = knn.kept(parts[1][0].to_numpy().astype(float), parts[1][1].to_numpy(), 30, "distance")
    values = parts[3][0].to_numpy()[:50].copy()
    expected = scorer.score(values)
    values[[3, 20], [1, 6]] = np.nan, np.inf
    bad = np.isin(np.arange(50), [3, 20])
    assert np.isnan(scorer.score(values)[bad]).all()
    np.testing.assert_array_equal(scorer.score(values)[~bad], expected[~bad])


@pytest.mark.parametrize("weights", ["uniform", "distance"])
@pytest.mark.parametrize("kind", ["multiclass", "regression"])
def test_more_classes_and_values_are_scikit_learns(apart, spec, kind, weights):
    (x, _), values = apart
    signal = x["a"] + x["b"] / 5
    y = pd.cut(signal, [-np.inf, -1, 1, np.inf], labels=False) if kind == "multiclass" else 40 + signal
    y = y.astype("int32" if kind == "multiclass" else "float32")
    estimator = build(spec("knn", n_neighbors=30, weights=weights), "cpu", kind=kind, classes=3)
    fitted = estimator.fit(Split(x, y), seed=0)
    neighbours = KNeighborsRegressor if kind == "regression" else KNeighborsClassifier
    own = make_pipeline(StandardScaler(), neighbours(30, weights=weights, algorithm="kd_tree"))
    own.fit(x.to_numpy().astype(float), y.astype(float) if kind == "regression" else y)
    values = np.concatenate([values, x.to_numpy()[:50]])  # rows at distance 0 of themselves
    expected = (own.predict_proba if kind == "multiclass" else own.predict)(values.astype(float))
    np.testing.assert_allclose(fitted.scorer.score(values), expected, rtol=1e-9)
    if kind == "multiclass":
        with pytest.raises(TipcastError, match="D015.*of 3 of 4 classes"):
            build(spec("knn"), "cpu", kind=kind, classes=4).fit(Split(x, y), seed=0)


def test_rows_that_are_the_same_are_kept_once(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 3, (5000, 2)).astype(float)
    y = rng.integers(0, 2, 5000)
    scorer = knn.kept(x, y, 4000, "uniform")
    assert len(scorer.rows) == 9
    assert scorer.counts.sum() == 5000
    assert scorer.sums.sum() == y.sum()


def test_a_saved_file_says_all_and_no_more(parts, spec, tmp_path):
    fitted = build(spec("knn", weights="distance", n_neighbors=7), "cpu").fit(Split(*parts[1]), seed=0)
    saved = fitted.save(tmp_path)
    assert saved.format == native_knn.FORMAT
    with np.load(saved.path, allow_pickle=False) as arrays:
        assert {name: str(arrays[name].dtype.kind) for name in arrays} == {
            "rows": "f", "counts": "i", "sums": "f", "n_neighbors": "i", "weights": "U", "mean": "f", "scale": "f"
        }  # fmt: skip
        changed = {name: arrays[name] for name in arrays}
    again = native_knn.load(saved.path, saved.format)
    np.testing.assert_array_equal(again.score(parts[3][0]), fitted.scorer.score(parts[3][0]))
    with pytest.raises(ValueError, match="npz-svc"):
        native_knn.load(saved.path, "npz-svc")
    for name, value in (("weights", "cubic"), ("n_neighbors", 0), ("n_neighbors", 1501)):
        np.savez(saved.path, **changed | {name: value})
        with pytest.raises(ValueError, match="neighbours, weighted .* of 1500 rows"):
            native_knn.load(saved.path, saved.format)
    np.savez(saved.path, **{native_knn.FORMER if name == "sums" else name: value for name, value in changed.items()})
    np.testing.assert_array_equal(
        native_knn.load(saved.path, saved.format).score(parts[3][0]), again.score(parts[3][0])
    )


@pytest.mark.parametrize(
    ("labels", "number", "expected"),
    [
        (np.zeros(400), 100, "D015.*the 400 rows that knn keeps are of 1 of 2 classes"),
        (np.arange(400) < 200, 500, "C003.*500 neighbours, but there are 400 training rows"),
    ],
)
def test_a_sample_that_cannot_vote_is_refused(client, rows, spec, scattered, labels, number, expected):
    x, _ = rows(400, 0)
    y = pd.Series(labels, dtype="int32")
    with pytest.raises(TipcastError, match=expected):
        build(spec("knn", n_neighbors=number), "cpu").fit_distributed(client, Split(*scattered([(x, y)])), seed=0)
