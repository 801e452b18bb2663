"""What a job meets when it begins: another that makes the store's tables, a scheduler without
workers; a scheduler that freezes; and a tracking server that goes away.
"""

import contextlib
import os
import re
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tipcast.compute import watch

WORDS = ("train", "model=logistic", "data.rows=4000", "tracking.system_metrics=false")
Start = Callable[..., Any]


def test_two_processes_open_a_new_store(tipcast: Start, store: Any) -> None:
    """F15: the second waits while the first makes the tables, and both train."""
    store.file.unlink()
    first = tipcast(*WORDS, "cluster.processes=false", hold="tables", name="first")
    first.reached("tables")
    second = tipcast(
        *WORDS, "cluster.processes=false", hold="tables", name="second", gate=first.gate
    )
    second.reached("store", 2)
    first.open_gate()
    first.ends(0)
    second.ends(0)
    opened = [event for event in first.events if event[0] in ("tables", "opened")]
    assert {process for _, process in opened} == {first.process.pid, second.process.pid}
    for begun, ended in zip(opened[::2], opened[1::2], strict=True):
        assert (begun, ended) == (("tables", begun[1]), ("opened", begun[1])), opened
    assert store.statuses() == ["FINISHED", "FINISHED"]


def test_a_scheduler_without_workers(
    tipcast: Start, store: Any, scheduler: Any, worker: Start
) -> None:
    """F24: a job waits for workers for so long; once one is there it trains, and leaves the cluster
    alone.
    """
    _, address = scheduler
    words = (
        *WORDS,
        "cluster=scheduler",
        f"cluster.address={address}",
        "cluster.performance_report=false",
    )
    words += ("cluster.connect_timeout_s=60",)
    job = tipcast(*words, "cluster.wait_s=1", name="early")
    assert re.match(rf"error\[K002\] {address}: 0 of 1 workers after 1 s.* Fix: ", job.ends(4))
    assert store.statuses() == ["FAILED"]
    assert store.tag("error.code") == ["K002"]
    hand = worker()
    tipcast(*words, "cluster.wait_s=300", name="late").ends(0)
    assert store.statuses() == ["FAILED", "FINISHED"]
    assert hand.process.poll() is None, "the cluster is not ours to end"


def impatient() -> None:
    """Take a scheduler for frozen after few seconds."""
    watch.SILENT_S = 5.0


def patient() -> None:
    """Take a scheduler for frozen only when the job is ended."""
    watch.SILENT_S = 1e9


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_scheduler_freezes(
    tipcast: Start, store: Any, scheduler: Any, worker: Start, interrupted: bool
) -> None:
    """It answers nothing, but its connections stay open; Ctrl-C need not wait for it either."""
    process, address = scheduler
    hand = worker(hold="fit")
    words = ("model=xgboost", "data.rows=6000", "model.params.n_estimators=20", *WORDS[3:])
    place = ("cluster=scheduler", f"cluster.address={address}", "cluster.connect_timeout_s=60")
    job = tipcast("train", *words, *place, before=patient if interrupted else impatient)
    hand.reached("fit")
    os.kill(process.process.pid, signal.SIGSTOP)
    if interrupted:
        os.killpg(job.process.pid, signal.SIGINT)
        assert job.ends(130) == "interrupted: the open run is closed as KILLED"
        assert store.statuses() == ["KILLED"]
        return

    last_line = job.ends(4)
    assert re.match(rf"error\[K004\] {address}: .* has not answered for 5 s\. Fix: ", last_line)
    assert store.statuses() == ["FAILED"]
    assert store.tag("error.code") == ["K004"]


def test_the_tracking_server_goes_away(
    tipcast: Start, store: Any, tables: Path, tmp_path: Path
) -> None:
    """F14: the training ends with its results and T011; `replay` brings them to the server."""
    server_db = Path(shutil.copy(tables, tmp_path / "server.db"))
    words = ["--host", "127.0.0.1", "--workers", "1"]
    words += ["--artifacts-destination", str(tmp_path / "artifacts")]
    command = [sys.executable, "-m", "mlflow", "server", *words]
    command += ["--backend-store-uri", f"sqlite:///{server_db}", "--port"]
    alone = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "TMPDIR": str(tmp_path)}

    server = tipcast(command=[*command, "0"], name="server", **alone)
    server.wait_until(lambda: "Uvicorn running on" in server.err)
    (url,) = re.findall(r"running on (http://127\.0\.0\.1:\d+)", server.err)
    job = tipcast(*WORDS, f"tracking.uri={url}", "tracking.patience_s=3", hold="run")
    job.reached("run")
    os.killpg(server.process.pid, signal.SIGKILL)
    job.open_gate()
    said = job.ends(5)
    assert re.match(r"error\[T011\] tipcast-offline-[\w-]+/mlflow\.db: .*tipcast replay tipc", said)
    assert "test/auc" in (job.folder / "stdout").read_text()

    again = tipcast(command=[*command, url.rpartition(":")[2]], name="again", **alone)
    again.wait_until(lambda: "Uvicorn running on" in again.err)
    (file,) = job.folder.glob("tipcast-offline-*/mlflow.db")
    tipcast("replay", str(file), f"tracking.uri={url}", name="replay").ends(0)
    with contextlib.closing(sqlite3.connect(server_db)) as database:
        assert database.execute("select status from runs").fetchall() == [("FINISHED",)]
        (auc,) = database.execute("select count(*) from metrics where key = 'test/auc'").fetchone()
    assert auc == 1
