"""The life of a run, in an sqlite file and on a real server: every ending, joined runs, and what is written."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.utils.validation import path_not_unique, validate_param_and_metric_name
from sqlalchemy import event
from sqlalchemy.engine import Engine
from tests.unit.tracking.conftest import copy_store
from tests.waiting import WATCHDOG_S, wait_until

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.tracking import process
from tipcast.tracking import run as module
from tipcast.tracking.children import Children
from tipcast.tracking.run import Run, check_store, mark_launched, open_run
from tipcast.tracking.store import open_store


def _made(spec: TrackingSpec, **more: Any) -> Any:
    return open_run(spec, **{"name": "xgboost", "tags": {"job": "train"}, "params": {"seed": 0}, **more})


def _runs(spec: TrackingSpec) -> list[Any]:
    client = open_store(spec)
    return list(client.search_runs([experiment.experiment_id for experiment in client.search_experiments()]))


def test_a_run_that_ends_well(spec: TrackingSpec) -> None:
    spec.tags, spec.run_name = {"team": "fares"}, "mine"
    with _made(spec) as run:
        assert run.client.get_run(run.id).info.status == "RUNNING"
    (found,) = _runs(spec)
    assert found.info.status == "FINISHED"
    assert found.info.end_time >= found.info.start_time
    assert found.info.run_name == "mine"
    assert found.data.params == {"seed": "0"}
    assert found.data.tags["job"] == "train"
    assert found.data.tags["team"] == "fares"
    assert "error.code" not in found.data.tags


@pytest.mark.parametrize(
    ("problem", "status", "code"),
    [
        (TipcastError("D014", "data.train", "too few rows", "use more"), "FAILED", "D014"),
        (ZeroDivisionError("division by zero"), "FAILED", "ZeroDivisionError"),
        (FileNotFoundError(2, "No such file", "trips.parquet"), "FAILED", "FileNotFoundError"),
        (KeyboardInterrupt(), "KILLED", None),
        (SystemExit(143), "KILLED", None),
    ],
)
def test_a_run_that_ends_otherwise(spec: TrackingSpec, problem: BaseException, status: str, code: str | None) -> None:
    with pytest.raises(type(problem)) as caught, _made(spec):
        raise problem
    assert caught.value is problem
    assert getattr(problem, "__notes__", []) == ([module.KILLED] if status == "KILLED" else [])
    (found,) = _runs(spec)
    assert found.info.status == status
    assert found.data.tags.get("error.code") == code
    assert found.data.tags.get("error.message") == (str(problem) if code else None)


def test_stopped_in_a_transaction(spec: TrackingSpec) -> None:
    """What the call that was cut off has locked is free when the run is closed."""
    spec.wait_s = 2.0
    written: list[str] = []

    def stop(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if written and statement.startswith("SELECT"):  # its rows are not fetched yet
            raise KeyboardInterrupt
        written.extend([statement] if statement.startswith("INSERT INTO metrics") else [])

    with pytest.raises(KeyboardInterrupt), _made(spec) as run:
        run.client.log_metric(run.id, "a", 1.0)
        event.listen(Engine, "after_cursor_execute", stop)
        try:
            run.client.log_metric(run.id, "a", 2.0)
        finally:
            event.remove(Engine, "after_cursor_execute", stop)
    assert written
    (found,) = _runs(spec)
    assert found.info.status == "KILLED"
    assert found.data.metrics == {"a": 1.0}


def test_what_the_store_refuses_ends_the_run(spec: TrackingSpec) -> None:
    with pytest.raises(TipcastError, match="T002"), _made(spec) as run:
        run.client.set_tag(run.id, "a" * 400, "x")
    (found,) = _runs(spec)
    assert found.info.status == "FAILED"


@pytest.mark.parametrize(("name", "kept"), [("gentle-ox-12", "xgboost"), ("March, again", "March, again")])
def test_the_launchers_run_is_joined_once(
    spec: TrackingSpec, monkeypatch: pytest.MonkeyPatch, name: str, kept: str
) -> None:
    client = open_store(spec)
    experiment = client.create_experiment("by the launcher")
    launched = client.create_run(experiment, run_name=name)
    client.log_param(launched.info.run_id, "data.rows", "'20000'")
    monkeypatch.setenv("MLFLOW_RUN_ID", launched.info.run_id)
    with _made(spec, params={"data.rows": 20000, "seed": 0}) as run:
        assert "MLFLOW_RUN_ID" not in os.environ
        assert (run.id, run.experiment_id) == (launched.info.run_id, experiment)
    (found,) = _runs(spec)
    assert (found.info.status, found.info.run_name) == ("FINISHED", kept), "a name that somebody gave stays"
    assert found.data.params == {"data.rows": "'20000'", "seed": "0"}


def test_a_joined_run_that_does_not_exist(spec: TrackingSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    with pytest.raises(TipcastError, match="T004.*is not there.*unset MLFLOW_RUN_ID"), _made(spec):
        raise AssertionError("not reached")
    assert "MLFLOW_RUN_ID" in os.environ, "the command line tags the launcher's run by it"
    assert _runs(spec) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_metric_that_is_not_finite_fails_the_run(spec: TrackingSpec, value: float) -> None:
    with pytest.raises(TipcastError) as caught, _made(spec) as run:
        run.log_metrics({"test/auc": 0.5, "test/log_loss": value})
    assert caught.value.code == "M010"
    assert caught.value.where == "test/log_loss"
    (found,) = _runs(spec)
    assert found.info.status == "FAILED"
    assert found.data.tags["error.code"] == "M010"
    assert found.data.metrics == {}
    with pytest.raises(TipcastError), _made(spec) as run:
        run.log_curves({"history/train_logloss": {0: 0.5, 1: value}})


def test_datasets_are_inputs_of_the_run(spec: TrackingSpec) -> None:
    with _made(spec) as run:
        run.log_dataset(
            "s3://key:s3cret@trips/2018.parquet?versionId=s3cret", "d" * 36, "yellow 2018", "train", {"rows": 10}
        )
        run.log_dataset("sample://yellow?seed=0", "e" * 64, "sample", "test", {"rows": 20, "positive_rate": 0.5})
        run.log_dataset("/data/2019-03.parquet", "f" * 8, "yellow 2019-03", "validation", {})
    inputs = {item.tags[0].value: item.dataset for item in _runs(spec)[0].inputs.dataset_inputs}
    assert set(inputs) == {"train", "validation", "test"}
    assert inputs["train"].digest == "d" * 36
    assert inputs["test"].digest == "e" * 36
    assert inputs["train"].name == "yellow 2018"
    assert inputs["train"].profile == '{"rows": 10}'
    assert "s3://trips/2018.parquet" in inputs["train"].source
    assert "s3cret" not in str([item.source for item in inputs.values()])
    assert "2019-03.parquet" in inputs["validation"].source


@pytest.fixture
def locked(spec: TrackingSpec) -> Iterator[sqlite3.Connection]:
    """A connection that can lock the store's file, which is waited for only briefly."""
    spec.wait_s = 0.3
    path = str(spec.uri).removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as database:
        yield database


