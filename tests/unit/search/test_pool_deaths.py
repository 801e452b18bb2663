"""Workers that die, and trials that would never end: what the pool makes of it, on workers and a clock of this test."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, Nanny, Scheduler, SpecCluster
from distributed.scheduler import KilledWorker
from tests.waiting import WATCHDOG_S

from tipcast.compute.workers import closed
from tipcast.search.pool import Pool
from tipcast.search.proposals import Listed
from tipcast.search.trial import Begun, Ended, Event, Failed, Lost, Measured, Proposal, Study, Trial, Work
from tipcast.search.workers import TrialWorkers

from .conftest import AUC, model

Made = Callable[..., Study]


class Future:
    """A task on a worker, as Dask's client holds it."""

    def __init__(self, key: str, worker: str, work: Work, attempt: int, then: Callable[[Any], None]) -> None:
        self.key, self.worker, self.work, self.attempt, self._then = key, worker, work, attempt, then
        self.status, self._problem = "pending", None

    def done(self) -> bool:
        return self.status != "pending"

    def exception(self) -> Any:
        return self._problem

    def release(self) -> None:
        pass

    def cancel(self, force: bool) -> None:
        self.end("cancelled")

    def end(self, status: str = "finished", problem: Any = None) -> None:
        self.status, self._problem = status, problem
        self._then(self)


class Workers:
    """Workers of so many slots; ``act`` decides what happens when the pool waits, by default the first task ends."""

    def __init__(self, slots: dict[str, int], act: Callable[[Workers], None] | None = None) -> None:
        self.study, self.client = SimpleNamespace(sweep="s", topic="t", objective=AUC), self
        self.slots, self.able, self.shared = slots, list(slots), {each for each in slots if slots[each] > 1}
        self.restarted: set[str] = set()
        self.lost: set[str] = set()
        self.memory: set[str] = set()
        self.running: list[Future] = []
        self.beside: dict[str, list[str]] = {}
        """Task -> those that ran on its worker as it began, or began there while it ran."""
        self.seconds = 0.0
        self._act = act or Workers.first_ends

    def subscribe_topic(self, topic: str, handler: Callable[[Any], None]) -> None:
        self._arrived = handler

    def unsubscribe_topic(self, topic: str) -> None:
        pass

    def submit(self, worker: str, key: str, then: Any, run: Any, sweep: str, work: Work, attempt: int) -> Future:
        there = [other.key for other in self.running if other.worker == worker]
        self.beside[key] = there
        for other in there:
            self.beside[other].append(key)
        self.running.append(Future(key, worker, work, attempt, then))
        assert len(there) < self.slots[worker]
        return self.running[-1]

    def ended(self, done: Any, meanwhile: Callable[[], None]) -> list[Any]:
        while done.empty():
            self._act(self)
            meanwhile()
        return [done.get() for _ in range(done.qsize())]

    def let_go(self, futures: Any) -> None:
        pass

    def restart(self, worker: str) -> None:
        self.restarted.add(worker)
        self.die(worker)

    def memory_ended(self, worker: str) -> bool:
        return worker in self.memory

    def report(self, future: Future) -> None:
        trials = [
            Trial(AUC.key(each.number), each.number, each.params, 0.5, {"auc": 0.5}, {}, future.worker, future.attempt)
            for each in future.work.proposals
        ]
        self._arrived((0.0, json.loads(json.dumps([trial.to_json() for trial in trials]))))

    def end(self, future: Future) -> None:
        self.running.remove(future)
        self.report(future)
        future.end()

    def first_ends(self) -> None:
        self.end(self.running[0])

    def die(self, worker: str) -> None:
        """Let a worker die with all its tasks; its nanny starts it again."""
        gone = [future for future in self.running if future.worker == worker]
        self.running = [future for future in self.running if future.worker != worker]
        for future in gone:
            if not future.done():
                state = SimpleNamespace(address=worker, memory_limit=2**30)
                future.end("error", KilledWorker(future.key, state, 0))


def listed(trials: int) -> Listed:
    return Listed([Proposal(at, {"max_depth": 3}) for at in range(trials)], {}, cuts=False)


def events(workers: Any, trials: int, attempts: int = 3, **more: Any) -> list[Event]:
    return list(Pool(workers, attempts, **more).events(listed(trials)))


def ended(found: list[Event]) -> list[Trial]:
    return [trial for event in found if isinstance(event, Ended) for trial in event.trials]


def test_a_trial_that_is_begun_again_has_its_worker_to_itself() -> None:
    deaths = ["b", "a"]

    def act(workers: Workers) -> None:
        if len(workers.beside) > 5 and deaths:
            workers.die(deaths.pop())
        else:
            workers.first_ends()

    workers = Workers({"a": 1, "b": 3}, act)
    found = events(workers, 12)
    trials = ended(found)
    assert sorted(trial.number for trial in trials) == list(range(12))
    lost = [n for event in found if isinstance(event, Lost) for n in event.work.numbers]
    again = [trial for trial in trials if trial.attempt > 1]
    assert sorted(trial.number for trial in again) == sorted(lost)
    assert len(lost) == 4
    for key, beside in workers.beside.items():
        assert "-2-" not in key or not beside, "it is not alone"
    assert max(map(len, workers.beside.values())) > 1, "the others are not alone"


