"""Training for every kind of task: what the run records is the kind's own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
from mlflow.exceptions import MlflowException
from tests.jobs.conftest import MOST_OF_MODEL, of_model

from tipcast.evaluation import evaluator
from tipcast.tasks.kinds import named

FEW = ("model=xgboost", "model.params.n_estimators=20")
BLOBS = ("data=blobs", "data.rows=4000", "data.test_rows=1000")
KINDS = {
    "regression": ("task=tip_amount", "data.rows=6000", *FEW),
    "multiclass": ("task=target", *BLOBS, "data.cluster_std=4", *FEW),
    "clustering": ("task=clusters", *BLOBS, "model=kmeans"),
}
PLOTS = {"regression": "predicted", "multiclass": "confusion", "clustering": "clusters"}
BASELINES = {"regression": ["rmse"], "multiclass": ["accuracy", "log_loss"], "clustering": []}
Job = Callable[..., Any]


def _predicts(kind: str, folder: Path) -> None:
    """What a saved model of the kind can be asked for."""
    model = mlflow.pyfunc.load_model(str(folder))
    rows = model.input_example
    own = model.unwrap_python_model().manifest
    first = model.predict(rows)
    names = own["features"]
    assert list(model.predict(rows, params={"output": "features"})) == names
    if kind == "clustering":
        np.testing.assert_array_equal(
            model.predict(rows, params={"output": "label"}), first["label"]
        )
        x = model.predict(rows, params={"output": "features"}).to_numpy(dtype=np.float64)
        np.testing.assert_array_equal(
            mlflow.sklearn.load_model(str(folder)).predict(x), first["label"]
        )
        refused = {"contributions", "probability"}
    else:
        parts = model.predict(rows, params={"output": "contributions"})
        assert mlflow.xgboost.load_model(str(folder)).feature_names == names
        refused = {"label"} if kind == "regression" else {"value"}
    if kind == "regression":
        assert list(parts) == [*names, "bias"]
        np.testing.assert_allclose(parts.sum(axis=1), first, atol=1e-4)
    if kind == "multiclass":
        classes = own["task"]["classes"]
        assert list(parts) == [f"{each}: {name}" for each in classes for name in [*names, "bias"]]
        margin = parts.to_numpy().reshape(len(rows), len(classes), -1).sum(axis=2)
        odds = np.exp(margin - margin.max(axis=1, keepdims=True))
        np.testing.assert_allclose(odds / odds.sum(axis=1, keepdims=True), first, atol=1e-5)
        labels = model.predict(rows, params={"output": "label"})
        assert labels.tolist() == first.to_numpy().argmax(axis=1).tolist(), (
            "blobs' labels are numbers"
        )
    for output in refused:
        with pytest.raises(MlflowException, match=f"output '{output}' is none of this"):
            model.predict(rows, params={"output": output})


def _evaluated(folder: Path, store: str) -> None:
    """MLflow's own evaluation of values."""
    mlflow.set_tracking_uri(store)
    model = mlflow.pyfunc.load_model(str(folder))
    rows = model.input_example
    rows = rows.loc[rows.index.repeat(4)].reset_index(drop=True)
    settings = {"model_type": "regressor", "evaluators": "regressor"}  # SHAP's takes numbers alone
    answers = model.predict(rows) + np.resize([1.0, -1.0], len(rows))
    found = mlflow.models.evaluate(model, rows.assign(answer=answers), targets="answer", **settings)
    assert found.metrics["root_mean_squared_error"] == pytest.approx(1)


def test_categories_of_a_library_s_model_are_columns_of_the_saved_one(job: Job) -> None:
    words = (
        "task=tip_amount",
        "task.categorical=[PULocationID,DOLocationID]",
        "model=ridge",
        "data.rows=4000",
    )
    metrics = job("train", *words).run.data.metrics
    assert 1 < metrics["test/rmse"] <= 5
    assert metrics["parity/max_abs_diff"] <= 1e-5


def test_neighbours_reach_values_that_change_smoothly(job: Job) -> None:
    found = job(
        "train", "model=knn", "data=regression", "data.columns=2", "data.noise=0"
    ).run.data.metrics
    assert found["test/r2"] >= 0.99


@pytest.mark.filterwarnings("ignore")  # of MLflow's evaluation
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_run_records_what_its_kind_is_judged_by(job: Job, store: str, kind: str) -> None:
    ended = job("train", *KINDS[kind])
    judge = evaluator(named(kind))
    metrics = ended.run.data.metrics
    headline = f"test/{judge.headline.name}"
    assert list(ended.said["metrics"])[0] == headline
    for split in ("test", "validation"):
        assert {f"{split}/{each.name}" for each in judge.metrics} <= set(metrics)
    assert metrics[f"{headline}_low"] < metrics[headline] < metrics[f"{headline}_high"]
    assert len(of_model(metrics)) <= MOST_OF_MODEL, of_model(metrics)
    baselines = {f"baseline/{name}": metrics[f"baseline/{name}"] for name in BASELINES[kind]}
    assert ended.said["metrics"].items() >= baselines.items()
    assert "test/threshold" not in metrics
    client = mlflow.MlflowClient(store)
    found = {Path(file.path).stem for file in client.list_artifacts(ended.run.info.run_id, "plots")}
    assert PLOTS[kind] in found
    assert ("contributions" in found) == (kind != "clustering"), "of XGBoost's models"
    model = Path(mlflow.artifacts.download_artifacts(ended.said["model_uri"], tracking_uri=store))
    _predicts(kind, model)
    if kind == "regression":
        _evaluated(model, store)
    manifest = json.loads((model / "artifacts" / "manifest.json").read_text())
    note = ended.run.data.tags["mlflow.note.content"]
    title = f"### {manifest['model']}: test {judge.headline.label} {metrics[headline]:.4f}"
    assert note.startswith(title)
    assert manifest["task"]["kind"] == kind
    assert manifest["threshold"] is None
