"""A lease on a run: held for the whole of a block, given back in every ending, seen by others wherever they lock."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import RunTag

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.tracking import lease as module
from tipcast.tracking.lease import OWNER, SEEN, leased
from tipcast.tracking.store import open_store


@pytest.fixture
def client(spec: TrackingSpec) -> Any:
    return open_store(spec)


@pytest.fixture
def run_id(client: Any) -> str:
    return str(client.create_run("0").info.run_id)


def tags(client: Any, run_id: str) -> dict[str, str]:
    return dict(client.get_run(run_id).data.tags)


def owned(client: Any, run_id: str, owner: str, seen: float) -> None:
    client.log_batch(run_id, tags=[RunTag(OWNER, owner), RunTag(SEEN, str(int(seen)))])


def test_it_is_renewed_while_nothing_is_told(client: Any, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEW_S", 0.1)
    with leased(client, run_id):
        client.set_tag(run_id, SEEN, "1")
        deadline = time.monotonic() + 20
        while time.time() - float(tags(client, run_id)[SEEN]) > 60:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert tags(client, run_id)[SEEN] == "0"
    assert not [thread for thread in threading.enumerate() if thread.name == "lease"]


def test_it_is_given_back_after_a_failure(client: Any, run_id: str) -> None:
    with pytest.raises(KeyboardInterrupt), leased(client, run_id):
        raise KeyboardInterrupt
    assert tags(client, run_id)[SEEN] == "0"


def test_another_machine_that_was_heard_of(client: Any, run_id: str) -> None:
    owned(client, run_id, "elsewhere 77", time.time() - 20)
    with pytest.raises(TipcastError, match="process 77 on elsewhere") as caught, leased(client, run_id):
        pass
    assert caught.value.code == "S002"
    owned(client, run_id, "elsewhere 77", time.time() - 200)
    with leased(client, run_id):
        assert tags(client, run_id)[OWNER] == f"{socket.gethostname()} {os.getpid()}"


def test_this_machine_with_another_temporary_folder(
    client: Any, run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owned(client, run_id, f"{socket.gethostname()} {other.pid}", time.time())
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path))
    with pytest.raises(TipcastError, match=f"process {other.pid} ") as caught, leased(client, run_id):
        pass
    assert caught.value.code == "S002"
    other.communicate()
    with leased(client, run_id):  # it is gone: nobody waits for silence
        pass


def test_an_owner_that_its_parent_has_not_reaped(
    client: Any, run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    owned(client, run_id, f"{socket.gethostname()} {other.pid}", time.time())
    monkeypatch.setattr(module, "SETTLE_S", 0)
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path))
    with leased(client, run_id):
        pass
    other.wait()


def test_two_at_once(client: Any, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 0.5)
    monkeypatch.setattr(module, "RENEW_S", 0.1)
    owned(client, run_id, "elsewhere 77", 0)
    late = threading.Timer(0.2, owned, (client, run_id, "elsewhere 78", time.time()))
    late.start()
    with pytest.raises(TipcastError, match="process 78 on elsewhere"), leased(client, run_id):
        pass
    late.join()
    assert tags(client, run_id)[SEEN] != "0", "it is the other's"
    owned(client, run_id, "elsewhere 78", 0)
    with leased(client, run_id) as lease:
        lease.check()
        owned(client, run_id, "elsewhere 79", time.time())
        time.sleep(1)
        with pytest.raises(TipcastError, match="process 79 on elsewhere"):
            lease.check()
    assert tags(client, run_id)[OWNER] == "elsewhere 79"