def test_a_lock_that_ends_while_the_run_is_closed(
    spec: TrackingSpec, locked: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TipcastError, match="T002.*keeps the database locked"), _made(spec) as run:
        locked.execute("BEGIN IMMEDIATE")
        ended = run.client.set_terminated

        def free_first(*arguments: str) -> None:
            locked.execute("ROLLBACK")
            ended(*arguments)

        monkeypatch.setattr(run.client, "set_terminated", free_first)
        run.log_metrics({"test/auc": 0.5})
    (found,) = _runs(spec)
    assert found.info.status == "FAILED"
    assert found.data.tags["error.code"] == "T002"


def test_a_lock_that_does_not_end(
    spec: TrackingSpec, locked: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TipcastError, match="T002"), _made(spec) as run:
        locked.execute("BEGIN IMMEDIATE")
        run.log_metrics({"test/auc": 0.5})
    locked.execute("ROLLBACK")
    what = "the next train, sweep, score or promote on this machine does"
    assert caplog.messages == [f"run {run.id} could not be closed: {what}"]
    client = open_store(spec)
    assert client.get_run(run.id).info.status == "RUNNING"
    mine = json.loads(client.get_run(run.id).data.tags[process.PROCESS])
    client.set_tag(run.id, process.PROCESS, json.dumps(mine | {"start": "1"}))  # as if that process had ended
    with _made(spec):
        pass
    assert client.get_run(run.id).info.status == "KILLED"


def test_system_metrics_are_sampled(spec: TrackingSpec) -> None:
    spec.system_metrics = True
    with _made(spec) as run:
        wait_until(lambda: run.client.get_metric_history(run.id, "system/system_memory_usage_megabytes"))
    (found,) = _runs(spec)
    assert found.info.status == "FINISHED"
    assert found.data.metrics["system/system_memory_usage_megabytes"] > 0


def test_the_link(spec: TrackingSpec) -> None:
    page = "#/experiments/1/runs/abc?workflowType=machine_learning"
    assert (
        Run("abc", "1", "https://ada:s3cret@host.example/mlflow/", None).link == f"https://host.example/mlflow/{page}"
    )
    local = Run("abc", "1", "sqlite:///mlflow.db", None).link
    assert local == f"http://127.0.0.1:5000/{page} after `mlflow ui --backend-store-uri sqlite:///mlflow.db`"


