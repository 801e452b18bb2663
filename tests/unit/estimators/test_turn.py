"""Turns on workers: one after another, and none kept by a process that was killed."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from distributed import Client, LocalCluster

from tipcast.estimators import turn as turns
from tipcast.estimators.turn import turn

HOLD = """
import sys, time
from distributed import Client
from tipcast.estimators.turn import turn
with Client(sys.argv[1]) as client, turn(client, ["a", "b"]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """A scheduler that other processes reach; looked at often."""
    monkeypatch.setattr(turns, "WAIT_S", 0.3)
    with LocalCluster(n_workers=0, processes=False, protocol="tcp", dashboard_address="127.0.0.1:0") as made:
        yield made


def test_a_turn_whose_holder_was_killed(cluster: LocalCluster) -> None:
    command = [sys.executable, "-c", HOLD, cluster.scheduler_address]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder, Client(cluster) as client:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
        taken = threading.Event()
        waiting = threading.Thread(target=take, args=(client, taken), daemon=True)
        waiting.start()
        assert taken.wait(20), "what a killed process held is free again"
        waiting.join()


def take(client: Client, taken: threading.Event) -> None:
    with turn(client, ["b", "c"]):
        taken.set()


def test_a_turn_is_waited_for(cluster: LocalCluster, caplog: pytest.LogCaptureFixture) -> None:
    taken = threading.Event()
    with Client(cluster) as first, Client(cluster) as second, caplog.at_level(logging.WARNING, "tipcast"):
        with turn(first, ["a", "b"]):
            waiting = threading.Thread(target=take, args=(second, taken), daemon=True)
            waiting.start()
            time.sleep(1.5)
            assert not taken.is_set()
        assert taken.wait(20)
        waiting.join()
    assert caplog.text.count(f"of {first.id}") == 1
