"""What the pool makes of trials that end, workers that die and time that passes: on a test's own
workers and clock.
"""

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from distributed.scheduler import KilledWorker

from tipcast.config.errors import TipcastError
from tipcast.search.halving import Halving
from tipcast.search.pool import Pool
from tipcast.search.proposals import Listed
from tipcast.search.trial import (
    Objective,
    Proposal,
    Rungs,
    TrialEvent,
    TrialFailed,
    TrialResult,
    TrialStarted,
)
from tipcast.search.trial_workers import TrialWorkers


class Future:
    """A task on a worker, as Dask's client holds it."""

    def __init__(
        self, key: str, worker: str, proposal: Proposal, attempt: int, done: list[Any]
    ) -> None:
        self.key = key
        self.worker = worker
        self.proposal = proposal
        self.attempt = attempt
        self._done = done
        self.status = "pending"
        self._problem = None
        self.alone = True

    def done(self) -> bool:
        return self.status != "pending"

    def exception(self) -> Any:
        return self._problem

    def end(self, status: str = "finished", problem: Any = None) -> None:
        if not self.done():
            self.status = status
            self._problem = problem
            self._done.append(self)

    def release(self, force: bool = False) -> None:
        self.end("cancelled")

    cancel = release


class Workers:
    """Workers of so many slots; ``act`` decides what happens when the pool waits, by default the
    first task ends.
    """

    wait_s = 60.0

    def __init__(self, slots: dict[str, int], act: Callable[[Any], None] | None = None) -> None:
        objective = Objective("study", "auc", maximize=True)
        self.sweep_setup = SimpleNamespace(sweep_id="s", objective=objective)
        self.slots, self.lost, self.memory = slots, set[str](), set[str]()
        self.reports: dict[tuple[int, int], TrialResult] = {}
        self.running: list[Future] = []
        self.done: list[Future] = []
        self.seconds = 0.0
        self._act = act or (lambda workers: workers.end(workers.running[0]))

    def submit(self, worker: str, key: str, proposal: Proposal, attempt: int) -> Future:
        beside = [other for other in self.running if other.worker == worker]
        assert len(beside) < self.slots[worker]
        self.running.append(Future(key, worker, proposal, attempt, self.done))
        for future in (*beside, self.running[-1]):
            future.alone = future.alone and not beside
        assert all(future.alone for future in self.running if future.attempt > 1), (
            "a retried trial is alone"
        )
        return self.running[-1]

    def wait(self) -> list[Future]:
        self._act(self)
        done = self.done.copy()
        self.done.clear()
        return done

    def ended_for_memory(self, worker: str) -> bool:
        return worker in self.memory

    def report(self, future: Future) -> None:
        number = future.proposal.number
        params = future.proposal.params
        score = 0.5 + params["depth"] / 100
        self.reports[number, future.attempt] = TrialResult(
            number, params, score, {}, {}, future.worker, future.attempt
        )

    def end(self, future: Future) -> None:
        self.running.remove(future)
        self.report(future)
        future.end()

    def die(self, worker: str) -> None:
        """Let a worker die with all its tasks; its nanny starts it again."""
        gone = [future for future in self.running if future.worker == worker]
        self.running = [future for future in self.running if future.worker != worker]
        for future in gone:
            future.end("error", KilledWorker(future.key, SimpleNamespace(memory_limit=2**30), 0))

    restart = die


def listed(trials: int) -> Listed:
    return Listed([Proposal(at, {"depth": at % 5}) for at in range(trials)], {})


def events(
    workers: Any, trials: int | Any, max_worker_losses: int = 3, **more: Any
) -> list[TrialEvent]:
    searched = listed(trials) if isinstance(trials, int) else trials
    return list(
        Pool(workers, max_worker_losses, now=lambda: workers.seconds, **more).events(searched)
    )


def finished(happened: list[TrialEvent]) -> list[int]:
    return sorted(event.number for event in happened if isinstance(event, TrialResult))


