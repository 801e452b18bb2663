"""Where trials go: to a slot that is free, home where that has one, and alone where another would be in danger."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from distributed import Client, LocalCluster, Status, get_worker
from tests.conftest import NO_PAGES
from tests.waiting import WATCHDOG_S, wait_until

from tipcast.config.errors import TipcastError
from tipcast.search import task
from tipcast.search.pool import Pool
from tipcast.search.trial import Begun, Ended, Event, Lost, Measured, Proposal, Study, Trial, Work
from tipcast.search.workers import TrialWorkers

from .conftest import measured, model

Made = Callable[..., Study]
FIT = task.RunningWork.trials


class Given:
    """Works in a given order; one after another where it is said."""

    def __init__(self, works: Sequence[Work], *, at_once: bool = True) -> None:
        self.total, self._works, self._at_once = len(works), list(works), at_once
        self._running = 0

    def next(self) -> Work | None:
        if not self._works or (self._running and not self._at_once):
            return None
        self._running += 1
        return self._works.pop(0)

    def tell(self, trial: Trial) -> None:
        self._running -= 1

    def fail(self, number: int) -> None:
        self._running -= 1


def works(number: int, homes: Sequence[str | None] = (None,)) -> list[Work]:
    return [Work((Proposal(at, {"max_depth": 3}),), worker=homes[at % len(homes)]) for at in range(number)]


@pytest.fixture(
    params=[(2, 1), pytest.param((4, 1), marks=pytest.mark.long), (2, 4)], ids=["2x1", "4x1", "2x4"], scope="module"
)
def workers(request: pytest.FixtureRequest) -> Iterator[Client]:
    """Workers and threads of each, in this process."""
    number, threads = request.param
    options = {"processes": False, **NO_PAGES}
    with LocalCluster(n_workers=number, threads_per_worker=threads, **options) as cluster, Client(cluster) as client:
        yield client


def events(client: Client, study: Study, searcher: Any) -> list[Event]:
    hosts = TrialWorkers(client, study, 1, WATCHDOG_S)
    with hosts.opened():
        hosts.load(1)
        return list(Pool(hosts, 3).events(searcher))


def ended(found: Sequence[Event]) -> list[Trial]:
    return [trial for event in found if isinstance(event, Ended) for trial in event.trials]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Let the first trials go on only when all others have ended."""

    def hold(first: int, trials: int) -> None:
        left, gate, lock = set(range(first, trials)), threading.Event(), threading.Lock()

        def fit(running: Any) -> list[Trial]:
            number = running.work.numbers[0]
            if number < first:
                assert gate.wait(WATCHDOG_S), f"trials {sorted(left)} wait for one that holds its worker"
                return FIT(running)
            found = FIT(running)
            with lock:
                left.discard(number)
                if not left:
                    gate.set()
            return found

        monkeypatch.setattr(task.RunningWork, "trials", fit)

    return hold


@pytest.mark.parametrize("promoted", [False, True])
def test_no_trial_waits_while_a_slot_is_free(workers: Client, study: Made, held: Any, promoted: bool) -> None:
    slots = sum(workers.nthreads().values())
    number = slots + 8
    held(slots - 1, number)
    homes = sorted(workers.nthreads()) if promoted else [None]
    found = events(workers, study(model("xgboost", n_estimators=2)), Given(works(number, homes)))
    order = [trial.number for trial in ended(found)]
    assert sorted(order) == list(range(number))
    assert order[: number - slots] == list(range(slots - 1, number - 1)), "through the one slot that is free"


def test_trees_are_grown_on_where_they_are(workers: Client, study: Made) -> None:
    homes = sorted(workers.nthreads())[::-1]
    given = works(6, homes)
    found = events(workers, study(model("xgboost", n_estimators=2)), Given(given, at_once=False))
    assert {trial.number: trial.worker for trial in ended(found)} == {work.numbers[0]: work.worker for work in given}
    assert [type(event) for event in found] == [Begun, Ended] * 6


def paused(scores: Any, labels: Any) -> Measured:
    """Pause the worker, as Dask does for lack of memory."""
    worker = get_worker()
    worker.loop.add_callback(setattr, worker, "status", Status.paused)
    return measured(scores, labels)


