"""A cluster that does not close by itself is left behind in time, and its workers are gone."""

from __future__ import annotations

import time

import psutil
import pytest
from distributed import LocalCluster, Status

from tipcast.backends import ending


def cluster() -> LocalCluster:
    return LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0")


def workers(started: LocalCluster) -> list[psutil.Process]:
    return [psutil.Process(nanny.pid) for nanny in started.workers.values()]


def gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=5)[1]


def test_failure_ends_workers_at_once() -> None:
    with pytest.raises(RuntimeError, match="mine"), ending.closed(cluster) as (started, client):
        processes = workers(started)
        client.submit(time.sleep, 60)
        time.sleep(0.5)
        begun = time.monotonic()
        raise RuntimeError("mine")
    assert time.monotonic() - begun < 4
    assert gone(processes)
    assert started.status is Status.closed


def test_closing_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "CLOSE_S", 1.0)
    with ending.closed(cluster) as (started, _):
        processes = workers(started)
        (nanny,) = started.workers.values()
        nanny.process.status = Status.starting  # as one is left whose worker dies while it starts
        nanny.process.running.clear()
        begun = time.monotonic()
    assert time.monotonic() - begun < 4
    assert gone(processes)
    assert not started.shutdown_on_close
