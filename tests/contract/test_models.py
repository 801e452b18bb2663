"""Every model in conf/model, every cell of its table: fits, scores, saves, and explains itself."""

import functools
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from tipcast.compute.base import to_host
from tipcast.config.conf_files import conf_dir
from tipcast.config.schema import ModelSpec
from tipcast.models import native
from tipcast.models.base import Split
from tipcast.models.build import build
from tipcast.models.fit import score_every_way
from tipcast.tasks.kinds import named
from tipcast.tracking.portable_model import TOLERANCE

MODELS = {
    path.stem: yaml.safe_load(path.read_text())
    for path in sorted((conf_dir() / "model").glob("*.yaml"))
}
REACHES = ("distributed", "local")


MARKS = {"cpu": [], "gpu": [pytest.mark.gpu]}


def _tables(name: str, kind: str) -> list[str]:
    """Devices that a model has a class for."""
    shipped = MODELS[name]
    return [
        device
        for device in MARKS
        if shipped.get(device) or (shipped.get("classes") or {}).get(kind, {}).get(device)
    ]


CELLS = [
    pytest.param(table, name, kind, reach, id=f"{table}-{name}-{kind}-{reach}", marks=MARKS[table])
    for name, shipped in MODELS.items()
    for kind in shipped["kinds"]
    for table in _tables(name, kind)
    for reach in REACHES
]


def _spec(name: str) -> ModelSpec:
    shipped = {key: value for key, value in MODELS[name].items() if key != "defaults"}
    return ModelSpec(**{**shipped, "params": {**shipped["params"], **shipped["tiny"]}})


