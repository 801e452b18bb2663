"""The probe of a store: it finds what a job would, and leaves nothing that a user sees."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.entities import ViewType

from tipcast.config.errors import State, TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.tracking.probe import check_store
from tipcast.tracking.store import open_store


def rows(store: Path) -> dict[str, int]:
    """Return table -> number of rows."""
    with closing(sqlite3.connect(store)) as database:
        tables = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
        return {name: database.execute(f"select count(*) from {name}").fetchone()[0] for name in tables}


def test_a_new_experiment_is_left_to_the_first_run(spec: TrackingSpec, tmp_path: Path) -> None:
    before = rows(tmp_path / "mlflow.db")
    finding = check_store(spec)
    assert finding.state is State.ok
    assert "the first run makes the experiment taxi" in finding.found
    assert rows(tmp_path / "mlflow.db") == before
    assert all(path.name.startswith("mlflow.db") for path in tmp_path.iterdir()), "no folder of artifacts"


def test_an_experiment_is_as_it_was(spec: TrackingSpec, tmp_path: Path) -> None:
    client = open_store(spec)
    location = tmp_path / "kept"
    location.mkdir()
    experiment_id = client.create_experiment("taxi", artifact_location=str(location))
    client.create_run(experiment_id)
    before = rows(tmp_path / "mlflow.db")
    finding = check_store(replace(spec, register="tips"))
    assert finding.state is State.ok
    assert str(location) in finding.found
    assert rows(tmp_path / "mlflow.db") == before
    assert len(client.search_runs([experiment_id], run_view_type=ViewType.ALL)) == 1
    assert location.is_dir(), "an empty folder of the user's stays"
    assert not list(location.iterdir())


def test_artifacts_that_cannot_be_written(spec: TrackingSpec, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    client = open_store(spec)
    client.create_experiment("taxi", artifact_location=str(tmp_path / "file" / "artifacts"))
    before = rows(tmp_path / "mlflow.db")
    with pytest.raises(TipcastError) as caught:
        check_store(spec)
    assert caught.value.code == "T005"
    assert "file/artifacts" in caught.value.where
    assert rows(tmp_path / "mlflow.db") == before


def test_a_store_that_lets_nothing_be_removed(spec: TrackingSpec, tmp_path: Path) -> None:
    client = open_store(spec)
    experiment_id = client.create_experiment("taxi")
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("create trigger kept before delete on runs begin select raise(abort, 'kept'); end")
        database.commit()
    finding = check_store(spec)
    assert finding.state is State.warning
    (left,) = client.search_runs([experiment_id], run_view_type=ViewType.ALL)
    assert left.info.run_id in finding.fix
    assert client.search_runs([experiment_id]) == [], "it is out of sight"


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


def test_no_server(free_port: Callable[[], int]) -> None:
    start = time.monotonic()
    with pytest.raises(TipcastError, match="T001"):
        check_store(TrackingSpec(uri=f"http://127.0.0.1:{free_port()}", experiment="taxi"))
    assert time.monotonic() - start < 60


def test_a_server_shows_nothing_afterwards(server: str) -> None:
    spec = TrackingSpec(uri=server, experiment="probed")
    client = open_store(spec)
    names = {experiment.name for experiment in client.search_experiments()}
    for there in (False, True):
        if there:
            client.create_experiment("probed")
        finding = check_store(spec)
        assert finding.state is State.ok, finding
        assert finding.found.startswith(f"{server} takes runs")
    experiments = client.search_experiments()
    assert {experiment.name for experiment in experiments} == names | {"probed"}
    (probed,) = (experiment for experiment in experiments if experiment.name == "probed")
    assert client.search_runs([probed.experiment_id]) == []
