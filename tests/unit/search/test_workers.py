"""Sweeps that share a scheduler: none changes it for others, and one that was killed leaves nothing there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster
from tests.conftest import NO_PAGES
from tests.waiting import wait_until

from tipcast.search import trial as worker_side
from tipcast.search.pool import TrialWorkers

from .conftest import model

ROOT = Path(__file__).resolve().parents[3]
DRIVER = """
import sys
sys.path.insert(0, "tests")
from distributed import Client
from tipcast.search.pool import TrialWorkers
from unit.search.conftest import model, study
with Client(sys.argv[1]) as client:
    common = study.__wrapped__()(model("xgboost"))
    workers = TrialWorkers(client, common, 1, 120)
    with workers.opened():
        workers.load(1)
        print(common.sweep, flush=True)
        sys.stdin.read()
"""


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """One worker in this process, and a scheduler that others reach."""
    options = {"processes": False, "protocol": "tcp", **NO_PAGES}
    with LocalCluster(n_workers=1, threads_per_worker=1, **options) as made:
        yield made


def left(cluster: LocalCluster, sweep: str) -> list[Any]:
    """Return what there is of a sweep on the scheduler and on the worker."""
    scheduler = cluster.scheduler
    plugins = [name for name in (*scheduler.plugins, *scheduler.worker_plugins) if sweep in name]
    return [*plugins, *(name for name in worker_side.CACHES if name == sweep)]


def test_a_driver_that_was_killed_leaves_nothing(cluster: LocalCluster) -> None:
    command = [sys.executable, "-c", DRIVER, cluster.scheduler_address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as driver:
        assert driver.stdout is not None
        sweep = driver.stdout.readline().strip()
        assert len(left(cluster, sweep)) == 3
        driver.kill()
    wait_until(lambda: not left(cluster, sweep))


def test_sweeps_at_once_leave_the_scheduler_as_it_is(cluster: LocalCluster, study: Any) -> None:
    """Tasks of the sweep alone are given up when their worker dies."""
    scheduler = cluster.scheduler
    before = scheduler.allowed_failures
    with Client(cluster) as first, Client(cluster) as second:
        one, other = (TrialWorkers(client, study(model("xgboost")), 1, 120) for client in (first, second))
        with one.opened():
            with other.opened():
                assert len(left(cluster, one.study.sweep)) == len(left(cluster, other.study.sweep)) == 3
                keys = (f"trial-{one.study.sweep}", "of-another")
                tasks = [first.submit(abs, -1, key=key, pure=False) for key in keys]
                first.gather(tasks)
                assert [before - scheduler.tasks[key].suspicious for key in keys] == [0, before]
            assert len(left(cluster, one.study.sweep)) == 3
            assert not left(cluster, other.study.sweep)
        assert not left(cluster, one.study.sweep)
    assert scheduler.allowed_failures == before > 0
