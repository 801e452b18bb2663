"""Trainings that lose a worker, their launcher, or are stopped while they register their model."""

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICK = (
    "data.rows=6000",
    "model.params.n_estimators=20",
    "model.fit.early_stopping_rounds=null",
    "tracking.system_metrics=false",
    "cluster.performance_report=false",
    "cluster.wait_s=300",
)
CLOSED = "a run that was open is closed as KILLED"
Start = Callable[..., Any]


@pytest.mark.parametrize("hit", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_is_lost_in_a_training(tipcast: Start, store: Any, hit: signal.Signals) -> None:
    """F01, F03: one that is killed or frozen when all begin to boost ends the job, which names it.

    S31: till then all sockets that listen are on 127.0.0.1, but those of XGBoost's workers, which
    no setting binds.
    """
    two = ("cluster.n_workers=2", "cluster.threads_per_worker=1")
    ttl = ["cluster.worker_ttl_s=10"] if hit == signal.SIGSTOP else []
    job = tipcast("train", *QUICK, *two, *ttl, hold="fit")
    lost, other = job.reached("fit", 2)
    assert lost != other, "they train together"
    sockets = [
        (one.pid, socket)
        for one in job.living_processes()
        for socket in one.net_connections("inet")
    ]
    listen = [
        (pid, socket.laddr.ip) for pid, socket in sockets if socket.status == psutil.CONN_LISTEN
    ]
    assert len({pid for pid, _ in listen}) >= 3, "driver and workers"
    assert {pid for pid, ip in listen if ip != "127.0.0.1"} <= {lost, other}
    os.kill(lost, hit)
    job.open_gate()
    assert re.match(
        r"error\[K003\] tcp://127\.0\.0\.1:\d+.*: worker lost while training\. Fix: ", job.ends(4)
    )
    assert store.statuses() == ["FAILED"]
    assert store.tag("error.code") == ["K003"]


def test_mlflow_run_is_terminated(tipcast: Start, store: Any, tmp_path: Path) -> None:
    """F11: a training whose launcher has gone closes its run and ends."""
    project = tmp_path / "project"
    project.mkdir()
    for name in ("MLproject", "conda.yaml"):
        shutil.copy(ROOT / name, project)
    for name in ("src", "conf"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    words = [
        word
        for key in (*QUICK, "cluster.n_workers=1", "cluster.processes=true")
        for word in ("-P", key)
    ]
    command = [sys.executable, "-m", "mlflow", "run", ".", "--env-manager", "local", *words]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    job = tipcast(command=command, hold="fit", folder=project, PATH=path)
    (worker,) = job.reached("fit")
    assert {job.process.pid, worker} < {process.pid for process in job.living_processes()}, (
        "workers are of its session"
    )
    job.process.send_signal(signal.SIGTERM)
    job.ends(-signal.SIGTERM)
    assert store.statuses() == ["KILLED"]


def test_terminated_while_registering(tipcast: Start, store: Any) -> None:
    """F12: a version is complete when it is made."""
    words = (
        "model=logistic",
        "data.rows=4000",
        "cluster.processes=false",
        "tracking.register=tips",
    )
    job = tipcast("train", *words, "tracking.system_metrics=false", hold="version")
    client = mlflow.MlflowClient(store.uri)
    job.reached("version")
    job.process.send_signal(signal.SIGTERM)
    assert re.fullmatch(f"terminated: {CLOSED}", job.ends(143))
    assert store.statuses() == ["KILLED"]
    (version,) = client.search_model_versions("name='tips'")
    assert version.description
    assert version.tags["sha256.manifest"]
    assert (
        client.get_logged_model(version.model_id or version.source.removeprefix("models:/")).status
        == "READY"
    )
