"""MLflow's commands and calls on runs and models of tipcast's, as a user types them: rows of docs/mlflow.md."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import mlflow
import mlflow.artifacts
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.utils.file_utils import local_file_uri_to_path
from tests import warm
from tests.waiting import WATCHDOG_S

from .conftest import Ended, run_job

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # MLflow's, of its own classes, at import
    from mlflow.cli import cli

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("data.rows=2000", "model.params.n_estimators=5")
TOLD = "mlflow.note.content"


@pytest.fixture(scope="module")
def trained(store: str, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A training whose model is registered as `commands`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("commands"))
        return run_job(store, "train", *SMALL, "tracking.register=commands")


@pytest.fixture
def command(store: str) -> Callable[..., str]:
    """Give a command to MLflow's own command line, in this process, and return what it prints."""
    mlflow.set_tracking_uri(store)

    def run(*words: str) -> str:
        ended = CliRunner().invoke(cli, words, catch_exceptions=False)
        assert ended.exit_code == 0, ended.output
        return ended.output

    return run


def test_runs_are_listed_and_described(command: Callable[..., str], store: str, trained: Ended) -> None:
    run = mlflow.MlflowClient(store).get_run(trained.run.info.run_id)  # another test may have logged to it
    info, data = run.info, run.data
    listed = command("runs", "list", "--experiment-id", info.experiment_id)
    assert info.run_id in listed
    assert info.run_name in listed
    told = json.loads(command("runs", "describe", "--run-id", info.run_id))
    assert told["info"]["status"] == "FINISHED"
    assert told["data"]["metrics"] == data.metrics
    assert told["data"]["tags"][TOLD] == data.tags[TOLD]


def test_experiments_are_found_and_exported(command: Callable[..., str], trained: Ended, tmp_path: Path) -> None:
    info = trained.run.info
    assert "tipcast" in command("experiments", "search", "--view", "active_only")
    assert "model_development" in command("experiments", "get", "-x", info.experiment_id, "--output", "json")
    command("experiments", "csv", "-x", info.experiment_id, "-o", str(tmp_path / "runs.csv"))
    (row,) = pd.read_csv(tmp_path / "runs.csv", dtype=str).query(f"run_id == '{info.run_id}'").to_dict("records")
    assert float(row["metrics.test/auc"]) == pytest.approx(trained.run.data.metrics["test/auc"])
    assert row["params.model.name"] == "xgboost"
    assert row["tags.job"] == "train"