def test_a_trial_whose_workers_all_die_has_failed() -> None:
    def act(workers: Workers) -> None:
        first = workers.running[0]
        workers.die(first.worker) if first.work.numbers == (1,) else workers.end(first)

    found = events(Workers({"a": 1}, act), 3)
    assert [trial.number for trial in ended(found)] == [0, 2]
    assert [event.work.numbers for event in found if isinstance(event, Lost)] == [(1,), (1,)]
    (failed,) = [event for event in found if isinstance(event, Failed)]
    assert (failed.problem.code, failed.work.numbers) == ("S007", (1,))


@pytest.mark.parametrize("slots", [1, 2])
def test_a_trial_that_is_out_of_memory_alone_has_failed(slots: int) -> None:
    def act(workers: Workers) -> None:
        workers.memory = {"a"}
        workers.die("a")

    found = events(Workers({"a": slots}, act), 1)
    assert [type(event) for event in found] == [Begun, Lost, Begun, Failed][(2 if slots == 1 else 0) :]
    assert isinstance(found[-1], Failed)
    assert found[-1].problem.code == "S005"


def test_a_trial_that_takes_too_long_goes_and_those_beside_it_are_begun_again() -> None:
    def act(workers: Workers) -> None:
        workers.seconds += 1
        for future in workers.running:
            if future.work.numbers != (2,):
                workers.end(future)
                return

    workers = Workers({"a": 1, "b": 3}, act)
    found = events(workers, 8, attempts=1, limit_s=8, now=lambda: workers.seconds)
    (failed,) = [event for event in found if isinstance(event, Failed)]
    assert (failed.problem.code, failed.work.numbers) == ("S008", (2,))
    assert "8 s" in str(failed.problem)
    assert sorted(trial.number for trial in ended(found)) == [0, 1, 3, 4, 5, 6, 7]
    assert workers.restarted


def test_what_has_ended_is_not_begun_again() -> None:
    """The workers die when all is done, and the driver has yet to hear of it."""

    def act(workers: Workers) -> None:
        for future in workers.running:
            workers.report(future)
        for worker in workers.slots:
            workers.die(worker)

    found = events(Workers({"a": 1, "b": 3}, act), 4)
    assert sorted(trial.number for trial in ended(found)) == [0, 1, 2, 3]
    assert not [event for event in found if isinstance(event, Lost)]


@pytest.mark.parametrize(("timeout_s", "begun"), [(30, [0, 1, 2, 3, 4]), (1000, list(range(8)))])
def test_no_trial_begins_after_the_timeout_and_those_that_run_are_finished(timeout_s: int, begun: list[int]) -> None:
    def act(workers: Workers) -> None:
        workers.first_ends()
        workers.seconds += 10

    workers = Workers({"a": 2}, act)
    pool = Pool(workers, 3, timeout_s=timeout_s, now=lambda: workers.seconds)  # type: ignore[arg-type]
    found = list(pool.events(listed(8)))
    assert [event.work.numbers[0] for event in found if isinstance(event, Begun)] == begun
    assert sorted(trial.number for trial in ended(found)) == begun
    assert pool.timed_out == (len(begun) < 8)


def test_a_task_that_is_cancelled_by_others_is_an_error() -> None:
    def act(workers: Workers) -> None:
        workers.running[0].end("cancelled")

    with pytest.raises(CancelledError):
        events(Workers({"a": 1}, act), 1)


@pytest.fixture
def one_worker(forked: None) -> Iterator[Client]:
    """A worker process of one thread."""
    options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    spec = {0: {"cls": Nanny, "options": {"nthreads": 1, **options}}}
    scheduler = {"cls": Scheduler, "options": {"port": 0, **options}}
    with closed(partial(SpecCluster, spec, scheduler, silence_logs=50), "here") as (_, client):
        yield client


def test_a_real_worker_that_hangs_is_started_anew(one_worker: Client, study: Made, tmp_path: Path) -> None:
    hangs = tmp_path / "hangs"

    def measure(scores: Any, labels: Any) -> Measured:
        if not hangs.exists():
            hangs.touch()
            threading.Event().wait()
        return Measured({"auc": 0.5}, ())

    common = Study(**{**vars(study(model("xgboost", n_estimators=2))), "measure": measure})
    workers = TrialWorkers(one_worker, common, 1, WATCHDOG_S)
    with workers.opened():
        workers.load(3)
        pool = Pool(workers, 3, limit_s=8, now=lambda: 9.0 if hangs.exists() else 0.0)
        found = list(pool.events(listed(3)))
    assert [trial.number for trial in ended(found)] == [1, 2]
    assert [event.work.numbers for event in found if isinstance(event, Failed)] == [(0,)]
