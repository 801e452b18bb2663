"""A mistake found before the job joined its run is told on that run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.tracking.run import tag_run
from tipcast.tracking.store import open_store

MISTAKE = TipcastError("C001", "model.depth", "no such key", "use model.params.max_depth")


def test_the_launchers_run_is_tagged(spec: TrackingSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    client = open_store(spec)
    run_id = client.create_run(client.create_experiment("taxi")).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(spec.uri))
    tag_run(MISTAKE)
    run = client.get_run(run_id)
    assert run.data.tags["error.code"] == "C001"
    assert run.data.tags["error.message"] == str(MISTAKE)
    assert run.info.status == "RUNNING"  # the launcher ends it by the exit code


def test_nothing_is_opened_without_a_run(tmp_path: Path) -> None:
    tag_run(MISTAKE)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_run_is_passed_over(spec: TrackingSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(spec.uri))
    tag_run(MISTAKE)
    client = open_store(spec)
    assert client.search_runs([experiment.experiment_id for experiment in client.search_experiments()]) == []


def test_a_dead_server_is_passed_over(closed_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{closed_port}")
    tag_run(MISTAKE)