def test_artifacts_are_listed_and_downloaded(command: Callable[..., str], trained: Ended, tmp_path: Path) -> None:
    run_id = trained.run.info.run_id
    listed = {each["path"] for each in json.loads(command("artifacts", "list", "-r", run_id, "-a", "plots"))}
    assert "plots/roc.png" in listed
    command("artifacts", "download", "-r", run_id, "-a", "tables", "-d", str(tmp_path))
    assert (tmp_path / "tables" / "roc.json").is_file()
    command("artifacts", "download", "-u", "models:/commands/1", "-d", str(tmp_path / "model"))
    assert (tmp_path / "model" / "MLmodel").is_file()
    (tmp_path / "mine.txt").write_text("looked at")
    command("artifacts", "log-artifact", "-l", str(tmp_path / "mine.txt"), "-r", run_id, "-a", "notes")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "too.txt").write_text("and at this")
    command("artifacts", "log-artifacts", "-l", str(tmp_path / "more"), "-r", run_id, "-a", "notes")
    assert mlflow.artifacts.load_text(f"runs:/{run_id}/notes/mine.txt") == "looked at"
    assert mlflow.artifacts.load_text(f"runs:/{run_id}/notes/too.txt") == "and at this"


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
    ended = subprocess.run(
        [sys.executable, "-c", WITHIN, store],
        cwd=tmp_path,
        env=warm.environment(),
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    own, training = ended.stdout.split()[-2:]
    mlflow.set_tracking_uri(store)
    runs = {each.info.run_id: each for each in mlflow.search_runs(experiment_names=["own"], output_format="list")}
    assert set(runs) == {own, training}
    assert runs[own].data.metrics == {"mine": 1}
    assert runs[training].data.tags["mlflow.parentRunId"] == own
    assert {each.info.status for each in runs.values()} == {"FINISHED"}


def test_what_is_deleted_for_good(command: Callable[..., str], store: str, job: Callable[..., Ended]) -> None:
    ended = job("train", *SMALL, "tracking.experiment=gone", "tracking.register=gone")
    client, run_id, experiment = mlflow.MlflowClient(store), ended.said["run_id"], ended.said["experiment_id"]
    files = Path(local_file_uri_to_path(ended.run.info.artifact_uri))
    assert (files / "plots" / "roc.png").is_file()
    example = mlflow.pyfunc.load_model("models:/gone/1").input_example
    command("runs", "delete", "--run-id", run_id)
    assert run_id not in command("runs", "list", "--experiment-id", experiment)
    assert run_id in command("runs", "list", "--experiment-id", experiment, "--view", "deleted_only")
    command("runs", "restore", "--run-id", run_id)
    assert client.get_run(run_id).info.lifecycle_stage == "active"
    command("experiments", "delete", "-x", experiment)
    command("experiments", "restore", "-x", experiment)
    command("experiments", "rename", "-x", experiment, "--new-name", "renamed")
    command("runs", "delete", "--run-id", run_id)
    command("gc", "--backend-store-uri", store, "--tracking-uri", store, "--run-ids", run_id)
    with pytest.raises(MlflowException, match="not found"):
        client.get_run(run_id)
    assert not (files / "plots" / "roc.png").exists()
    model = mlflow.pyfunc.load_model("models:/gone/1")
    assert np.isfinite(model.predict(example)).all(), "a model's files are not the run's"


def test_models_are_described_and_registered_again(
    command: Callable[..., str], store: str, trained: Ended, tmp_path: Path
) -> None:
    mlflow.set_tracking_uri(store)
    client, run_id, uri = mlflow.MlflowClient(store), trained.run.info.run_id, "models:/commands/1"
    info = mlflow.models.get_model_info(uri)
    assert set(info.flavors) == {"python_function", "xgboost"}
    assert info.run_id == run_id
    assert Model.load(uri).signature == info.signature
    assert "mlflow==" in Path(mlflow.pyfunc.get_model_dependencies(uri)).read_text()
    version = mlflow.register_model(f"runs:/{run_id}/model", "commands_again")
    copied = client.copy_model_version(uri, "production")
    client.set_registered_model_alias("production", "champion", copied.version)
    rows = mlflow.pyfunc.load_model(uri).input_example
    expected = mlflow.pyfunc.load_model(uri).predict(rows)
    for same in (f"runs:/{run_id}/model", trained.said["model_uri"], f"models:/commands_again/{version.version}"):
        np.testing.assert_array_equal(mlflow.pyfunc.load_model(same).predict(rows), expected)
    np.testing.assert_array_equal(mlflow.pyfunc.load_model("models:/production@champion").predict(rows), expected)
    (found,) = mlflow.search_model_versions(filter_string="name = 'production'")
    assert found.tags["sha256"] == client.get_model_version("commands", "1").tags["sha256"]
    assert {"commands", "commands_again"} <= {each.name for each in mlflow.search_registered_models()}
    own = shutil.copytree(mlflow.artifacts.download_artifacts(uri), tmp_path / "own")
    command("models", "update-pip-requirements", "-m", str(own), "add", "gunicorn==25.0.0")
    assert "gunicorn==25.0.0" in (own / "requirements.txt").read_text()
    np.testing.assert_array_equal(mlflow.pyfunc.load_model(str(own)).predict(rows), expected)


def test_a_project_of_git_at_a_version(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mlflow run` with all that it is told beside parameters; the version is another branch than the current one."""
    repository = tmp_path / "repository"
    repository.mkdir()
    for name in ("MLproject", "conda.yaml"):
        shutil.copy(ROOT / name, repository)
    for name in ("src", "conf"):
        shutil.copytree(ROOT / name, repository / name, ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@localhost"]
    for words in (["init", "-qb", "stable"], ["add", "."], ["commit", "-qm", "one"], ["branch", "older"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    (repository / "MLproject").write_text("name: broken\n")
    subprocess.run([*git, "commit", "-qam", "two"], check=True, capture_output=True)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(repository), str(clone)], check=True, capture_output=True)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    words = ["run", str(clone), "--version", "older", "--entry-point", "train", "--env-manager", "local"]
    words += ["--experiment-name", "by git", "--run-name", "from a branch", "--backend", "local"]
    for each in (*SMALL, "cluster.processes=false", "tracking.system_metrics=false"):
        words += ["-P", each]
    done = subprocess.run(
        [sys.executable, "-m", "mlflow", *words], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    mlflow.set_tracking_uri(store)
    (run,) = mlflow.search_runs(experiment_names=["by git"], output_format="list")
    assert (run.info.run_name, run.info.status) == ("from a branch", "FINISHED")
    assert run.data.metrics["test/auc"] > 0
    assert run.data.tags["mlflow.source.git.commit"] == commit
    assert run.data.tags["mlflow.project.entryPoint"] == "train"
    assert "WARNING" not in done.stderr, "an experiment that was asked for is no mistake"


def test_what_mlflow_says_of_the_machine_and_its_tables(command: Callable[..., str], store: str) -> None:
    assert mlflow.__version__ in command("doctor")
    command("db", "upgrade", store)
