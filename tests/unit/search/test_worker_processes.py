"""Workers of sweeps: what they import, one that is ended, one that is shared, one whose driver was killed."""

import dataclasses
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster
from tests.conftest import NO_PAGES
from tests.waiting import wait_until

from tipcast.compute.cluster import opened
from tipcast.config.schema import LocalCluster as LocalClusterSpec
from tipcast.search import trial as worker_side
from tipcast.search.pool import Pool, TrialWorkers
from tipcast.search.proposals import Listed
from tipcast.search.trial import Ended, Failed, Measured, Proposal, Study

from .conftest import model

LIMIT_MIB = 800


@pytest.mark.usefixtures("forked_workers")
def test_real_workers_that_are_started_anew(study: Callable[..., Study], tmp_path: Path) -> None:
    """Neither trial is begun again: one had its time, nothing ran beside the other."""
    hangs, hungry = tmp_path / "hangs", tmp_path / "hungry"

    def measure(scores: Any, labels: Any) -> Measured:
        if not hangs.exists():
            hangs.touch()
            threading.Event().wait()
        if not hungry.exists():
            hungry.touch()
            held = bytearray(b"x") * (LIMIT_MIB << 20)  # above the limit at once, and no further
            threading.Event().wait()
            assert held
        return Measured({"auc": 0.5}, ())

    spec = LocalClusterSpec("local", n_workers=1, threads_per_worker=1, memory_limit=f"{LIMIT_MIB}MiB")
    common = dataclasses.replace(study(model("xgboost", n_estimators=2)), measure=measure)
    with opened(spec) as client:
        workers = TrialWorkers(client, common, 1, 120)
        with workers.opened():
            workers.load(3)
            pool = Pool(workers, 3, limit_s=8, now=lambda: 9.0 if hangs.exists() and not ended else 0.0)
            ended: list[Any] = []
            for event in pool.events(Listed([Proposal(at, {"max_depth": 3}) for at in range(3)], {})):
                if not isinstance(event, Ended | Failed):
                    continue
                ended.append(event)
    slow, large, last = ended
    assert (slow.number, slow.problem.code) == (0, "S008")
    assert (large.number, large.problem.code) == (1, "S005")
    assert f"worker out of memory, limit {LIMIT_MIB} MiB" in large.problem.what
    assert last.trial.number == 2


HEAVY = {"matplotlib", "mlflow", "optuna", "pandas", "scipy", "sklearn"}


def test_workers_start_light() -> None:
    program = "import sys, tipcast.jobs.sweep_plan, tipcast.search.trial; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert {"tipcast.jobs.sweep_plan", "tipcast.search.trial"} <= set(said)
    assert not HEAVY & set(said)


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