def test_a_run_on_a_server_below_a_path(
    serving: Any, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_store(tables, tmp_path / "served.db")
    command = ["server", "--host", "127.0.0.1", "--port", "0", "--workers", "1", "--static-prefix", "/mlflow"]
    command += ["--backend-store-uri", "sqlite:///served.db", "--artifacts-destination", str(tmp_path / "artifacts")]
    with serving(
        command, "http://127.0.0.1:0", tmp_path, "mlflow/health", MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false"
    ) as url:
        spec = TrackingSpec(uri=f"{url}/mlflow/", experiment="taxi", system_metrics=False)
        assert " takes runs" in check_store(spec)
        with _made(spec) as run:
            run.log_metrics({"test/auc": 0.5})
            run.log_curves({"history/train_logloss": {0: 0.7, 1: 0.6}})
            run.log_text("seed: 0\n", "plots/config.yaml")
            run.log_dataset("s3://trips/2018.parquet", "d" * 36, "yellow 2018", "train", {"rows": 10})
        with pytest.raises(TipcastError), _made(spec):
            raise TipcastError("D014", "data.train", "too few rows", "use more")
        failed, finished = run.client.search_runs([run.experiment_id])
        page, image = run.link, f"{url}/mlflow/get-artifact?path=plots/config.yaml&run_uuid={run.id}"
        with urllib.request.urlopen(page.partition("#")[0], timeout=WATCHDOG_S) as answer:
            assert b"<title>MLflow" in answer.read()
        with urllib.request.urlopen(image, timeout=WATCHDOG_S) as answer:
            assert answer.read() == b"seed: 0\n"
    assert page.startswith(f"{url}/mlflow/#/experiments/{run.experiment_id}/runs/{run.id}")
    assert (failed.info.status, failed.data.tags["error.code"]) == ("FAILED", "D014")
    assert finished.info.status == "FINISHED"
    assert finished.data.metrics == {"test/auc": 0.5, "history/train_logloss": 0.6}
    assert finished.inputs.dataset_inputs[0].dataset.digest == "d" * 36
    assert capsys.readouterr().out == ""


def test_a_server_that_is_gone_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, closed_port: int) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    uri = f"http://127.0.0.1:{closed_port}"
    with pytest.raises(TipcastError) as caught, module.failures(uri):
        Run("0" * 32, "1", uri, mlflow.MlflowClient(uri)).log_metrics({"test/auc": 0.5})
    assert caught.value.code == "T001"
    assert "\n" not in str(caught.value)


MISTAKE = TipcastError("C001", "model.depth", "no such key", "use model.params.max_depth")


def test_a_run_that_is_not_there_or_not_reached_is_not_tagged(
    tmp_path: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark_launched(problem=MISTAKE)
    assert list(tmp_path.iterdir()) == [], "no store is opened"
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{closed_port}")
    mark_launched(problem=MISTAKE)


ODD = [
    "petal length (cm)", "petal length [cm]", "a//b", "/a", "a/", "..", "..x", "a/../b", "", ".", "x\n", "$", "(", "[",
]  # fmt: skip
LONG = ["x" * 251, "x" * 252, "(" * 300]


def test_names_are_mlflows_and_stay_distinct() -> None:
    usual = ["test/auc", "km/h", "a:b c", "Größe", "x" * module.MAX_NAME]
    assert [module.name_of(name) for name in usual] == usual
    found = [module.name_of(name) for name in (*usual, *ODD, *LONG)]
    assert len(set(found)) == len(found)
    assert all(validate_param_and_metric_name(name) and not path_not_unique(name) for name in found)
    assert max(map(len, found)) == module.MAX_NAME
    assert found == [module.name_of(name) for name in found], "a name that is taken is left as it is"


def test_a_run_with_odd_names_and_megabytes_ends_well(spec: TrackingSpec) -> None:
    values = {
        f"unscored/{name}": float(at) for at, name in enumerate((*ODD, *LONG, *(f"ENSG{at}(x)" for at in range(3000))))
    }
    huge = "x" * 3_000_000
    with open_run(spec, name="n", tags={"a (b)": huge}, params={"data.columns.a (b)": huge, "c": huge[:6000]}) as run:
        run.log_metrics(values)
        run.log_dataset("made://x", "d", huge, "train", {})
        run.log_params({"data.columns.a (b)": "another"})
    found = open_store(spec).get_run(run.id)
    assert found.info.status == "FINISHED"
    assert sorted(found.data.metrics.values()) == sorted(values.values())
    assert found.data.tags[module.name_of("a (b)")] == "x" * 7999 + "…"
    assert found.data.params == {module.name_of("data.columns.a (b)"): "x" * 5999 + "…", "c": "x" * 6000}


def test_children_that_a_locked_database_keeps_open_are_for_the_next_command(
    spec: TrackingSpec, locked: sqlite3.Connection
) -> None:
    with _made(spec) as run:
        children = Children(run)
        with pytest.raises(KeyboardInterrupt), children.closed("the sweep was stopped"):
            runs = [children.begin(number, f"key{number}", 1, {"max_depth": number}) for number in range(3)]
            locked.execute("BEGIN IMMEDIATE")
            raise KeyboardInterrupt
        locked.execute("ROLLBACK")
        tags = [run.client.get_run(run_id).data.tags for run_id in runs]
        assert [process.PROCESS in each for each in tags] == [True] * 3
