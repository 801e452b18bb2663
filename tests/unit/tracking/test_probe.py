"""The probe of a store: it finds what a job would, and leaves nothing that a user sees."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tipcast.config.errors import State, TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.tracking.probe import check_store
from tipcast.tracking.store import open_store


def test_an_experiment_shows_nothing_of_it(spec: TrackingSpec, tmp_path: Path) -> None:
    client = open_store(spec)
    location = tmp_path / "kept"
    location.mkdir()
    experiment_id = client.create_experiment("taxi", artifact_location=str(location))
    kept = client.create_run(experiment_id).info.run_id
    finding = check_store(replace(spec, register="tips"))
    assert finding.state is State.ok
    assert str(location) in finding.found
    assert [run.info.run_id for run in client.search_runs([experiment_id])] == [kept]
    assert not [path for path in location.rglob("*") if path.is_file()]


def test_artifacts_that_cannot_be_written(spec: TrackingSpec, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    client = open_store(spec)
    client.create_experiment("taxi", artifact_location=str(tmp_path / "file" / "artifacts"))
    with pytest.raises(TipcastError) as caught:
        check_store(spec)
    assert caught.value.code == "T005"
    assert "file/artifacts" in caught.value.where


def test_a_store_that_lets_nothing_be_removed(spec: TrackingSpec, tmp_path: Path) -> None:
    client = open_store(spec)
    experiment_id = client.create_experiment("taxi")
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute(
            "create trigger kept before update on runs when new.lifecycle_stage = 'deleted'"
            " begin select raise(abort, 'kept'); end"
        )
        database.commit()
    finding = check_store(spec)
    assert finding.state is State.warning
    (left,) = client.search_runs([experiment_id])
    assert left.info.run_id in finding.fix


def test_a_deleted_experiment(spec: TrackingSpec) -> None:
    client = open_store(spec)
    client.delete_experiment(client.create_experiment("taxi"))
    with pytest.raises(TipcastError, match="T004.*taxi"):
        check_store(spec)


def test_a_database_without_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TipcastError, match="T002"):
        check_store(TrackingSpec(uri=f"sqlite:///{tmp_path}/file/mlflow.db", experiment="taxi"))
    with pytest.raises(TipcastError, match="T002"):
        check_store(TrackingSpec(uri=f"sqlite:///{tmp_path}", experiment="taxi"))


def test_no_server(closed_port: int) -> None:
    with pytest.raises(TipcastError, match="T001"):
        check_store(TrackingSpec(uri=f"http://127.0.0.1:{closed_port}", experiment="taxi"))


def test_a_server_shows_nothing_afterwards(server: str) -> None:
    spec = TrackingSpec(uri=server, experiment="probed")
    client = open_store(spec)
    names = {experiment.name for experiment in client.search_experiments()}
    for _ in range(2):
        finding = check_store(spec)
        assert finding.state is State.ok, finding
        assert finding.found.startswith(f"{server} takes runs")
    experiments = client.search_experiments()
    assert {experiment.name for experiment in experiments} == names | {"probed"}
    (probed,) = (experiment for experiment in experiments if experiment.name == "probed")
    assert client.search_runs([probed.experiment_id]) == []
