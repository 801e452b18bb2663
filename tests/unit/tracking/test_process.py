"""Which process opened a run, and runs that nobody will close: closed by the next command, never one that may live."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.tracking import process
from tipcast.tracking.run import open_run
from tipcast.tracking.store import open_store

STORE = "postgresql://host/mlflow"
"""A store that many machines may use."""


@pytest.fixture
def client(spec: TrackingSpec) -> Any:
    return open_store(spec)


@pytest.fixture
def left(client: Any) -> Callable[..., str]:
    """Leave a run open whose process differs from this one; by default by a start that is long ago."""

    def leave(**identity: Any) -> str:
        return str(client.create_run("0", tags=written(**identity or {"start": "1"})).info.run_id)

    return leave


def written(**changes: Any) -> dict[str, str]:
    """Return this process's tags with some of what identifies it changed."""
    tags = process.tags()
    return tags | {process.PROCESS: json.dumps(json.loads(tags[process.PROCESS]) | changes)}


def status(client: Any, run_id: str) -> str:
    return str(client.get_run(run_id).info.status)


def opened(spec: TrackingSpec, **more: Any) -> Any:
    return open_run(spec, name="n", tags={}, params={}, **more)


def test_whether_a_process_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not process.has_exited(written(), STORE)
    assert process.has_exited(written(start="1"), STORE), "another has its number now"
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended; its parent has not taken notice
    assert process.has_exited(written(pid=child.pid), STORE)
    child.wait()
    assert process.has_exited(written(pid=child.pid), STORE)
    assert not process.has_exited({}, STORE)
    huge = [written(pid=pid)[process.PROCESS] for pid in (float("inf"), 10**20)]
    for text in ("", "7", "[]", "{}", '{"pid": "x"}', "null", *huge):
        assert not process.has_exited({process.PROCESS: text}, STORE), text
    before, earlier = written(start="1"), written(boot="earlier", start="1")
    assert not process.has_exited(earlier, STORE), "it may be of another machine of this name"
    assert process.has_exited(earlier, "sqlite:///mlflow.db")
    for problem in (psutil.NoSuchProcess, psutil.AccessDenied):  # as /proc hides processes of others
        monkeypatch.setattr(process.psutil, "Process", Mock(side_effect=problem(1)))
        assert not process.has_exited(before, STORE)


def test_a_lease(client: Any, left: Callable[..., str]) -> None:
    run_id = left(pid=os.getpid())
    with pytest.raises(KeyboardInterrupt), process.leased(client, run_id):
        with pytest.raises(TipcastError, match=f"S002.*process {os.getpid()} on "), process.leased(client, run_id):
            raise AssertionError("not reached")
        raise KeyboardInterrupt
    with process.leased(client, run_id):
        pass
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)  # of another temporary folder
    run_id, elsewhere = left(pid=other.pid, start=process.started(other.pid)), left(pid=1, host="elsewhere")
    for held, holder in ((run_id, f"process {other.pid} on "), (elsewhere, "process 1 on elsewhere works on this run")):
        with pytest.raises(TipcastError, match=f"S002.*{holder}"):
            process.leased(client, held).__enter__()
    other.communicate()
    client.set_terminated(elsewhere, "KILLED")
    for free in (run_id, elsewhere):
        with process.leased(client, free):
            pass


def test_a_run_that_is_taken_up(
    spec: TrackingSpec, client: Any, left: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(spec, resume=left()) as run:
        assert not process.has_exited(client.get_run(run.id).data.tags, STORE)
    monkeypatch.setenv("MLFLOW_RUN_ID", joined := left())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(spec.uri))
    with opened(spec) as run:
        assert not process.has_exited(client.get_run(joined).data.tags, STORE)
        assert run.id == joined
    run_id = left()

    def taken_up(*_: Any) -> bool:
        client.set_tag(run_id, process.PROCESS, process.tags()[process.PROCESS])
        return True

    monkeypatch.setattr(process, "has_exited", taken_up)
    process.close_abandoned(client, str(spec.uri))
    assert status(client, run_id) == "RUNNING", "by another process, while this one looks"


def test_a_run_whose_process_was_killed_and_those_of_others(
    spec: TrackingSpec, client: Any, left: Callable[..., str], caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of others never stop one's own."""
    others = [left(pid=os.getpid()), left(start="1", host="elsewhere"), left(start="1", pid_namespace=1)]
    others.append(client.create_run("0").info.run_id)
    killed = left()
    with monkeypatch.context() as patch, opened(spec) as run:  # one's own run is tagged in batches
        patch.setattr(type(client), "set_tag", Mock(side_effect=PermissionError(1, "not permitted")))
        with opened(spec):
            pass
    for _ in range(2):
        with opened(spec):
            pass
    assert (status(client, run.id), status(client, killed)) == ("FINISHED", "KILLED")
    assert {status(client, run_id) for run_id in others} == {"RUNNING"}
