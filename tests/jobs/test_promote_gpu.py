"""`tipcast promote backend=gpu`: the same verdict as on the CPU, for models of other features and libraries."""

from __future__ import annotations

from pathlib import Path

import mlflow
import pytest
from tests.jobs.test_gpu import said_by

ROWS = "data.rows=20000"


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu_session")  # for its skip, or failure, without a GPU
def test_a_gpu_says_what_the_cpu_does(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for words in (
        ("model=random_forest", "task.features=[trip_distance,PULocationID]"),
        ("model=xgboost",),
        ("model=svc",),
        ("model=knn",),
    ):
        said_by(tmp_path, "train", "backend=gpu", "tracking.register=tips", ROWS, *words)
    client = mlflow.MlflowClient(store)
    for holder, candidate in (("1", "2"), ("3", "4")):
        words = (f"model_uri=models:/tips/{candidate}", "margin=0.5")
        client.set_registered_model_alias("tips", "champion", holder)
        on_gpu = said_by(tmp_path, "promote", "backend=gpu", *words)
        assert on_gpu["moved"]
        client.set_registered_model_alias("tips", "champion", holder)
        on_cpu = said_by(tmp_path, "promote", *words)
        for name, value in on_cpu["metrics"].items():
            assert on_gpu["metrics"][name] == pytest.approx(value, abs=1e-4), name
