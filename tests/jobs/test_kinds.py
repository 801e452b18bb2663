"""Training for every kind of task: what the run records is the kind's own."""

import contextlib
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
from mlflow.exceptions import MlflowException
from tests.jobs.conftest import MOST_OF_MODEL, of_model, run_job

from tipcast.evaluation import evaluator_of
from tipcast.evaluation.base import Evaluator
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


@dataclass(frozen=True)
class OfKind:
    """A training for a kind of task, and its saved model."""

    kind: str
    said: dict[str, Any]
    run: Any
    folder: Path
    """Of the model."""

    @property
    def evaluator(self) -> Evaluator:
        return evaluator_of(named(self.kind))

    @property
    def headline_key(self) -> str:
        """The name of the leading metric of test rows."""
        return f"test/{self.evaluator.headline_metric.name}"

    @property
    def manifest(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "artifacts" / "manifest.json").read_text()))

    def loaded(self) -> Any:
        return mlflow.pyfunc.load_model(str(self.folder))


Trained = Callable[[str], OfKind]
of_each_kind = pytest.mark.parametrize("kind", list(KINDS))
of_xgboost = pytest.mark.parametrize("kind", ["regression", "multiclass"])


@pytest.fixture(scope="module")
def trained(store: str, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Train for a kind, the first time that it is asked for."""

    @functools.cache
    def train_once(kind: str) -> OfKind:
        with contextlib.chdir(tmp_path_factory.mktemp(kind)):
            ended = run_job(store, "train", *KINDS[kind])
        uri = ended.said["model_uri"]
        folder = mlflow.artifacts.download_artifacts(uri, tracking_uri=store)
        return OfKind(kind, ended.said, ended.run, Path(folder))

    return train_once


@of_each_kind
def test_a_run_records_what_its_kind_is_judged_by(trained: Trained, kind: str) -> None:
    of_kind = trained(kind)
    metrics = of_kind.run.data.metrics
    headline = of_kind.headline_key
    assert list(of_kind.said["metrics"])[0] == headline
    for split in ("test", "validation"):
        assert {f"{split}/{metric.name}" for metric in of_kind.evaluator.metrics} <= set(metrics)
    assert metrics[f"{headline}_low"] < metrics[headline] < metrics[f"{headline}_high"]
    assert len(of_model(metrics)) <= MOST_OF_MODEL, of_model(metrics)


@of_each_kind
def test_a_kind_without_two_classes_has_no_threshold(trained: Trained, kind: str) -> None:
    of_kind = trained(kind)
    assert "test/threshold" not in of_kind.run.data.metrics
    assert of_kind.manifest["threshold"] is None


@of_each_kind
def test_a_run_tells_the_baseline_of_its_kind(trained: Trained, kind: str) -> None:
    of_kind = trained(kind)
    metrics = of_kind.run.data.metrics
    baselines = {f"baseline/{name}": metrics[f"baseline/{name}"] for name in BASELINES[kind]}
    assert of_kind.said["metrics"].items() >= baselines.items()


@of_each_kind
def test_a_run_has_the_plots_of_its_kind(trained: Trained, store: str, kind: str) -> None:
    run_id = trained(kind).run.info.run_id
    plots = mlflow.MlflowClient(store).list_artifacts(run_id, "plots")
    names = {Path(file.path).stem for file in plots}
    assert PLOTS[kind] in names
    assert ("contributions" in names) == (kind != "clustering"), "of XGBoost's models"


@of_each_kind
def test_the_manifest_names_the_kind(trained: Trained, kind: str) -> None:
    assert trained(kind).manifest["task"]["kind"] == kind


@of_each_kind
def test_the_note_begins_with_the_score_of_the_kind(trained: Trained, kind: str) -> None:
    of_kind = trained(kind)
    label = of_kind.evaluator.headline_metric.label
    score = f"{label} {of_kind.run.data.metrics[of_kind.headline_key]:.4f}"
    title = f"### {of_kind.manifest['model']}: test {score}"
    assert of_kind.run.data.tags["mlflow.note.content"].startswith(title)


@of_each_kind
def test_a_saved_model_returns_its_features(trained: Trained, kind: str) -> None:
    of_kind = trained(kind)
    model = of_kind.loaded()
    features = model.predict(model.input_example, params={"output": "features"})
    assert list(features) == of_kind.manifest["features"]


@pytest.mark.parametrize(
    ("kind", "output"),
    [
        ("clustering", "contributions"),
        ("clustering", "probability"),
        ("regression", "label"),
        ("multiclass", "value"),
    ],
)
def test_a_saved_model_refuses_what_its_kind_has_not(
    trained: Trained, kind: str, output: str
) -> None:
    model = trained(kind).loaded()
    with pytest.raises(MlflowException, match=f"output '{output}' is not available for this"):
        model.predict(model.input_example, params={"output": output})


@of_xgboost
def test_the_library_s_model_has_the_same_features(trained: Trained, kind: str) -> None:
    of_kind = trained(kind)
    booster = mlflow.xgboost.load_model(str(of_kind.folder))
    assert booster.feature_names == of_kind.manifest["features"]


def test_a_saved_clustering_labels_as_its_library_does(trained: Trained) -> None:
    of_kind = trained("clustering")
    model = of_kind.loaded()
    rows = model.input_example
    clusters = model.predict(rows)["label"]
    labels = model.predict(rows, params={"output": "label"})
    x = model.predict(rows, params={"output": "features"}).to_numpy(dtype=np.float64)
    np.testing.assert_array_equal(labels, clusters)
    np.testing.assert_array_equal(
        mlflow.sklearn.load_model(str(of_kind.folder)).predict(x), clusters
    )


def test_contributions_to_a_value_add_up_to_it(trained: Trained) -> None:
    of_kind = trained("regression")
    model = of_kind.loaded()
    rows = model.input_example
    parts = model.predict(rows, params={"output": "contributions"})
    assert list(parts) == [*of_kind.manifest["features"], "bias"]
    np.testing.assert_allclose(parts.sum(axis=1), model.predict(rows), atol=1e-4)


def test_contributions_to_each_class_add_up_to_its_probability(trained: Trained) -> None:
    of_kind = trained("multiclass")
    model = of_kind.loaded()
    rows = model.input_example
    features = of_kind.manifest["features"]
    classes = of_kind.manifest["task"]["classes"]
    parts = model.predict(rows, params={"output": "contributions"})
    margin = parts.to_numpy().reshape(len(rows), len(classes), -1).sum(axis=2)
    odds = np.exp(margin - margin.max(axis=1, keepdims=True))
    assert list(parts) == [
        f"{class_name}: {name}" for class_name in classes for name in [*features, "bias"]
    ]
    np.testing.assert_allclose(
        odds / odds.sum(axis=1, keepdims=True), model.predict(rows), atol=1e-5
    )


def test_the_label_is_the_most_probable_class(trained: Trained) -> None:
    """Labels of blobs are numbers."""
    model = trained("multiclass").loaded()
    rows = model.input_example
    labels = model.predict(rows, params={"output": "label"})
    assert labels.tolist() == model.predict(rows).to_numpy().argmax(axis=1).tolist()


@pytest.mark.filterwarnings("ignore")  # of MLflow's evaluation
def test_mlflow_evaluates_a_model_of_values(trained: Trained, store: str) -> None:
    model = trained("regression").loaded()
    mlflow.set_tracking_uri(store)
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
