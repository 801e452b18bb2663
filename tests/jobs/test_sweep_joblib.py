"""`tipcast sweep experiment=svc_grid` as a user runs it: scikit-learn's GridSearchCV over joblib's Dask backend."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
from tests.conftest import high_tip_task
from tests.jobs.conftest import children

from tipcast.config.errors import TipcastError
from tipcast.config.schema import SampleData
from tipcast.datasets.base import Fragment
from tipcast.datasets.rows import Recipe, held_out_rows
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.models.native import load

QUICK = ("experiment=svc_grid", "data.rows=6000", "model.fit.rows=400", "search.rows=900")
TWO = ("cluster.processes=true", "cluster.n_workers=2", "cluster.threads_per_worker=1")


@pytest.fixture(scope="module")
def client(store: str) -> Any:
    return mlflow.MlflowClient(store)


@pytest.fixture
def swept(job: Callable[..., Any], client: Any) -> Callable[..., Any]:
    """Run a sweep; return what it said, its run and its children."""

    def run(*words: str) -> tuple[dict[str, Any], Any, list[Any]]:
        ended = job("sweep", *QUICK, *words)
        return ended.said, ended.run, children(client, ended.run)

    return run


@pytest.mark.usefixtures("forked_workers")
def test_the_grid_leaves_what_every_sweep_leaves(
    swept: Callable[..., Any], client: Any, logged: list[str], tmp_path: Path
) -> None:
    said, parent, runs = swept(*TWO, "tracking.register=svc")
    assert said["trials"] == {"finished": 12, "failed": 0, "all": 12}
    assert [run.info.status for run in (parent, *runs)] == ["FINISHED"] * 13
    assert len({run.data.tags["trial.worker"] for run in runs}) == 2, "trials ran on both workers"
    assert {(run.data.params["model.params.C"], run.data.params["model.params.gamma"]) for run in runs} == {
        (C, gamma) for C in ("0.1", "1", "10") for gamma in ("0.01", "0.03", "0.1", "0.3")
    }
    scores = [run.data.metrics["validation/auc"] for run in runs]
    assert len(set(scores)) > 6
    best = runs[scores.index(max(scores))]
    assert said["best"]["trial"] == int(best.data.tags["trial.number"])
    for name in ("log_loss", "brier", "accuracy", "average_precision"):
        assert 0 < best.data.metrics[f"validation/{name}"] < 1
    assert best.data.metrics["validation/log_loss"] < 0.75, "probabilities, and not decisions"
    assert all(run.data.metrics["seconds/fit"] > 0 for run in runs)
    assert len(client.get_metric_history(best.info.run_id, "roc/true_positive_rate")) == 26
    assert parent.data.metrics["sweep/training_rows"] == parent.data.metrics["fit/rows"] == 400
    assert parent.data.params["model.fit.rows"] == "400"
    every, validation = (int(parent.data.metrics[f"{split}/rows"]) for split in ("train", "validation"))
    judged = min(validation, 900)
    assert parent.data.metrics["sweep/validation_rows"] == judged
    remark = f"fitted on 400 of {every:,} training rows and judged on {judged:,} of {validation:,} validation rows"
    assert [line for line in logged if remark in line]
    assert len([line for line in logged if line.startswith("trial ")]) == 12
    assert remark in parent.data.tags["mlflow.note.content"]
    assert [line for line in logged if f"svc is fitted on 400 of {every:,} training rows" in line]
    assert {entry.path for entry in client.list_artifacts(parent.info.run_id, "sweep")} >= {
        f"sweep/{name}" for name in ("leaderboard.json", "roc.png", "parallel.png", "seconds.png", "busy.png")
    }
    table = json.loads(Path(client.download_artifacts(parent.info.run_id, "sweep/leaderboard.json")).read_text())
    assert len(table["data"]) == 12
    assert said["charts"].endswith("workflowType=machine_learning")
    assert said["model_uri"] == "models:/svc/1"
    assert parent.data.metrics["parity/max_abs_diff"] <= 1e-5
    assert 0.5 < said["metrics"]["test/auc"] < 1
    _scores_without_tipcasts_estimator(client, said, tmp_path)


def _scores_without_tipcasts_estimator(client: Any, said: dict[str, Any], tmp_path: Path) -> None:
    """What was registered scores raw trips as its own arrays do."""
    version = client.get_model_version("svc", "1")
    model = mlflow.pyfunc.load_model(f"models:/{version.model_id}" if version.model_id else said["model_uri"])
    data = SampleData(
        source="sample", train="2019-04", test="2019-05", months=None, rows=300, seed=0, colour="yellow", block_rows=300
    )
    columns = ("pickup", "passenger_count", "PULocationID", "DOLocationID", "fare_amount", "tip_amount")
    (fragment,) = Taxi(data).scan("train", columns).fragments
    assert isinstance(fragment, Fragment)
    recipe = Recipe(Taxi(), high_tip_task(("pickup_hour", "passenger_count", "PULocationID", "DOLocationID")))
    raw, trips = held_out_rows(fragment, recipe, {"colour": "yellow"}, 200)
    scores = model.predict(trips)
    assert scores.shape == (200,)
    assert 0 < scores.min() < scores.max() < 1
    folder = Path(mlflow.artifacts.download_artifacts(said["model_uri"], dst_path=str(tmp_path)))
    (file,) = folder.rglob("model.npz")
    manifest = json.loads(next(folder.rglob("manifest.json")).read_text())
    features = model.unwrap_python_model().features
    names = manifest["features"]
    np.testing.assert_array_equal(load(file, "npz-svc").score(features.compute(raw, names)), scores)


def test_the_trial_is_the_fit_that_the_pool_makes(swept: Callable[..., Any]) -> None:
    words = ("search.space.C=[0.5,5]", "search.space.gamma=[0.05]", "search.rows=1000000", "data.rows=3000")
    joblib, pool = (swept(*words, f"search.through={through}")[2] for through in ("joblib", "pool"))
    for one, other in zip(joblib, pool, strict=True):
        assert one.data.params == other.data.params
        assert one.data.metrics["validation/auc"] == pytest.approx(other.data.metrics["validation/auc"], abs=1e-9)
        assert one.data.metrics["validation/log_loss"] == pytest.approx(
            other.data.metrics["validation/log_loss"], abs=1e-9
        )


@pytest.mark.parametrize("model", [pytest.param("random_forest", marks=pytest.mark.long), "logistic", "xgboost"])
def test_other_models_that_scikit_learn_has(job: Callable[..., Any], client: Any, model: str) -> None:
    words = {
        "random_forest": ["search.space.max_depth=[2,5]", "model.params.n_estimators=8"],
        "logistic": ["search.space.C=[0.001,1]"],
        "xgboost": ["search.space.max_depth=[2,5]", "model.params.n_estimators=8"],
    }[model]
    ended = job("sweep", f"model={model}", "search=grid_joblib", "data.rows=4000", *words)
    assert ended.said["trials"] == {"finished": 2, "failed": 0, "all": 2}
    assert ended.run.data.tags["mlflow.note.content"].count("GridSearchCV") == 1


def test_boosted_trees_are_those_of_the_pool(job: Callable[..., Any], client: Any) -> None:
    words = ("model=xgboost", "search=grid_joblib", "data.rows=4000", "model.params.n_estimators=8", "search.rows=9999")
    words = (*words, "search.space.max_depth=[2,5]", "model.fit.early_stopping_rounds=null")
    joblib, pool = (
        children(client, job("sweep", *words, f"search.through={through}").run) for through in ("joblib", "pool")
    )
    for one, other in zip(joblib, pool, strict=True):
        assert one.data.metrics["validation/auc"] == pytest.approx(other.data.metrics["validation/auc"], abs=1e-9)
        assert one.data.tags["fit.device"] == "cpu"


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    "words",
    [
        ["model=xgboost", "search.space.max_depth=[2,5]"],
        ["model=ridge", "task=tip_amount", "search.space.alpha=[0.1,10]"],
    ],
)
def test_estimators_of_a_gpu_in_scikit_learns_search(job: Callable[..., Any], client: Any, words: list[str]) -> None:
    """XGBoost's and cuML's, in GridSearchCV."""
    ended = job("sweep", "backend=gpu", "search=grid_joblib", "data.rows=40000", *words)
    assert ended.said["trials"] == {"finished": 2, "failed": 0, "all": 2}
    assert {run.data.tags["fit.device"].partition(":")[0] for run in children(client, ended.run)} == {"cuda"}


def test_a_trial_that_fails_is_told(job: Callable[..., Any], client: Any, store: str) -> None:
    words = ("model=random_forest", "search=grid_joblib", "data.rows=4000", "model.params.n_estimators=4")
    with pytest.raises(TipcastError) as caught:
        job("sweep", *words, "search.space.monotonic_cst=[[0,0],[0,0,0,0,0,0,0]]")
    assert caught.value.code == "S001"
    assert "monotonic_cst" in caught.value.what
    runs = children(client, client.get_run(caught.value.where))
    assert [run.info.status for run in runs] == ["FAILED", "FINISHED"]
    assert runs[0].data.tags["error.code"] == "S006"
    assert client.get_run(caught.value.where).info.status == "FINISHED"


def test_what_is_missing_is_run_when_it_is_resumed(swept: Callable[..., Any], client: Any) -> None:
    words = ("search.space.C=[0.5,5]", "search.space.gamma=[0.02,0.2]")
    said, parent, runs = swept(*words)
    client.delete_run(runs[2].info.run_id)
    again, _, later = swept(f"resume={parent.info.run_id}")
    assert again["trials"] == said["trials"] == {"finished": 4, "failed": 0, "all": 4}
    assert again["metrics"] == said["metrics"]
    kept = [run.info.run_id for at, run in enumerate(runs) if at != 2]
    assert [run.info.run_id for at, run in enumerate(later) if at != 2] == kept
    assert later[2].data.metrics["validation/auc"] == runs[2].data.metrics["validation/auc"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["model=xgboost_forest", "search=grid_joblib"], "xgboost_forest is no estimator of scikit-learn's interface"),
        (["model=svc", "search=tpe", "search.through=joblib"], "tpe does not know its trials"),
        (["model=svc", "search=grid_joblib", "search.through=threads"], "no such way: threads"),
        (["model=svc", "search=grid_joblib", "search.rows=0"], "search.rows"),
    ],
)
def test_mistakes(job: Callable[..., Any], words: list[str], text: str) -> None:
    with pytest.raises(TipcastError) as caught:
        job("sweep", "data.rows=4000", *words)
    assert caught.value.code == "C003"
    assert text in str(caught.value)
