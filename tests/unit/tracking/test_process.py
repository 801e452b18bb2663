"""Which process opened a run: living, ended, not reaped, of a number used again, of another boot or container."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.tracking import process
from tipcast.tracking.store import open_store


@pytest.fixture
def client(spec: TrackingSpec) -> Any:
    return open_store(spec)


def written(**changes: Any) -> dict[str, str]:
    """Return this process's tags with some of what identifies it changed."""
    tags = process.tags()
    return tags | {process.PROCESS: json.dumps(json.loads(tags[process.PROCESS]) | changes)}


def test_this_process_and_one_of_its_number_before_it() -> None:
    assert not process.has_exited(written())
    assert process.has_exited(written(start="1"))


def test_a_process_that_ended_and_one_that_is_not_reaped() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended; its parent has not taken notice
    assert process.has_exited(written(pid=child.pid))
    child.wait()
    assert process.has_exited(written(pid=child.pid))


def test_an_earlier_boot_of_the_only_machine(client: Any, spec: TrackingSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "INITIAL", json.loads(process.tags()[process.PROCESS])["pid_namespace"])
    here, container = (
        client.create_run("0", tags=written(boot="earlier", **more)).info.run_id for more in ({}, {"pid_namespace": 1})
    )
    process.close_abandoned(client, "postgresql://host/mlflow")  # it may be of another machine of this name
    assert client.get_run(here).info.status == "RUNNING"
    process.close_abandoned(client, str(spec.uri))
    assert [client.get_run(run_id).info.status for run_id in (here, container)] == ["KILLED", "RUNNING"]
    monkeypatch.setattr(process, "INITIAL", 1)
    assert not process.has_exited(written(boot="earlier"), one_machine=True), "here is a container"


HUGE = [written(pid=pid)[process.PROCESS] for pid in (float("inf"), 10**20)]


@pytest.mark.parametrize("text", ["", "7", "[]", "{}", '{"pid": "x"}', "null", *HUGE])
def test_tags_of_others(text: str) -> None:
    assert not process.has_exited({process.HOST: process.tags()[process.HOST], process.PROCESS: text})
    assert not process.has_exited({})


@pytest.mark.parametrize("problem", [psutil.NoSuchProcess, psutil.AccessDenied])  # of hidepid=2 and hidepid=1
def test_processes_that_proc_hides_count_as_alive(
    monkeypatch: pytest.MonkeyPatch, problem: Callable[[int], Exception]
) -> None:
    tags = written(start="1")

    def hidden(pid: int) -> psutil.Process:
        raise problem(pid)

    monkeypatch.setattr(process.psutil, "Process", hidden)
    assert not process.has_exited(tags)


def test_proc_of_another_pid_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    tags = written(start="1")
    monkeypatch.setattr(process.os, "getpid", lambda: 1)
    assert process.tags() == {process.HOST: tags[process.HOST], process.PROCESS: ""}, "of a resumed run none is left"
    assert not process.has_exited(tags)


def test_a_lease_is_held_for_the_whole_of_a_block(client: Any) -> None:
    run_id = client.create_run("0", tags=process.tags()).info.run_id
    with pytest.raises(KeyboardInterrupt), process.leased(client, run_id):
        with pytest.raises(TipcastError, match=f"S002.*process {os.getpid()} on "), process.leased(client, run_id):
            raise AssertionError("not reached")
        raise KeyboardInterrupt
    with process.leased(client, run_id):
        pass


def test_a_run_that_another_machine_has_open(client: Any) -> None:
    run_id = client.create_run("0", tags=written(pid=1) | {process.HOST: "elsewhere"}).info.run_id
    with pytest.raises(TipcastError, match="S002.*process 1 on elsewhere works on this run"):
        process.leased(client, run_id).__enter__()
    client.set_terminated(run_id, "KILLED")
    with process.leased(client, run_id):
        pass


def test_a_run_of_this_machine_with_another_temporary_folder(client: Any) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = written(pid=other.pid, start=process.started(other.pid))
    run_id = client.create_run("0", tags=identity).info.run_id
    with pytest.raises(TipcastError, match=f"S002.*process {other.pid} on "):
        process.leased(client, run_id).__enter__()
    other.communicate()
    with process.leased(client, run_id):  # it is gone
        pass