def _rows(n: int, seed: int, kind: str) -> tuple[pd.DataFrame, pd.Series]:
    """The third feature says most of the target, which is of 0 or more."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 20, (n, 3)).astype(np.float32)
    y = {
        "classification": (rng.random(n) < (x[:, 0] + 2 * x[:, 2]) / 60).astype(np.int32),
        "multiclass": np.digitize(x[:, 0] + 3 * x[:, 2] + rng.normal(0, 5, n), [20, 50]).astype(
            np.int32
        ),
        "regression": (x[:, 0] + 3 * x[:, 2] + rng.random(n)).astype(np.float32),
        "clustering": np.zeros(n, np.float32),
    }[kind]
    return pd.DataFrame(x, columns=["a", "b", "c"]), pd.Series(y, name="target")


def _check_predictions(kind: str, found: np.ndarray, target: pd.Series) -> None:
    """Look for the shape that the kind has, and for something learnt."""
    assert found.shape == (len(target), *{"multiclass": (3,), "clustering": (2,)}.get(kind, ()))
    if kind == "classification":
        assert 0 <= found.min() <= found.max() <= 1
        assert found[target == 1].mean() > found[target == 0].mean() + 0.02
    elif kind == "multiclass":
        np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
        assert (found.argmax(axis=1) == target).mean() > 0.5
    elif kind == "regression":
        assert np.corrcoef(found, target)[0, 1] > 0.3
    else:
        assert set(found[:, 0]) == {0.0, 1.0, 2.0}
        assert (found[:, 1] >= 0).all()


SHIPPED = """xgboost xgboost_forest random_forest logistic svc knn extra_trees
hist_gradient_boosting linear ridge poisson kmeans incremental"""


def test_models_are_found():
    assert set(SHIPPED.split()) <= set(MODELS)
    assert len(CELLS) >= 60  # a table that lost its cells would skip every test below


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_complete(name):
    shipped = MODELS[name]
    assert shipped["name"] == name
    assert shipped["params"]
    assert shipped["tiny"]
    assert set(shipped["tiny"]) <= set(shipped["params"])
    assert all("cpu" in _tables(name, kind) for kind in shipped["kinds"])
    assert shipped.get("classes") or shipped["gpu"]


@pytest.mark.parametrize("name", MODELS)
def test_the_space_of_a_model_has_several_values_of_its_parameters(name):
    shipped = MODELS[name]
    for axis, range_ in shipped["space"].items():
        values = range_ if isinstance(range_, list) else next(iter(range_.values()))
        assert axis in shipped["params"]
        assert len(set(values)) > 1
        assert isinstance(range_, list) or values[0] < values[1]


@dataclass(frozen=True)
class Cell:
    """A model that was fitted twice, from one seed, and is saved; all of it on the host."""

    table: str
    device: str
    """Of the session."""
    fitted: dict[str, Any]
    """Its format, and what it says of its features, its rounds and where it was fitted."""
    labels: pd.Series
    """Of the rows that were held out."""
    scores: np.ndarray
    """Of these rows."""
    scores_again: np.ndarray
    """By the second fit."""
    of_none: np.ndarray
    """Of no rows."""
    saved_scores: np.ndarray
    """By the saved model."""
    ways: dict[str, np.ndarray]
    """Scores by each way in which the saved model can score."""

    @property
    def tolerance(self) -> float:
        return 1e-6 if self.table == "cpu" else TOLERANCE


@pytest.fixture(scope="module")
def cell(request, placed, tmp_path_factory):
    """Fit for a cell of the table, the first time that it is asked for."""

    @functools.cache
    def fit_once(table, name, kind, reach):
        session = request.getfixturevalue(f"{table}_session")
        model = _spec(name)
        build(model, session.device, kind=named(kind)).check()
        classes = 3 if kind == "multiclass" else 0
        estimator = build(model, session.device, (), named(kind), classes)
        fit = _fit_distributed if reach == "distributed" else _fit_local
        parts = [_rows(n, seed, kind) for seed, n in enumerate((120, 80, 300))]
        fits = fit(session, placed, estimator, kind, parts)
        return _cell(session, table, fits, parts[2], tmp_path_factory.mktemp(name))

    return fit_once


def _fit_distributed(session, placed, estimator, kind, parts):
    """Fit twice on the rows of two parts, where they are; the third validates."""
    x, y = placed(session, parts)
    train = [x[:2], y[:2]]
    validation = [x[2:], y[2:]]
    if kind == "clustering":
        train[1] = validation[1] = None
    split = Split(*train, validation=Split(*validation))
    return [estimator.fit_distributed(session.client, split, seed=1) for _ in range(2)]


def _fit_local(session, placed, estimator, kind, parts):
    """Fit twice on the rows of two parts in one place, once as trainings do that share them."""
    joined = tuple(
        pd.concat([part[side] for part in parts[:2]], ignore_index=True) for side in (0, 1)
    )
    x, y = placed(session, [joined])
    target = None if kind == "clustering" else y[0]
    return [
        session.client.submit(_fit_here, estimator, x[0], target, shared).result()
        for shared in (False, True)
    ]


def _fit_here(estimator, x, y, shared):
    rows = Split(x, y, validation=Split(x, y))
    return estimator.fit(estimator.prepared(rows, threads=2) if shared else rows, seed=1)


def _cell(session, table, fits, held_out, folder):
    """Score with both fits, save the first and score with what was saved."""
    client = session.client
    features, labels = held_out
    values = features.to_numpy()
    values.flags.writeable = False

    # as an evaluation does: in another process, rows that lie on the device
    def score(pickled, values, frames):
        scorer = pickle.loads(pickled)
        return [to_host(scorer.score(frames.xp.asarray(part))) for part in (values, values[:0])]

    (scores, of_none), (scores_again, _) = (
        client.submit(
            score, pickle.dumps(fitted.scorer), values, session.frames, pure=False
        ).result()
        for fitted in fits
    )
    first = fits[0]
    saved = first.save(folder)
    assert saved.is_file()
    return Cell(
        table,
        session.device,
        fitted={name: getattr(first, name) for name in ("format", "importance", "history", "info")},
        labels=labels,
        scores=scores,
        scores_again=scores_again,
        of_none=of_none,
        saved_scores=native.load(saved, first.format).score(values),
        ways=score_every_way(client, first, saved, values),
    )


of_each_cell = pytest.mark.parametrize(("table", "name", "kind", "reach"), CELLS)


@of_each_cell
def test_a_cell_keeps_the_contract(cell, table, name, kind, reach):
    """It learns, in the shape of its kind."""
    outcome = cell(table, name, kind, reach)
    assert outcome.of_none.shape == (0, *outcome.scores.shape[1:])
    _check_predictions(kind, outcome.scores, outcome.labels)


@of_each_cell
def test_a_seed_decides_a_fit(cell, table, name, kind, reach):
    outcome = cell(table, name, kind, reach)
    # of one seed cuML's workers find other optima
    if (table, kind, reach) == ("gpu", "clustering", "distributed"):
        mean = outcome.scores[:, 1].mean()
        assert outcome.scores_again[:, 1].mean() == pytest.approx(mean, rel=0.1)
    else:
        # threads add up the rows of a cluster in any order
        exact = table == "cpu" and kind != "clustering"
        np.testing.assert_allclose(
            outcome.scores, outcome.scores_again, rtol=0, atol=0 if exact else 1e-6
        )


@of_each_cell
def test_a_saved_model_scores_as_the_fitted_one_by_every_way(cell, table, name, kind, reach):
    outcome = cell(table, name, kind, reach)
    np.testing.assert_allclose(outcome.saved_scores, outcome.scores, atol=outcome.tolerance)
    assert list(outcome.ways) == ["estimator", *native.available(outcome.fitted["format"])]
    for way, found in outcome.ways.items():
        np.testing.assert_allclose(found, outcome.scores, atol=outcome.tolerance, err_msg=way)


@of_each_cell
def test_the_feature_that_says_most_has_most_importance(cell, table, name, kind, reach):
    importance = cell(table, name, kind, reach).fitted["importance"]
    if importance:
        assert list(importance) == ["a", "b", "c"]
        assert sum(importance.values()) == pytest.approx(1)
        assert max(importance, key=lambda feature: importance[feature]) == "c"


@of_each_cell
def test_a_fit_tells_its_device(cell, table, name, kind, reach):
    outcome = cell(table, name, kind, reach)
    assert outcome.fitted["info"]["device"].partition(":")[0] == outcome.device


@of_each_cell
def test_losses_of_a_fit_are_finite(cell, table, name, kind, reach):
    history = cell(table, name, kind, reach).fitted["history"]
    losses = [values for split in history.values() for values in split.values()]
    assert all(np.isfinite(values).all() for values in losses)
