"""Training for every kind of task: what the run records is the kind's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest

from tipcast.evaluation import drift
from tipcast.evaluation.base import evaluator

QUICK = (
    "cluster.processes=false", "cluster.n_workers=1", "cluster.threads_per_worker=2", "print=json",
    "cluster.performance_report=false", "tracking.system_metrics=false",
)  # fmt: skip
KINDS = {
    "regression": ("task=tip_amount", "data.rows=6000", "model=xgboost", "model.params.n_estimators=20"),
    "multiclass": ("data=blobs", "task=target", "data.rows=4000", "data.test_rows=1000", "model=xgboost",
                   "data.cluster_std=4", "model.params.n_estimators=20"),
    "clustering": ("data=blobs", "task=clusters", "data.rows=4000", "data.test_rows=1000", "model=kmeans"),
}  # fmt: skip
PLOTS = {
    "regression": {"predicted", "predicted_small", "residuals"},
    "multiclass": {"confusion", "confusion_small", "classes"},
    "clustering": {"clusters", "clusters_small", "cluster_rows"},
}
Job = Callable[..., Any]


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_run_records_what_its_kind_is_judged_by(job: Job, store: str, kind: str) -> None:
    ended = job("train", *QUICK, *KINDS[kind])
    judge, metrics = evaluator(kind), ended.run.data.metrics
    assert list(ended.said["metrics"])[0] == f"test/{judge.headline.name}"
    for split in ("test", "validation"):
        assert {f"{split}/{each.name}" for each in judge.metrics} <= set(metrics)
        value = metrics[f"{split}/{judge.headline.name}"]
        assert metrics[f"{split}/{judge.headline.name}_low"] < value < metrics[f"{split}/{judge.headline.name}_high"]
    assert "test/threshold" not in metrics
    client = mlflow.MlflowClient(store)
    found = {Path(file.path).stem for file in client.list_artifacts(ended.run.info.run_id, "plots")}
    assert found >= PLOTS[kind]
    model = Path(mlflow.artifacts.download_artifacts(ended.said["model_uri"], tracking_uri=store))
    manifest = json.loads((model / "artifacts" / "manifest.json").read_text())
    note = ended.run.data.tags["mlflow.note.content"]
    title = f"### {manifest['model']}: test {judge.headline.title} "
    assert note.startswith(title + f"{metrics[f'test/{judge.headline.name}']:.4f}")
    assert judge.interval_remark in note
    assert manifest["task"]["kind"] == kind
    assert manifest["threshold"] is None
    profile = manifest["profile"]
    assert sum(profile["score"]["shares"]) == pytest.approx(1)
    assert set(profile["features"]) == set(manifest["features"])
    now = {name: np.asarray(each["shares"]) * profile["rows"] for name, each in profile["features"].items()}
    same = np.asarray(profile["score"]["histogram"]) * profile["score"]["rows"]
    moved = drift.drifts(
        profile, {name: np.round(each).astype(int) for name, each in now.items()}, same.round().astype(int)
    )
    assert {each.verdict for each in moved} == {"little"}
    assert max(each.psi for each in moved) < 1e-6
