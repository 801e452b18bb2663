"""Every model in conf/model, every cell of its table: fits, scores, saves, and explains itself."""

import pickle

import numpy as np
import pandas as pd
import pytest
import yaml

from tipcast.compute.base import to_host
from tipcast.config.conf_files import conf_dir
from tipcast.config.schema import ModelSpec
from tipcast.datasets.rows import collection
from tipcast.models import native
from tipcast.models.base import Split
from tipcast.models.build import build
from tipcast.models.fit import every_way
from tipcast.tasks.kinds import named
from tipcast.tracking.portable import TOLERANCE

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
        each
        for each in MARKS
        if shipped.get(each) or (shipped.get("classes") or {}).get(kind, {}).get(each)
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
    for axis, range_ in shipped["space"].items():
        assert axis in shipped["params"]
        values = range_ if isinstance(range_, list) else next(iter(range_.values()))
        assert len(set(values)) > 1
        assert isinstance(range_, list) or values[0] < values[1]


@pytest.mark.parametrize(("table", "name", "kind", "reach"), CELLS)
def test_a_cell_keeps_the_contract(request, placed, tmp_path, table, name, kind, reach):
    session = request.getfixturevalue(f"{table}_session")
    client = session.client
    model = _spec(name)
    build(model, session.device, kind=named(kind)).check()
    estimator = build(model, session.device, (), named(kind), 3 if kind == "multiclass" else 0)
    parts = [_rows(n, seed, kind) for seed, n in enumerate((120, 80, 300))]
    held_out, labels = parts[2]
    values = held_out.to_numpy()
    values.flags.writeable = False
    if reach == "distributed":
        sides = placed(session, parts)
        train, validation = (
            [collection(side[part]) for side in sides] for part in (slice(2), slice(2, None))
        )
        if kind == "clustering":
            train[1] = validation[1] = None
        first, again = (
            estimator.fit_distributed(client, Split(*train, tuple(validation)), seed=1)
            for _ in range(2)
        )
    else:
        joined = tuple(
            pd.concat([part[side] for part in parts[:2]], ignore_index=True) for side in (0, 1)
        )
        x, y = placed(session, [joined])
        first, again = (
            client.submit(
                _fit_here, estimator, x[0], None if kind == "clustering" else y[0], shared
            ).result()
            for shared in (False, True)
        )

    # as an evaluation does: in another process, rows that lie on the device
    def score(pickled, values, frames):
        scorer = pickle.loads(pickled)
        return [to_host(scorer.score(frames.xp.asarray(part))) for part in (values, values[:0])]

    (scores, of_none), (scores_again, _) = (
        client.submit(
            score, pickle.dumps(fitted.scorer), values, session.frames, pure=False
        ).result()
        for fitted in (first, again)
    )
    assert of_none.shape == (0, *scores.shape[1:])
    _check_predictions(kind, scores, labels)
    # of one seed cuML's workers find other optima
    if (table, kind, reach) == ("gpu", "clustering", "distributed"):
        assert scores_again[:, 1].mean() == pytest.approx(scores[:, 1].mean(), rel=0.1)
    else:
        # The seed decides; threads add up the rows of a cluster in any order.
        exact = table == "cpu" and kind != "clustering"
        np.testing.assert_allclose(scores, scores_again, rtol=0, atol=0 if exact else 1e-6)
    saved = first.save(tmp_path)
    assert saved.is_file()
    tolerance = 1e-6 if table == "cpu" else TOLERANCE
    np.testing.assert_allclose(
        native.load(saved, first.format).score(values), scores, atol=tolerance
    )
    ways = every_way(client, first, saved, values)
    assert list(ways) == ["estimator", *native.available(first.format)]
    for way, found in ways.items():
        np.testing.assert_allclose(found, scores, atol=tolerance, err_msg=way)
    if first.importance:
        assert list(first.importance) == ["a", "b", "c"]
        assert sum(first.importance.values()) == pytest.approx(1)
        assert max(first.importance, key=lambda feature: first.importance[feature]) == "c"
    assert first.info["device"].partition(":")[0] == session.device
    assert all(
        np.isfinite(values).all() for split in first.history.values() for values in split.values()
    )


def _fit_here(estimator, x, y, shared):
    rows = Split(x, y, (x, y))
    return estimator.fit(estimator.prepared(rows, threads=2) if shared else rows, seed=1)
