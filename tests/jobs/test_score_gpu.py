"""`tipcast score backend=gpu`: the scores of a model that was trained on a GPU are the same on either device."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

ROWS = {"svc": 100_000, "knn": 100_000}
"""Of trips to score, where fewer than a million: the CPU takes a minute for more."""


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("model", ["xgboost", "random_forest", "xgboost_forest", "logistic", "svc", "knn"])
def test_both_devices_score_alike(job: Callable[..., Any], tmp_path: Path, model: str) -> None:
    trees = ["model.params.n_estimators=50"] if model in ("xgboost", "random_forest", "xgboost_forest") else []
    name = f"gpu_{model}"
    job("train", "backend=gpu", f"model={model}", *trees, "data.rows=200000", f"tracking.register={name}")
    rows = ROWS.get(model, 1_000_000)
    job("prepare", f"data.rows={rows}", "data.months=2019-04", "out=trips", "row_group_rows=60000")
    (file,) = (tmp_path / "trips").glob("*.parquet")
    found = {}
    for device in ("cpu", "gpu"):
        ended = job("score", f"backend={device}", f"model_uri=models:/{name}/1", "input=trips", f"output=on_{device}")
        found[device] = pq.read_table(tmp_path / f"on_{device}" / file.name)
        assert ended.said["rows"] == found[device].num_rows == pq.read_metadata(file).num_rows
        manifest = json.loads((tmp_path / f"on_{device}" / "_manifest.json").read_text())
        assert manifest["device"] == device
    kept = pq.read_schema(file).names
    assert found["gpu"].select(kept).equals(found["cpu"].select(kept))
    apart = np.abs(found["gpu"]["probability"].to_numpy() - found["cpu"]["probability"].to_numpy())
    assert apart.max() <= 1e-5
    other = found["gpu"]["prediction"].to_numpy() != found["cpu"]["prediction"].to_numpy()
    threshold = manifest["model"]["threshold"]
    assert (np.abs(found["cpu"]["probability"].to_numpy()[other] - threshold) <= 1e-5).all()
