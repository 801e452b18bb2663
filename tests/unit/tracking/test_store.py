"""Opening stores: first opening by many, WAL, locks, and every failure told in one line."""

from __future__ import annotations

import os
import socket
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import filelock
import pytest

import tipcast
from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.tracking import store
from tipcast.tracking.store import DEFAULT_URI, failures, open_store, redact, resolve

SRC = str(Path(tipcast.__file__).parents[1])
OPEN = """
import sys
from tipcast.config.schema import TrackingSpec
from tipcast.tracking.run import open_run

sys.stdin.readline()  # everything is imported: all start together
spec = TrackingSpec(uri="sqlite:///mlflow.db", experiment="taxi", system_metrics=False)
with open_run(spec, name="n", tags={}, params={"seed": 0}) as run:
    run.log_metrics({"test/auc": 0.5})
"""
GUARDED = """
import socket, sys, threading

outside = []
connect, connect_ex, lookup = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo
HERE = {"127.0.0.1", "::1", "localhost", None, ""}

def check(address):
    if isinstance(address, tuple) and address[0] not in HERE:
        outside.append(address)
        raise OSError(f"refused by the guard: {address}")

def guarded(call):
    return lambda self, address, *rest: (check(address), call(self, address, *rest))[1]

socket.socket.connect = guarded(connect)
socket.socket.connect_ex = guarded(connect_ex)
socket.getaddrinfo = lambda host, *rest, **named: (check((host,)), lookup(host, *rest, **named))[1]
"""
MAKE_RUN = """
from pathlib import Path
from tipcast.config.schema import TrackingSpec
from tipcast.tracking import portable, registry
from tipcast.tracking.run import open_run
import numpy as np, pandas as pd

facts = {"features": ["pickup_hour", "PULocationID"], "data_digest": "d", "git_commit": "c"}
np.savez("model.npz", coef=np.zeros(2), intercept=0.0, mean=np.zeros(2), scale=np.ones(2))
trips = pd.DataFrame({"tpep_pickup_datetime": pd.to_datetime(["2019-03-01 10:00"]), "PULocationID": [1]})
with open_run(TrackingSpec(experiment="taxi"), name="n", tags={}, params={"seed": 0}) as run:
    logged = portable.log_model(run, Path("model.npz"), "npz-logistic", facts, "yellow", trips)
    difference = portable.parity(logged, trips, np.array([0.5]))
    print(registry.register(run, logged, "tips", difference, {"test/auc": 0.5}, "").registered)
import time
time.sleep(0.5)
print("outside", outside, file=sys.stderr)
sys.exit(bool(outside))
"""


def _spec(uri: str, **more: Any) -> TrackingSpec:
    return TrackingSpec(uri=uri, experiment="taxi", system_metrics=False, **more)


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(2))
def test_four_processes_open_one_fresh_file(tmp_path: Path, attempt: int) -> None:
    variables = {**os.environ, "PYTHONPATH": SRC}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN], cwd=tmp_path, env=variables, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for _ in range(4)
    ]  # fmt: skip
    for process in processes:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0, 0], said
    client = open_store(_spec(f"sqlite:///{tmp_path}/mlflow.db"))
    experiment = client.get_experiment_by_name("taxi")
    runs = client.search_runs([experiment.experiment_id])
    assert [run.info.status for run in runs] == ["FINISHED"] * 4
    assert [run.data.metrics["test/auc"] for run in runs] == [0.5] * 4


def test_the_file_is_in_wal_mode_and_its_lock_is_private(spec: TrackingSpec, tmp_path: Path) -> None:
    open_store(spec)
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert stat.S_IMODE((tmp_path / "mlflow.db.lock").stat().st_mode) == 0o600


