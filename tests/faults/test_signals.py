"""A job that is told to stop closes its run, its cluster and itself, within seconds and in few words."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ENDLESS = (
    "train",
    "data.rows=20000",
    "model.params.n_estimators=1000000",
    "model.fit.early_stopping_rounds=null",
    "cluster.n_workers=1",
)
"""A job that trains until it is stopped."""
Start = Callable[..., Any]


def _gone(processes: list[Any], limit_s: float) -> list[Any]:
    import psutil

    _, alive = psutil.wait_procs(processes, timeout=limit_s)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_terminated_in_mid_fit(tipcast: Start) -> None:
    job = tipcast(*ENDLESS)
    job.fitting()
    assert job.statuses == ["RUNNING"]
    tree = job.tree()
    assert len(tree) > 1, "worker processes"
    job.process.send_signal(signal.SIGTERM)
    code, seconds = job.end(30)
    assert code == 143
    assert seconds < 10
    assert job.statuses == ["KILLED"]
    assert _gone(tree, 1) == []
    assert job.err.splitlines()[-1] == "terminated: a run that was open is closed as KILLED"
    assert "Traceback" not in job.err


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_interrupted_in_mid_fit(tipcast: Start, times: int) -> None:
    job = tipcast(*ENDLESS)
    job.fitting()
    tree = job.tree()
    for _ in range(times):
        os.killpg(job.process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
        time.sleep(0.3 if times > 1 else 0)
    code, seconds = job.end(30)
    assert code == 130
    assert seconds < 10
    assert job.statuses == ["KILLED"]
    assert _gone(tree, 1) == []
    assert len(job.err.splitlines()) <= 5
    assert job.err.splitlines()[-1] == "interrupted: a run that was open is closed as KILLED"


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0.0, 0.4, 0.8])
def test_interrupted_while_workers_start(tipcast: Start, delay_s: float) -> None:
    job = tipcast(*ENDLESS)
    job.wait_for(lambda: any("spawn_main" in " ".join(process.cmdline()) for process in job.tree()))
    time.sleep(delay_s)
    tree = job.tree()
    os.killpg(job.process.pid, signal.SIGINT)
    code, seconds = job.end(30)
    assert code == 130
    assert seconds < 10
    assert set(job.statuses) <= {"KILLED"}
    assert _gone(tree, 2) == []
    assert job.err.splitlines() == ["interrupted: a run that was open is closed as KILLED"]


@pytest.mark.slow
def test_the_launcher_dies(start: Start, project: Path) -> None:
    jobs = {}
    for number in (signal.SIGTERM, signal.SIGKILL):
        store = f"sqlite:///{project.parent / number.name / 'mlflow.db'}"
        words = [word for key in ENDLESS[1:] for word in ("-P", key)]
        command = [sys.executable, "-m", "mlflow", "run", ".", "--env-manager", "local", *words]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        jobs[number] = start(command, name=number.name, folder=project, MLFLOW_TRACKING_URI=store, PATH=path)
        jobs[number].wait_for((jobs[number].folder / "mlflow.db").exists)  # one first start at a time
    for number, job in jobs.items():
        job.fitting()
        tree = job.tree()
        assert len(tree) > 2
        job.process.send_signal(number)
        job.end(5)
        assert _gone(tree, 5) == []
        assert job.statuses == ["KILLED"]
