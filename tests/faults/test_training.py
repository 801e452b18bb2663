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

from tipcast.tracking.versions import logged_id

ROOT = Path(__file__).resolve().parents[2]
QUICK = (
    "data.rows=6000",
    "model.params.n_estimators=20",
    "model.fit.early_stopping_rounds=null",
    "tracking.system_metrics=false",
    "cluster.performance_report=false",
    "cluster.wait_s=300",
)
CLOSED = "the open run is closed as KILLED"
Start = Callable[..., Any]


TWO_WORKERS = ("cluster.n_workers=2", "cluster.threads_per_worker=1")


def points(store: Any) -> list[list[tuple[Any, ...]]]:
    """Return each run's points of curves and of test metrics, each as often as it was logged."""
    of_runs: dict[str, list[tuple[Any, ...]]] = {}
    logged = "key like '%logloss%' or key like 'test/%'"
    for run, *point in store.query(
        f"select run_uuid, key, step, value from metrics where {logged}"  # noqa: S608
    ):
        of_runs.setdefault(run, []).append(tuple(point))
    return [sorted(of_run) for of_run in of_runs.values()]


@pytest.mark.parametrize("hit", [signal.SIGKILL, signal.SIGSTOP])
def test_a_training_goes_on_without_a_lost_worker(
    tipcast: Start, store: Any, hit: signal.Signals
) -> None:
    """F01, F03: one is killed or frozen after its first round; training goes on from there, and
    each round is logged once.

    That the model is the same, unit tests show: two processes may place their rows otherwise.
    """
    words = ("train", *QUICK, *TWO_WORKERS, "model.fit.checkpoint_s=0.000001")
    job = tipcast(*words, "cluster.worker_ttl_s=10", hold="checkpoint")
    (first,) = job.reached("checkpoint")
    os.kill(first, hit)
    job.open_gate()
    job.ends(0)
    assert "worker lost: tcp://127.0.0.1:" in job.err
    assert "lost while training: tcp://127.0.0.1:" in job.err
    assert "continues after round 1\n" in job.err
    assert store.statuses() == ["FINISHED"]
    assert store.tag("recoveries") == ["1"]
    (logged,) = points(store)
    curve = [step for key, step, _ in logged if key == "history/validation_logloss"]
    assert curve == list(range(20))


def test_a_training_whose_process_was_killed_is_resumed(tipcast: Start, store: Any) -> None:
    """The same run goes on from its checkpoint, and no point of a curve is logged twice."""
    words = ("train", *QUICK, "model.params.subsample=0.7", "model.params.n_estimators=40")
    keeping = (*words, "cluster.processes=true", "model.fit.checkpoint_s=0.001")
    undisturbed = tipcast(*keeping, name="undisturbed")
    undisturbed.ends(0)
    job = tipcast(*keeping, hold="checkpoint", name="killed")
    job.reached("kept")
    os.killpg(job.process.pid, signal.SIGKILL)
    job.ends(-signal.SIGKILL)
    again = tipcast("train", "resume=last", name="again")
    again.ends(0)
    assert re.search(r"continues after round \d+\n", again.err)
    assert store.statuses() == ["FINISHED", "FINISHED"]
    whole, resumed = points(store)
    assert resumed == whole


def test_a_training_that_is_stopped_says_how_to_resume_it(tipcast: Start, store: Any) -> None:
    """Its last lines have the command, once a checkpoint is among the artifacts."""
    job = tipcast("train", *QUICK, "model.fit.checkpoint_s=0.001", hold="checkpoint", name="stop")
    job.reached("kept")
    os.killpg(job.process.pid, signal.SIGINT)
    job.ends(130)
    said = re.search(r"a checkpoint is stored; continue with: tipcast (train resume=\w+)", job.err)
    assert said, job.err
    assert CLOSED in job.err

    again = tipcast(*said[1].split(), name="again")
    again.ends(0)
    assert re.search(r"continues after round \d+\n", again.err)
    assert store.statuses() == ["FINISHED"]


@pytest.mark.parametrize("words", [(), TWO_WORKERS], ids=["one worker", "two workers"])
def test_a_training_that_is_stopped_in_a_fold_does_not_wait_for_its_fit(
    tipcast: Start, store: Any, words: tuple[str, ...]
) -> None:
    """The fit is held, and would never end."""
    job = tipcast("train", *QUICK, *words, "task.folds=3", hold="fit")
    job.reached("fit")
    os.killpg(job.process.pid, signal.SIGINT)
    assert job.ends(130) == f"interrupted: {CLOSED}"
    assert store.statuses() == ["KILLED"]


@pytest.mark.parametrize("hit", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_is_lost_in_a_training(tipcast: Start, store: Any, hit: signal.Signals) -> None:
    """F02: one that is killed or frozen when all begin to boost ends the job, which names it, where
    it must not go on.

    S31: till then all sockets that listen are on 127.0.0.1, but those of XGBoost's workers, which
    no setting binds.
    """
    ttl = ["cluster.worker_ttl_s=10"] if hit == signal.SIGSTOP else []
    words = ("train", *QUICK, *TWO_WORKERS, "cluster.recoveries=0")
    job = tipcast(*words, *ttl, hold="fit")
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
    """F12: a version can be loaded as soon as it is made; a resumed run puts its number in."""
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
    model_id = logged_id(version)
    assert f"models:/{model_id}" in version.description
    assert version.tags["sha256.manifest"]
    assert client.get_logged_model(model_id).status == "READY"

    words = (f"resume={version.run_id}", "tracking.system_metrics=false")
    tipcast("train", *words, name="resumed").ends(0)
    (version,) = client.search_model_versions("name='tips'")
    assert "models:/tips/1" in version.description
    assert f"models:/{model_id}" not in version.description
