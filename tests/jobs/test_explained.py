"""What a training's run shows of single rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow


def test_contributions_are_drawn(job: Callable[..., Any], store: str) -> None:
    client, small = mlflow.MlflowClient(store), ("data.rows=2000", "model.params.n_estimators=4")
    for model, drawn in {"xgboost": True, "random_forest": False}.items():
        run_id = job("train", f"model={model}", *small).said["run_id"]
        pictures = {Path(file.path).stem for file in client.list_artifacts(run_id, "plots")}
        assert ("contributions" in pictures) == drawn
