"""Every model in conf/model, every cell of its table: fits, scores, saves, and explains itself."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import yaml

from tipcast.config.location import conf_dir
from tipcast.config.schema import ModelSpec
from tipcast.estimators import native
from tipcast.estimators.build import build, check

MODELS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((conf_dir() / "model").glob("*.yaml"))}
CELLS = [(name, reach) for name, shipped in MODELS.items() for reach in shipped.get("cpu") or {}]


def _spec(name: str) -> ModelSpec:
    shipped = dict(MODELS[name])
    shipped.pop("defaults")
    return ModelSpec(**{**shipped, "params": {**shipped["params"], **shipped["tiny"]}})


def _rows(n: int, seed: int) -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 20, (n, 3)).astype(np.float32)
    y = (rng.random(n) < (x[:, 0] + 2 * x[:, 2]) / 60).astype(np.int32)
    return pd.DataFrame(x, columns=["a", "b", "c"]), pd.Series(y, name="label")


def test_models_are_found():
    assert {"xgboost", "xgboost_forest", "random_forest", "logistic"} <= set(MODELS)
    assert len(CELLS) >= 2 * 4  # a table that lost its cells would skip every test below


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_complete(name):
    shipped = MODELS[name]
    assert shipped["name"] == name
    assert shipped["params"]
    assert shipped["tiny"]
    assert set(shipped["tiny"]) <= set(shipped["params"])
    assert shipped.get("cpu") or shipped.get("gpu")
    for axis, range_ in shipped["space"].items():
        assert axis in shipped["params"]
        (low, high) = next(iter(range_.values()))
        assert low < high


@pytest.mark.parametrize(("name", "reach"), CELLS)
def test_a_cell_keeps_the_contract(client, tmp_path, name, reach):
    model = _spec(name)
    check(model, "cpu", reach)
    estimator = build(model, "cpu", reach)
    parts = [_rows(n, seed) for seed, n in enumerate((400, 250, 300))]
    if reach == "distributed":
        futures = [[client.scatter(half, hash=False) for half in part] for part in parts]
        x, y = [part[0] for part in futures], [part[1] for part in futures]
        first, again = (estimator.fit(client, x[:2], y[:2], (x[2:], y[2:]), seed=1) for _ in range(2))
    else:
        x, y = pd.concat([part[0] for part in parts[:2]]), pd.concat([part[1] for part in parts[:2]])
        first, again = (estimator.fit(x, y, parts[2], seed=1) for _ in range(2))
    held_out, labels = parts[2]
    scores = first.scorer.score(held_out)
    assert scores.shape == (300,)
    assert scores.min() >= 0
    assert scores.max() <= 1
    assert scores[labels == 1].mean() > scores[labels == 0].mean() + 0.02  # learnt something
    np.testing.assert_array_equal(scores, again.scorer.score(held_out))  # the seed decides
    saved = first.save(tmp_path)
    assert saved.path.is_file()
    np.testing.assert_allclose(native.load(saved.path, saved.format).score(held_out.to_numpy()), scores, atol=1e-6)
    assert list(first.importance) == ["a", "b", "c"]
    assert sum(first.importance.values()) == pytest.approx(1)
    assert max(first.importance, key=lambda feature: first.importance[feature]) == "c"
    assert first.info["device"] == "cpu"
    assert all(np.isfinite(values).all() for split in first.history.values() for values in split.values())
