"""Where parts lie, and what becomes of tasks when a worker is lost."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from distributed import Client, LocalCluster, wait

from tipcast.config.errors import TipcastError
from tipcast.estimators import placement


def test_parts_are_found_where_they_were_put(pair):
    one, other = sorted(pair.nthreads())
    parts = [pair.submit(float, i, workers=[where], pure=False) for i, where in enumerate((one, other, one))]
    assert placement.by_worker(pair, parts) == {one: [0, 2], other: [1]}


def test_copied_parts_are_spread_over_those_that_hold_them(pair):
    one, other = sorted(pair.nthreads())
    copied = pair.scatter([10.0, 11.0, 12.0, 13.0], broadcast=True, hash=False)
    (alone,) = pair.scatter([14.0], workers=[one], hash=False)
    assert placement.by_worker(pair, [*copied, alone]) == {one: [1, 3, 4], other: [0, 2]}


def test_parts_that_nobody_holds_any_more_end_the_training(monkeypatch):
    def lost(parts):
        wait(parts)
        client.run_on_scheduler(_remove, address=address)

    async def _remove(dask_scheduler, address):
        await dask_scheduler.remove_worker(address, stimulus_id="test")

    cluster = LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0")
    with cluster, Client(cluster, set_as_default=False) as client:
        (address,) = client.nthreads()
        parts = [client.submit(float, 1, workers=[address], pure=False)]
        monkeypatch.setattr(placement, "wait", lost)
        with pytest.raises(TipcastError, match=r"K003.*worker lost while training"):
            placement.by_worker(client, parts)


def test_a_part_that_failed_tells_why(pair):
    with pytest.raises(ZeroDivisionError):
        placement.by_worker(pair, [pair.submit(divmod, 1, 0, pure=False)])


def test_results_come_by_worker(pair):
    tasks = {address: pair.submit(len, address, workers=[address], pure=False) for address in pair.nthreads()}
    assert placement.results(pair, tasks) == {address: len(address) for address in tasks}


def test_the_first_failure_does_not_wait_for_the_others(short_lived):
    one, other = sorted(short_lived.nthreads())
    tasks = {
        one: short_lived.submit(divmod, 1, 0, workers=[one], pure=False),
        other: short_lived.submit(time.sleep, 600, workers=[other], pure=False),
    }
    start = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        placement.results(short_lived, tasks)
    assert time.monotonic() - start < 60
    for pid in short_lived.run(os.getpid).values():  # or closing would wait for the sleeper
        os.kill(pid, signal.SIGKILL)


def test_a_lost_worker_ends_the_wait(short_lived):
    pids = short_lived.run(os.getpid)
    one, other = sorted(pids)
    tasks = {address: short_lived.submit(time.sleep, 600, workers=[address], pure=False) for address in (one, other)}
    threading.Timer(1.0, os.kill, (pids[one], signal.SIGKILL)).start()
    start = time.monotonic()
    with pytest.raises(TipcastError, match=f"K003.*{one}.*worker lost while training"):
        placement.results(short_lived, tasks)
    assert time.monotonic() - start < 60
    os.kill(pids[other], signal.SIGKILL)
