"""MLflow's commands and calls on runs and models of tipcast's, as a user types them: rows of docs/mlflow.md."""

from __future__ import annotations

import warnings
from pathlib import Path

import mlflow
import mlflow.artifacts
import numpy as np
import pytest
from mlflow.models import Model
from tests.conftest import python

from .conftest import Ended, run_job

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # MLflow's, of its own classes, at import

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("data.rows=2000", "model.params.n_estimators=5")
TOLD = "mlflow.note.content"


@pytest.fixture(scope="module")
def trained(store: str, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A training whose model is registered as `commands`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("commands"))
        return run_job(store, "train", *SMALL, "tracking.register=commands")


def test_runs_are_read_in_python(store: str, trained: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "tipcast")  # what load_table searches
    mlflow.set_tracking_uri(store)
    run_id, metrics = trained.run.info.run_id, trained.run.data.metrics
    condition = "metrics.`test/auc` > 0 and params.`model.name` = 'xgboost' and tags.job = 'train'"
    found = mlflow.search_runs(
        experiment_names=["tipcast"], filter_string=condition, order_by=["metrics.`test/auc` DESC"]
    ).set_index("run_id")
    assert found.loc[run_id, "metrics.test/auc"] == metrics["test/auc"]
    assert mlflow.get_run(run_id).inputs.dataset_inputs
    assert [each.name for each in mlflow.search_experiments(filter_string="name = 'tipcast'")] == ["tipcast"]
    assert mlflow.get_experiment_by_name("tipcast").experiment_id == trained.run.info.experiment_id
    assert len(mlflow.load_table("tables/roc.json", run_ids=[run_id])) > 10
    assert mlflow.artifacts.load_dict(f"runs:/{run_id}/tables/roc.json")["columns"]
    assert mlflow.artifacts.load_image(f"runs:/{run_id}/plots/roc.png").size[0] > 0
    history = mlflow.MlflowClient(store).get_metric_history(run_id, "history/validation_logloss")
    assert [point.step for point in history] == list(range(5))
    (made,) = {type(mlflow.data.get_source(each)).__name__ for each in mlflow.get_run(run_id).inputs.dataset_inputs}
    assert made == "CodeDatasetSource"


def test_a_run_is_added_to(store: str, trained: Ended) -> None:
    mlflow.set_tracking_uri(store)
    run_id, before = trained.run.info.run_id, trained.run.data.metrics
    with mlflow.start_run(run_id=run_id):
        mlflow.log_metric("mine/dollars", 3.5)
        mlflow.log_text("later", "mine.txt")
        mlflow.set_tag("reviewed", "yes")
    now = mlflow.get_run(run_id)
    assert now.info.status == "FINISHED"
    assert now.data.metrics == {**before, "mine/dollars": 3.5}
    assert now.data.tags["reviewed"] == "yes"


WITHIN = """import mlflow, sys, tipcast
store = sys.argv[1]
mlflow.set_tracking_uri(store)
experiment = mlflow.create_experiment("own")
mlflow.autolog(silent=True)
with mlflow.start_run(experiment_id=experiment) as own:
    ended = tipcast.train(
        data={"rows": 2000},
        model={"params": {"n_estimators": 5}},
        cluster={"processes": False, "n_workers": 1, "performance_report": False},
        tracking={"uri": store, "experiment": "own", "system_metrics": False},
        overrides=[f"+tracking.tags={{mlflow.parentRunId: {own.info.run_id}}}"],
    )
    mlflow.log_metric("mine", 1)
print(own.info.run_id, ended.run_id)
"""


def test_within_a_run_of_ones_own(store: str, tmp_path: Path) -> None:
    """With MLflow's autologging on, too: it adds nothing, for a training logs by itself.

    In a process of its own, for autologging leaves hooks in the imports of its process.
    """
    ended = python(tmp_path, "-c", WITHIN, store)
    assert ended.returncode == 0, ended.stderr
    own, training = ended.stdout.split()[-2:]
    mlflow.set_tracking_uri(store)
    runs = {each.info.run_id: each for each in mlflow.search_runs(experiment_names=["own"], output_format="list")}
    assert set(runs) == {own, training}
    assert runs[own].data.metrics == {"mine": 1}
    assert runs[training].data.tags["mlflow.parentRunId"] == own
    assert {each.info.status for each in runs.values()} == {"FINISHED"}


def test_models_are_described_and_registered_again(store: str, trained: Ended) -> None:
    mlflow.set_tracking_uri(store)
    client, run_id, uri = mlflow.MlflowClient(store), trained.run.info.run_id, "models:/commands/1"
    info = mlflow.models.get_model_info(uri)
    assert set(info.flavors) == {"python_function", "xgboost"}
    assert info.run_id == run_id
    assert Model.load(uri).signature == info.signature
    assert "mlflow==" in Path(mlflow.pyfunc.get_model_dependencies(uri)).read_text()
    version = mlflow.register_model(f"runs:/{run_id}/xgboost-high_tip", "commands_again")
    copied = client.copy_model_version(uri, "production")
    client.set_registered_model_alias("production", "champion", copied.version)
    rows = mlflow.pyfunc.load_model(uri).input_example
    expected = mlflow.pyfunc.load_model(uri).predict(rows)
    for same in (
        f"runs:/{run_id}/xgboost-high_tip",
        trained.said["model_uri"],
        f"models:/commands_again/{version.version}",
    ):
        np.testing.assert_array_equal(mlflow.pyfunc.load_model(same).predict(rows), expected)
    np.testing.assert_array_equal(mlflow.pyfunc.load_model("models:/production@champion").predict(rows), expected)
    (found,) = mlflow.search_model_versions(filter_string="name = 'production'")
    assert found.tags["sha256"] == client.get_model_version("commands", "1").tags["sha256"]
    assert {"commands", "commands_again"} <= {each.name for each in mlflow.search_registered_models()}