@pytest.mark.parametrize("number", [2, 3])
def test_workers_that_are_paused_get_nothing(study: Made, number: int) -> None:
    common = Study(**{**vars(study(model("xgboost", n_estimators=2))), "measure": paused})
    options = {"processes": False, **NO_PAGES, "memory_limit": 0}  # or Dask would end the pause
    found: list[Event] = []
    with LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster, Client(cluster) as client:
        hosts = TrialWorkers(client, common, 1, 2)
        idle = pytest.raises(TipcastError, match="paused") if number > 2 else contextlib.nullcontext()
        with hosts.opened(), idle:
            hosts.load(1)
            for event in Pool(hosts, 3).events(Given(works(number))):
                found.append(event)
    assert [trial.number for trial in ended(found)] in ([0, 1], [1, 0])
    assert len(found) == 4


@contextlib.contextmanager
def one_worker() -> Iterator[tuple[LocalCluster, Client]]:
    options = {"processes": False, **NO_PAGES}
    with LocalCluster(n_workers=1, threads_per_worker=1, **options) as cluster, Client(cluster) as client:
        yield cluster, client


def leave(cluster: LocalCluster, client: Client) -> None:
    """Let all workers go."""
    cluster.scale(0)
    wait_until(lambda: not client.nthreads())


def test_a_trial_whose_worker_is_gone_is_given_to_one_that_comes(study: Made) -> None:
    common = study(model("xgboost", n_estimators=2))
    with one_worker() as (cluster, client):
        hosts = TrialWorkers(client, common, 1, WATCHDOG_S)
        with hosts.opened():
            hosts.load(1)
            (before,) = hosts.slots
            leave(cluster, client)
            found = []
            for event in Pool(hosts, 3).events(Given(works(3))):  # the first is sent to the worker that is gone
                found.append(event)
                cluster.scale(1)
    assert sorted(trial.number for trial in ended(found)) == [0, 1, 2]
    assert [event.work.numbers for event in found if isinstance(event, Lost)] == [(0,)]
    assert before not in {trial.worker for trial in ended(found)}


def test_a_trial_whose_worker_retires_is_begun_again(study: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask would give it to another in silence: it does not count the worker as dead."""
    begun, gate = threading.Event(), threading.Event()

    def fit(running: Any) -> list[Trial]:
        if not begun.is_set():
            begun.set()
            gate.wait(WATCHDOG_S)
        return FIT(running)

    monkeypatch.setattr(task.RunningWork, "trials", fit)
    with one_worker() as (cluster, client):
        hosts = TrialWorkers(client, study(model("xgboost", n_estimators=2)), 1, WATCHDOG_S)
        with hosts.opened():
            hosts.load(1)
            found = []
            for event in Pool(hosts, 3).events(Given(works(1))):
                found.append(event)
                if len(found) == 1:
                    assert begun.wait(WATCHDOG_S)
                    leave(cluster, client)
                    cluster.scale(1)
            gate.set()
    assert [type(event) for event in found] == [Begun, Lost, Begun, Ended]
    assert [trial.attempt for trial in ended(found)] == [2]


def test_rows_are_read_by_a_worker_that_comes(study: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only one goes between the look at the workers and the word to read."""
    common = study(model("xgboost", n_estimators=2))
    with one_worker() as (cluster, client):
        hosts = TrialWorkers(client, common, 1, WATCHDOG_S)
        submit = hosts.submit

        def late(*args: Any) -> Any:
            leave(cluster, client)
            monkeypatch.setattr(hosts, "submit", submit)
            future = submit(*args)
            cluster.scale(1)
            return future

        monkeypatch.setattr(hosts, "submit", late)
        with hosts.opened():
            counts = hosts.load(2)
    assert sum(part.rows for fragment in counts for part in fragment) > 0


def test_a_worker_that_never_comes_is_not_waited_for(study: Made) -> None:
    with one_worker() as (cluster, client):
        hosts = TrialWorkers(client, study(model("xgboost", n_estimators=2)), 1, 2)
        with hosts.opened():
            hosts.load(1)
            leave(cluster, client)
            with pytest.raises(TipcastError, match="K003.*gone"):
                list(Pool(hosts, 3).events(Given(works(3))))
