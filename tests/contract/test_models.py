"""Every model in conf/model, every cell of its table: fits, scores, saves, and explains itself."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import yaml

from tipcast.backends.host import to_host
from tipcast.config.conf_files import conf_dir
from tipcast.config.schema import ModelSpec
from tipcast.data.rows import collection
from tipcast.estimators import native
from tipcast.estimators.build import build, check
from tipcast.estimators.predict import every_way
from tipcast.tracking.portable import TOLERANCE

MODELS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((conf_dir() / "model").glob("*.yaml"))}
CELLS = [
    pytest.param(table, name, reach, id=f"{table}-{name}-{reach}", marks=[pytest.mark.gpu] if table == "gpu" else [])
    for table in ("cpu", "gpu")
    for name, shipped in MODELS.items()
    for reach in shipped.get(table) or {}
]


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
    assert {"xgboost", "xgboost_forest", "random_forest", "logistic", "svc", "knn"} <= set(MODELS)
    assert len(CELLS) >= 2 * 2 * 6  # a table that lost its cells would skip every test below


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
        if isinstance(range_, list):
            assert len(set(range_)) > 1
            continue
        (low, high) = next(iter(range_.values()))
        assert low < high


@pytest.mark.parametrize(("table", "name", "reach"), CELLS)
def test_a_cell_keeps_the_contract(request, placed, tmp_path, table, name, reach):
    session = request.getfixturevalue(f"{table}_session")
    client, model = session.client, _spec(name)
    check(model, session.device, reach)
    estimator = build(model, session.device, reach)
    parts = [_rows(n, seed) for seed, n in enumerate((400, 250, 300))]
    held_out, labels = parts[2]
    if reach == "distributed":
        sides = placed(session, parts)
        train, validation = ([collection(side[part]) for side in sides] for part in (slice(2), slice(2, None)))
        first, again = (estimator.fit(client, *train, tuple(validation), seed=1) for _ in range(2))
    else:
        joined = tuple(pd.concat([part[side] for part in parts[:2]], ignore_index=True) for side in (0, 1))
        x, y = placed(session, [joined])
        first, again = (
            client.submit(lambda x, y: estimator.fit(x, y, (x, y), seed=1), x[0], y[0], pure=False).result()
            for _ in range(2)
        )

    def score(scorer, values, frames):  # as an evaluation does: rows that lie on the device
        return to_host(scorer.score(frames.xp.asarray(values)))

    scores, scores_again = (
        client.submit(score, fitted.scorer, held_out.to_numpy(), session.frames, pure=False).result()
        for fitted in (first, again)
    )
    assert scores.shape == (300,)
    assert scores.min() >= 0
    assert scores.max() <= 1
    assert scores[labels == 1].mean() > scores[labels == 0].mean() + 0.02  # learnt something
    np.testing.assert_allclose(scores, scores_again, rtol=0, atol=0 if table == "cpu" else 1e-6)  # the seed decides
    saved = first.save(tmp_path)
    assert saved.path.is_file()
    tolerance = 1e-6 if table == "cpu" else TOLERANCE
    np.testing.assert_allclose(native.load(saved.path, saved.format).score(held_out.to_numpy()), scores, atol=tolerance)
    for way, found in every_way(client, first.scorer, saved, held_out.to_numpy()).items():
        np.testing.assert_allclose(found, scores, atol=tolerance, err_msg=way)
    assert list(first.importance) == ["a", "b", "c"]
    assert sum(first.importance.values()) == pytest.approx(1)
    assert max(first.importance, key=lambda feature: first.importance[feature]) == "c"
    assert first.info["device"].partition(":")[0] == session.device
    assert all(np.isfinite(values).all() for split in first.history.values() for values in split.values())


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_every_cell(name):
    assert {(table, reach) for table in ("cpu", "gpu") for reach in MODELS[name][table]} == {
        (table, reach) for table in ("cpu", "gpu") for reach in ("distributed", "local")
    }