def failures(happened: list[TrialEvent]) -> list[tuple[int, str, bool]]:
    return [
        (event.number, event.problem.code, event.retried)
        for event in happened
        if isinstance(event, TrialFailed)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_every_trial_ends_once_whichever_workers_die(seed: int) -> None:
    draw = random.Random(seed)

    def act(workers: Workers) -> None:
        if not workers.running:
            return
        future = draw.choice(workers.running)
        if draw.random() < 0.6:
            workers.end(future)
        elif draw.random() < 0.3:  # when all is done, and the driver has yet to hear of it
            workers.report(future)
            workers.die(future.worker)
        elif draw.random() < 0.5:
            workers.die(future.worker)
        else:
            workers.lost.add(future.key)
            workers.running.remove(future)

    happened = events(Workers({"a": 1, "b": 3, "c": 2}, act), 20, max_worker_losses=1000)
    assert finished(happened) == list(range(20))
    begun = Counter(event.proposal.number for event in happened if isinstance(event, TrialStarted))
    lost = Counter(
        event.number for event in happened if isinstance(event, TrialFailed) and event.retried
    )
    assert begun == lost + Counter(range(20)), (
        "each is begun once more for each worker that it lost"
    )
    assert all(
        event.attempt == begun[event.number] for event in happened if isinstance(event, TrialResult)
    )
    assert {code for _, code, _ in failures(happened)} == {"S007"}


def test_a_later_rung_runs_where_its_trees_are() -> None:
    """If its worker has a free slot."""
    rungs = Rungs(trials=4, factor=2, trees=(1, 2))
    workers = Workers({"a": 1, "b": 1})
    workers.sweep_setup.objective = Objective("study", "auc", maximize=True, rungs=rungs)
    halving = Halving(listed(4), workers.sweep_setup.objective, rungs, {})
    trials = {
        event.number: event for event in events(workers, halving) if isinstance(event, TrialResult)
    }
    later = [number for number in trials if number >= 4]
    assert sorted(later) == [6, 7]
    assert {trials[number].worker for number in (2, 3)} == {"a", "b"}
    assert [trials[number].worker for number in later] == [
        trials[number - 4].worker for number in later
    ]


def test_a_trial_that_is_out_of_memory_alone_has_failed() -> None:
    """Of one whose workers all die tests/faults tell."""

    def full(workers: Workers) -> None:
        workers.memory = {"a"}
        workers.die("a")

    for slots, expected in (
        (1, [(0, "S005", False)]),
        (2, [(0, "S005", True), (0, "S005", False)]),
    ):
        happened = events(Workers({"a": slots}, full), 1)
        assert failures(happened) == expected
        assert isinstance(happened[-1], TrialFailed)
        assert happened[-1].problem.what == "worker out of memory, limit 1024 MiB"


def test_no_trial_takes_too_long() -> None:
    """Those beside one that does are begun again. Of the time of a whole sweep
    tests/jobs/test_sweep.py tells.
    """

    def slow(workers: Workers) -> None:
        workers.seconds += 1
        if others := [future for future in workers.running if future.proposal.number != 2]:
            workers.end(others[0])

    happened = events(Workers({"a": 1, "b": 3}, slow), 8, max_worker_losses=1, limit_s=8)
    (failed,) = [event for event in happened if isinstance(event, TrialFailed)]
    assert (failed.problem.code, failed.number, failed.retried) == ("S008", 2, False)
    assert "8 s" in str(failed.problem)
    assert finished(happened) == [0, 1, 3, 4, 5, 6, 7]
    with pytest.raises(CancelledError):  # by others
        events(Workers({"a": 1}, lambda workers: workers.running[0].end("cancelled")), 1)


def leave_at_300_s(workers: Workers) -> None:
    """Let 30 s pass: the only worker is paused at first, and goes at 300 s with its trial."""
    workers.seconds += 30
    if workers.seconds == 30:
        workers.slots = {}
    elif workers.seconds == 300:
        workers.lost.add(workers.running.pop().key)


def test_a_trial_of_a_lost_worker_is_retried_on_a_new_one() -> None:
    def act(workers: Workers) -> None:
        leave_at_300_s(workers)
        if workers.seconds == 360:
            workers.slots = {"b": 1}
        elif workers.seconds > 300 and workers.running:
            workers.end(workers.running[0])

    happened = events(Workers({"a": 1}, act), 2)
    assert [type(event) for event in happened] == [
        TrialStarted,
        TrialFailed,
        TrialStarted,
        TrialResult,
        TrialStarted,
        TrialResult,
    ]


def test_a_sweep_without_workers_ends_after_the_wait() -> None:
    """Not while a worker that is paused has a trial."""
    workers = Workers({"a": 1}, leave_at_300_s)
    with pytest.raises(TipcastError, match="K003"):
        events(workers, 2)
    assert workers.seconds == 420


def test_rows_are_read_by_the_workers_that_there_are() -> None:
    counts = (("counts",),)
    gone = OSError("gone")
    data = TipcastError("D007", "file", "no column", "")
    sweep_setup: Any = SimpleNamespace(sweep_id="s", topic="t")
    for answers, memory, code, asked in (
        ([counts], False, "", 1),
        ([gone, counts], False, "", 2),  # another came
        ([gone] * 4, False, "K003", 3),
        ([gone], False, "K003", 1),
        ([data, counts], False, "D007", 1),
        # the next would run out of memory as well
        ([gone, counts], True, "K003.*lost while reading", 1),
    ):
        client = Mock()
        slept = list[float]()
        client.wait_for_workers.side_effect = [None] * len(answers) + [TimeoutError]
        client.run_on_scheduler.return_value = {"a": 1}, set()
        client.run.side_effect = [{"a": answer} for answer in answers]
        logged = [(0.0, {"worker": "a"})] if memory else []  # a little later
        client.get_events.side_effect = lambda _, logged=logged, slept=slept: (
            logged if len(slept) > 3 else []
        )
        with pytest.raises(TipcastError, match=code) if code else contextlib.nullcontext():
            assert TrialWorkers(client, sweep_setup, 1, 60, sleep=slept.append).load(3) == counts
        assert client.run.call_count == asked