def test_which_store(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(TrackingSpec()) == DEFAULT_URI
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert resolve(TrackingSpec()) == "http://127.0.0.1:5000"
    assert resolve(TrackingSpec(uri="sqlite:///mine.db")) == "sqlite:///mine.db"


def test_mlflow_uses_the_store_for_runs_and_models(spec: TrackingSpec) -> None:
    import mlflow

    open_store(spec)
    assert mlflow.get_tracking_uri() == spec.uri
    assert mlflow.get_registry_uri() == spec.uri


def test_the_next_store_of_a_process_is_its_registry_too(
    spec: TrackingSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    open_store(spec)
    other = _spec(f"sqlite:///{tmp_path}/other.db")
    (tmp_path / "other.db").write_bytes((tmp_path / "mlflow.db").read_bytes())
    open_store(other).create_registered_model("tips")
    assert mlflow.get_registry_uri() == other.uri
    assert open_store(spec).search_registered_models() == []
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", str(other.uri))
    assert [model.name for model in open_store(spec).search_registered_models()] == ["tips"]


@pytest.mark.parametrize(
    ("uri", "safe"),
    [
        ("sqlite:///mlflow.db", "sqlite:///mlflow.db"),
        ("sqlite:////data/mlflow.db?mode=ro", "sqlite:////data/mlflow.db"),
        ("https://host.example/mlflow", "https://host.example/mlflow"),
        ("https://ada:s3cret@host.example:5000/mlflow?token=s3cret#s3cret", "https://host.example:5000/mlflow"),
        ("http://s3cret@127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("postgresql://ada:s3c@ret@db.example/mlflow", "postgresql://db.example/mlflow"),
        ("postgresql+psycopg2://ada:s3c/ret@db.example:5432/mlflow?sslmode=require", "postgresql+psycopg2://db.example:5432/mlflow"),
        ("https://ada:s3#c?ret@host.example/x?token=s3cret", "https://host.example/x"),
        ("s3://key:s3cret@bucket/yellow/2018-01.parquet?versionId=s3cret", "s3://bucket/yellow/2018-01.parquet"),
        ("s3://bucket/by@date/2018-01.parquet", "s3://bucket/by@date/2018-01.parquet"),
        ("/data/yellow 2018#1.parquet", "/data/yellow 2018#1.parquet"),
        ("https://ada:s3cret@[broken/x", "https://[broken/x"),
    ],
)  # fmt: skip
def test_addresses_are_logged_without_secrets(uri: str, safe: str) -> None:
    assert redact(uri) == safe


def test_a_dead_server_is_told_within_seconds(free_port: Callable[[], int]) -> None:
    start = time.monotonic()
    with pytest.raises(TipcastError, match="no tracking server answers") as caught:
        open_store(_spec(f"http://127.0.0.1:{free_port()}"))
    assert time.monotonic() - start < 10
    assert caught.value.code == "T001"


def test_a_server_that_accepts_and_says_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert store.PROBE_S < 10
    monkeypatch.setattr(store, "PROBE_S", 0.5)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        start = time.monotonic()
        with pytest.raises(TipcastError, match="no tracking server answers") as caught:
            open_store(_spec(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        assert time.monotonic() - start < 5
    assert caught.value.code == "T001"


def test_credentials_in_the_address_are_refused_and_not_repeated() -> None:
    with pytest.raises(TipcastError) as caught:
        open_store(_spec("http://ada:s3cret@127.0.0.1:1/mlflow?token=s3cret"))
    assert caught.value.code == "T003"
    assert "s3cret" not in str(caught.value)
    assert "ada" not in str(caught.value)
    assert "MLFLOW_TRACKING_PASSWORD" in str(caught.value)


def _missing_folder(path: Path) -> str:
    return f"sqlite:///{path}/nowhere/mlflow.db"


def _damaged(path: Path) -> str:
    (path / "mlflow.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    return f"sqlite:///{path}/mlflow.db"


def _no_database(path: Path) -> str:
    (path / "mlflow.db").write_text("a shopping list\n" * 500)
    return f"sqlite:///{path}/mlflow.db"


def _folder_in_its_place(path: Path) -> str:
    (path / "mlflow.db").mkdir()
    return f"sqlite:///{path}/mlflow.db"


def _in_memory(path: Path) -> str:
    return "sqlite:///:memory:"


def _foreign_tables(path: Path) -> str:
    with closing(sqlite3.connect(path / "mlflow.db")) as database:
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        database.execute("INSERT INTO alembic_version VALUES ('from_the_future')")
        database.commit()
    return f"sqlite:///{path}/mlflow.db"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_missing_folder, "its folder does not exist"),
        (_damaged, "the database cannot be used"),
        (_no_database, "file is not a database"),
        (_folder_in_its_place, "unable to open database file"),
        (_in_memory, "is lost with the process"),
        (_foreign_tables, "from_the_future"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, make: Callable[[Path], str], says: str) -> None:
    with pytest.raises(TipcastError, match=says) as caught:
        open_store(_spec(make(tmp_path)))
    assert caught.value.code == "T002"
    assert "\n" not in str(caught.value)


def test_a_lock_that_is_held_is_waited_for_and_then_told(spec: TrackingSpec, tmp_path: Path) -> None:
    spec.wait_s = 0.5
    with filelock.FileLock(tmp_path / "mlflow.db.lock"), pytest.raises(TipcastError, match="held its lock") as caught:
        start = time.monotonic()
        open_store(spec)
    assert 0.5 <= time.monotonic() - start < 5
    assert caught.value.code == "T002"
    assert "mlflow.db" in caught.value.where
    open_store(spec)


def test_a_jobs_own_oserror_is_not_the_stores() -> None:
    with pytest.raises(FileNotFoundError), failures("sqlite:///mlflow.db"):
        Path("nowhere/trips.parquet").read_bytes()


def test_artifacts_that_cannot_be_written_are_told(spec: TrackingSpec, tmp_path: Path) -> None:
    client = open_store(spec)
    (tmp_path / "taken").write_text("a file where the artifacts' folder should be")
    experiment = client.create_experiment("taken", artifact_location=str(tmp_path / "taken"))
    run = client.create_run(experiment)
    with pytest.raises(TipcastError) as caught, failures("sqlite:///mlflow.db"):
        client.log_text(run.info.run_id, "x", "x.txt")
    assert caught.value.code == "T005"
    assert str(tmp_path / "taken") in caught.value.where


@pytest.mark.slow
@pytest.mark.parametrize("silent", [True, False], ids=["as shipped", "telemetry on"])
def test_nothing_outside_is_connected_to(tmp_path: Path, python: Any, silent: bool) -> None:
    """The second case shows that the guard sees what MLflow would send."""
    done = python(
        GUARDED + MAKE_RUN, tmp_path, PYTHONPATH=SRC, **({} if silent else {"MLFLOW_DISABLE_TELEMETRY": "false"})
    )
    assert "models:/tips/1" in done.stdout, done.stderr
    assert done.returncode == (0 if silent else 1), done.stderr
    assert ("outside []" in done.stderr) is silent
