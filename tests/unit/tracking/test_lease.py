"""A lease on a run: held for the whole of a block, given back in every ending, seen by others wherever they lock."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import Turns, wait_until

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.tracking import lease as module
from tipcast.tracking import process
from tipcast.tracking.lease import SEEN, leased
from tipcast.tracking.run import open_run, set_tags
from tipcast.tracking.store import open_store


@pytest.fixture
def client(spec: TrackingSpec) -> Any:
    return open_store(spec)


@pytest.fixture
def run_id(client: Any) -> str:
    return str(client.create_run("0").info.run_id)


def tags(client: Any, run_id: str) -> dict[str, str]:
    return dict(client.get_run(run_id).data.tags)


def owned(client: Any, run_id: str, host: str, pid: int, seen: float) -> None:
    """Write a run's tags as another process would."""
    known = json.loads(process.tags()[process.PROCESS]) | {"pid": pid, "start": process.started(pid)}
    set_tags(client, run_id, {process.HOST: host, process.PROCESS: json.dumps(known), SEEN: int(seen)})


def test_it_is_renewed_while_nothing_is_told(client: Any, run_id: str) -> None:
    turns, begun = Turns(), int(time.time())
    with leased(client, run_id, turns.wait):
        assert process.tags().items() <= tags(client, run_id).items()
        client.set_tag(run_id, SEEN, "1")
        turns.take()
        assert int(tags(client, run_id)[SEEN]) >= begun
    assert tags(client, run_id)[SEEN] == "0"
    assert not [thread for thread in threading.enumerate() if thread.name == "lease"]


def test_it_is_given_back_after_a_failure(client: Any, run_id: str) -> None:
    with pytest.raises(KeyboardInterrupt), leased(client, run_id):
        raise KeyboardInterrupt
    assert tags(client, run_id)[SEEN] == "0"


def test_another_machine_that_was_heard_of(client: Any, run_id: str) -> None:
    owned(client, run_id, "elsewhere", 1, time.time() - 20)
    with pytest.raises(TipcastError, match="process 1 on elsewhere") as caught, leased(client, run_id):
        pass
    assert caught.value.code == "S002"
    owned(client, run_id, "elsewhere", 1, time.time() - 200)
    with leased(client, run_id):
        assert process.tags().items() <= tags(client, run_id).items()


def test_one_that_was_overtaken_is_told_and_leaves_the_run_alone(spec: TrackingSpec, client: Any, run_id: str) -> None:
    turns = Turns()
    with (
        pytest.raises(TipcastError, match="another process works on this run") as caught,
        open_run(spec, name="sweep", tags={}, params={}, resume=run_id),
        leased(client, run_id, turns.wait) as check,
    ):
        turns.take()
        check()
        owned(client, run_id, "elsewhere", 1, 1e9)
        turns.give()
        wait_until(check)
    assert caught.value.code == "S002"
    run = client.get_run(run_id)
    assert (run.info.status, run.data.tags[SEEN]) == ("RUNNING", "1000000000")
    assert "error.code" not in run.data.tags


def test_this_machine_with_another_temporary_folder(
    client: Any, run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owned(client, run_id, process.tags()[process.HOST], other.pid, time.time())
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path))
    with pytest.raises(TipcastError, match=f"process {other.pid} ") as caught, leased(client, run_id):
        pass
    assert caught.value.code == "S002"
    other.communicate()
    with leased(client, run_id):  # it is gone: nobody waits for silence
        pass
