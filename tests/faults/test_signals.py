"""A job that is told to stop closes its run, its cluster and itself, within seconds and in few words."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.faults.conftest import STOP_S, is_worker

ENDLESS = (
    "train",
    "data.rows=20000",
    "model.params.n_estimators=1000000",
    "model.fit.early_stopping_rounds=null",
    "cluster.n_workers=1",
)
"""A job that trains until it is stopped."""
Start = Callable[..., Any]
LONG = pytest.mark.long
GONE_S = 10.0
"""How long processes of a job that has ended may need to end, on a busy machine."""


def _gone(processes: list[Any], limit_s: float) -> list[Any]:
    import psutil

    _, alive = psutil.wait_procs(processes, timeout=limit_s)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_terminated_in_mid_fit(tipcast: Start) -> None:
    job = tipcast(*ENDLESS)
    job.fitting()
    assert job.statuses == ["RUNNING"]
    tree = job.tree()
    assert len(tree) > 1, "worker processes"
    job.process.send_signal(signal.SIGTERM)
    assert job.end(STOP_S) == 143
    assert job.statuses == ["KILLED"]
    assert _gone(tree, GONE_S) == []
    assert job.err.splitlines()[-1] == "terminated: a run that was open is closed as KILLED"
    assert "Traceback" not in job.err


@pytest.mark.parametrize("times", [pytest.param(1, marks=LONG), 2])
def test_interrupted_in_mid_fit(tipcast: Start, times: int) -> None:
    job = tipcast(*ENDLESS)
    job.fitting()
    tree = job.tree()
    for _ in range(times):
        with contextlib.suppress(ProcessLookupError):  # the first was enough
            os.killpg(job.process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
        time.sleep(0.1 if times > 1 else 0)
    assert job.end(STOP_S) == 130
    assert job.statuses == ["KILLED"]
    assert _gone(tree, GONE_S) == []
    assert len(job.err.splitlines()) <= 5
    assert job.err.splitlines()[-1] == "interrupted: a run that was open is closed as KILLED"


@pytest.mark.parametrize("delay_s", [0.4, pytest.param(0.0, marks=LONG), pytest.param(0.8, marks=LONG)])
def test_interrupted_while_workers_start(tipcast: Start, delay_s: float) -> None:
    job = tipcast("-q", *ENDLESS)
    job.wait_for(lambda: any(map(is_worker, job.tree())))
    time.sleep(delay_s)
    tree = job.tree()
    os.killpg(job.process.pid, signal.SIGINT)
    assert job.end(STOP_S) == 130
    assert set(job.statuses) <= {"KILLED"}
    assert _gone(tree, GONE_S) == []
    assert job.err.splitlines() == ["interrupted: a run that was open is closed as KILLED"]


def _measured(store: Path) -> bool:
    """Whether the store has a model's metrics."""
    with contextlib.closing(sqlite3.connect(store, timeout=20)) as database:
        return bool(database.execute("select 1 from metrics where key = 'test/auc'").fetchall())


@pytest.mark.parametrize("delay_s", [0.5, pytest.param(0.0, marks=LONG), pytest.param(1.5, marks=LONG)])
def test_interrupted_near_the_end(tipcast: Start, delay_s: float) -> None:
    job = tipcast("train", "model=logistic", "data.rows=5000", "cluster.n_workers=1")
    job.wait_for(lambda: _measured(job.folder / "mlflow.db"))
    tree = job.tree()
    time.sleep(delay_s)
    os.killpg(job.process.pid, signal.SIGINT)
    assert (job.end(STOP_S), job.statuses) in ((130, ["KILLED"]), (130, ["FINISHED"]), (0, ["FINISHED"]))
    assert _gone(tree, GONE_S) == []
    assert "Traceback" not in job.err


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=LONG)])
def test_the_launcher_dies(start: Start, project: Path, number: signal.Signals) -> None:
    store = f"sqlite:///{project.parent / 'job' / 'mlflow.db'}"
    words = [word for key in ENDLESS[1:] for word in ("-P", key)]
    command = [sys.executable, "-m", "mlflow", "run", ".", "--env-manager", "local", *words]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    job = start(command, folder=project, MLFLOW_TRACKING_URI=store, PATH=path)
    job.fitting()
    tree = job.tree()
    assert len(tree) > 2
    job.process.send_signal(number)
    job.end(STOP_S)
    assert _gone(tree, 5) == []
    assert job.statuses == ["KILLED"]
