"""Where rows lie, what becomes of a fit whose worker is lost, and one fit after another on the same
workers.
"""

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from tests.conftest import NO_PAGES
from tests.waiting import WATCHDOG_S, wait_until

from tipcast.config.errors import TipcastError
from tipcast.models import fit as fits
from tipcast.models.base import Split
from tipcast.models.build import build
from tipcast.models.fit import column_names, holders, predict, watched, worker_lock
from tipcast.tasks.kinds import BINARY, REGRESSION

HOLD = """
import sys
from distributed import Client, MultiLock
from tipcast.models.fit import worker_lock
with Client(sys.argv[1]) as client, worker_lock(client, ["a", "b"]), MultiLock(["a", "b"], client):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def placed_parts(pair, parts):
    """Futures of parts, on one worker and the other in turn."""
    homes = sorted(pair.nthreads())
    return [pair.scatter(x, workers=[homes[at % 2]], hash=False) for at, (x, _) in enumerate(parts)]


def test_names_of_features_come_from_a_part(pair, parts, placed_parts):
    assert column_names(pair, placed_parts) == list(parts[0][0].columns)


def test_holders_of_each_part(pair, parts, placed_parts):
    homes = sorted(pair.nthreads())
    assert holders(pair, placed_parts) == [{homes[at % 2]} for at in range(len(parts))]


def test_a_fit_that_is_watched_returns_its_result(pair):
    assert watched(pair, list(pair.nthreads()), lambda: 3) == 3


def test_a_fit_that_is_watched_raises_its_error(pair):
    with pytest.raises(ZeroDivisionError):
        watched(pair, list(pair.nthreads()), lambda: 1 // 0)


def test_a_part_that_failed_raises_its_error(pair):
    with pytest.raises(ZeroDivisionError):
        holders(pair, [pair.submit(divmod, 1, 0, pure=False)])


def test_a_part_that_nobody_holds_is_one_of_a_lost_worker(pair, monkeypatch):
    part = pair.submit(float, 1, pure=False)
    monkeypatch.setattr(pair, "who_has", lambda parts: {future.key: () for future in parts})
    with pytest.raises(TipcastError, match=r"K003.*worker lost while training"):
        holders(pair, [part])


def test_a_closed_scheduler_ends_the_wait():
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, **NO_PAGES) as cluster:
        client = Client(cluster, set_as_default=False)
        workers = list(client.nthreads())
        over = threading.Event()

        def fit():
            client.close()
            over.wait()

        with pytest.raises(TipcastError, match="K003"):
            watched(client, workers, fit)
        over.set()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """A scheduler that other processes reach; looked at often."""
    monkeypatch.setattr(fits, "WAIT_S", 0.3)
    with LocalCluster(n_workers=0, processes=False, protocol="tcp", **NO_PAGES) as opened:
        yield opened


def test_locks_whose_holder_was_killed(cluster: LocalCluster) -> None:
    """Also the lock that XGBoost took inside of ours."""
    command = [sys.executable, "-c", HOLD, cluster.scheduler_address]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder,
        Client(cluster) as client,
    ):
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
        taken = threading.Event()
        waiting = threading.Thread(target=take, args=(client, taken), daemon=True)
        waiting.start()
        assert taken.wait(WATCHDOG_S), "what a killed process held is free again"
        waiting.join()
        locks = client.run_on_scheduler(
            lambda dask_scheduler: dict(dask_scheduler.extensions["multi_locks"].requests)
        )
        assert locks == {}


def take(client: Client, taken: threading.Event) -> None:
    with worker_lock(client, ["b", "c"]):
        taken.set()


def test_a_lock_is_waited_for(
    cluster: LocalCluster, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = threading.Event()
    looks = []
    with (
        Client(cluster) as first,
        Client(cluster) as second,
        caplog.at_level(logging.WARNING, "tipcast"),
    ):
        with worker_lock(first, ["a", "b"]):
            waiting = threading.Thread(target=take, args=(second, taken), daemon=True)
            look = second.run_on_scheduler
            monkeypatch.setattr(
                second,
                "run_on_scheduler",
                lambda *of, **more: looks.append(of) or look(*of, **more),
            )
            waiting.start()
            wait_until(lambda: len(looks) > 2)
            assert not taken.is_set()
        assert taken.wait(WATCHDOG_S)
        waiting.join()
    assert caplog.text.count(f"by {first.id}") == 1


@pytest.mark.parametrize("name", ["xgboost", "linear_dask"])
def test_a_distributed_fit_waits_until_another_on_its_workers_has_ended(
    client: Client, spec: Any, rows: Any, scattered: Any, caplog: Any, monkeypatch: Any, name: str
) -> None:
    """The other is the lock that it holds, of another client of the scheduler."""
    monkeypatch.setattr(fits, "WAIT_S", 0.3)
    kind = BINARY if name == "xgboost" else REGRESSION
    model = build(spec(name, fit={}), "cpu", (), kind)
    x, y = scattered([rows(900, 0)])
    ended = threading.Event()

    def fit() -> None:
        model.fit_distributed(client, Split(x, y), seed=0)
        ended.set()

    waiting = threading.Thread(target=fit, daemon=True)
    with (
        Client(client.scheduler.address, set_as_default=False) as other,
        caplog.at_level(logging.WARNING, "tipcast"),
    ):
        with worker_lock(other, list(client.nthreads())):
            waiting.start()
            wait_until(lambda: ended.is_set() or other.id in caplog.text)
            assert not ended.is_set()
        assert ended.wait(WATCHDOG_S)
        waiting.join()


@pytest.mark.parametrize(("rows", "slices"), [(0, set()), (7, {7}), (50_001, {25_001, 25_000})])
def test_one_part_is_scored_by_all_threads_of_a_worker(
    client: Client, rows: int, slices: set[int]
) -> None:
    x = pd.DataFrame({"a": np.arange(rows, dtype=np.float32)})

    class Sizes:
        """Scores a row by its value and the number of rows that are scored with it."""

        def score(self, part: pd.DataFrame) -> np.ndarray:
            return np.column_stack([part["a"], np.full(len(part), len(part))])

    (scores,) = client.gather(
        predict(client, client.submit(Sizes, pure=False), client.scatter([x], hash=False))
    )
    np.testing.assert_array_equal(scores[:, 0], x["a"])
    assert set(scores[:, 1]) == slices
