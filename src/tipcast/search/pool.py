"""Trials on the workers: a free slot gets the next at once, and the trial of a worker that died is retried."""

from __future__ import annotations

import contextlib
import math
import queue
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from distributed.scheduler import KilledWorker

from tipcast.config.errors import TipcastError
from tipcast.search import task
from tipcast.search.proposals import Searcher
from tipcast.search.trial import Begun, Ended, Event, Failed, Lost, Trial, Work
from tipcast.search.workers import TRIAL, TrialWorkers, outcome


@dataclass
class _Job:
    work: Work
    attempt: int = 1
    alone: bool = False
    worker: str = ""
    """Where it was sent."""
    deaths: int = 0
    """Of its workers, other than for memory."""
    begun: float = 0.0
    late: bool = False
    future: Any = None
    problem: Any = None


@final
class Pool:
    """The slots of all workers, kept filled with trials.

    A trial may lose ``attempts`` workers, not counting those out of memory. One that takes longer than ``limit_s``
    seconds has failed, and its worker is started anew. ``timeout_s`` seconds after the first no
    further trial begins.
    """

    def __init__(
        self,
        workers: TrialWorkers,
        attempts: int,
        limit_s: float | None = None,
        timeout_s: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workers, self._study, self._attempts, self._limit_s = workers, workers.study, attempts, limit_s
        self._timeout_s, self._until = math.inf if timeout_s is None else timeout_s, math.inf
        self._now = now
        self.timed_out = False
        """Whether there was more to try."""
        self._done: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._running: list[_Job] = []
        self._again: deque[_Job] = deque()
        self._held: Work | None = None
        """Work that no worker could take."""
        self._results: dict[tuple[int, int | None, int], list[Trial]] = {}

    def events(self, searcher: Searcher) -> Iterator[Event]:
        """Run all trials; what is told has happened already, and the next trial is under way before it is told."""
        self._workers.client.subscribe_topic(self._study.topic, self._arrived)
        told: deque[Event] = deque()
        try:
            while True:
                nothing_left = self._fill(searcher, told)
                while told:
                    yield told.popleft()
                if nothing_left and not self._running:
                    self.timed_out = self._now() > self._until and searcher.next() is not None
                    return
                for job in self._ended():
                    told.append(self._outcome(job, searcher))
        finally:
            with contextlib.suppress(Exception):  # a cluster that is gone holds nothing
                for job in self._running:
                    job.future.release()
                self._workers.client.unsubscribe_topic(self._study.topic)

    def _fill(self, searcher: Searcher, told: deque[Event]) -> bool:
        """Give work to free slots; tell whether none is left to give."""
        while True:
            free = self._free()
            if self._again and free:
                slots = self._workers.slots
                emptiest = min(free, key=lambda address: slots[address] - free[address])
                number = free.pop(emptiest)  # no other trial gets there until it is empty
                if number == slots[emptiest]:
                    told.append(self._submit(self._again.popleft(), emptiest))
                    continue
            free = {address: number for address, number in free.items() if number > 0}
            if not free and self._running:
                return False
            late = self._now() > self._until
            work, self._held = self._held or (None if late else searcher.next()), None
            if work is None:
                return not self._again
            if not free:
                self._held = work
                return False
            worker = work.worker if work.worker in free else max(free, key=free.__getitem__)
            told.append(self._submit(_Job(work), worker))

    def _free(self) -> dict[str, int]:
        """Return the free slots of each worker that can take a trial."""
        slots = self._workers.slots
        free = {address: slots[address] for address in self._workers.able}
        for job in self._running:
            if job.worker in free:
                free[job.worker] -= slots[job.worker] if job.alone else 1
        return free

    def _submit(self, job: _Job, worker: str) -> Begun:
        """Send work to a worker; Dask would send it to one that is busy, for it does not count what has seceded."""
        key = f"{TRIAL}{self._key(job)}-{job.work.rounds or 0}-{job.attempt}-{self._study.sweep}"
        job.worker, job.begun = worker, self._now()
        self._until = min(self._until, job.begun + self._timeout_s)
        args = (self._study.sweep, job.work, job.attempt)
        job.future = self._workers.submit(worker, key, partial(self._over, job), task.run, *args)
        self._running.append(job)
        return Begun(job.work, job.attempt)

    def _over(self, job: _Job, future: Any) -> None:
        """Let go of a task at once: one that has ended is computed again when its worker dies while it is held."""
        job.problem = outcome(future)
        future.release()
        self._done.put(job)

    def _arrived(self, event: tuple[float, Any]) -> None:
        """Take in what a worker reports; it comes before the word that its task is done."""
        trials = [Trial.of_json(text) for text in event[1]]
        self._results[trials[0].number, trials[0].rounds, trials[0].attempt] = trials

    def _ended(self) -> list[_Job]:
        """Wait until work ends, or a worker is there again; return what has ended."""
        if not self._running:
            self._workers.await_one()
            return []
        return self._workers.ended(self._done, self._stop)

    def _stop(self) -> None:
        """Let go of trials that will not begin, and end those that take too long."""
        self._workers.let_go(job.future for job in self._running)
        for job in self._running:
            late = self._limit_s and self._now() - job.begun > self._limit_s
            if late and not job.late and not job.future.done():
                job.late = True
                job.future.cancel(force=True)
                self._workers.restart(job.worker)

    def _outcome(self, job: _Job, searcher: Searcher) -> Event:
        self._running.remove(job)
        problem = None if job.late else job.problem
        trials = self._results.pop((job.work.numbers[0], job.work.rounds, job.attempt), None)
        if trials is not None:
            for trial in trials:
                searcher.tell(trial)
            return Ended(job.work, trials)
        if job.late:
            what, fix = f"not done after {self._limit_s:g} s", "raise search.trial_timeout_s, or search smaller values"
            return self._failed(job, TipcastError("S008", self._key(job), what, fix), searcher)
        if isinstance(problem, KilledWorker):
            return self._died(job, problem, searcher)
        if isinstance(problem, CancelledError) and job.future.key in self._workers.lost:
            return self._begin_again(job, f"worker {job.worker} has gone, or is paused", job.deaths)
        if isinstance(problem, TipcastError):
            return self._failed(job, problem, searcher)
        raise problem or RuntimeError(f"a worker did not report what came of {self._key(job)}")

    def _died(self, job: _Job, problem: KilledWorker, searcher: Searcher) -> Event:
        worker = problem.last_worker
        ended = worker.address in self._workers.restarted
        memory = not ended and self._workers.memory_ended(worker.address)
        reason = f"worker {worker.address} " + ("ended for a trial that took too long" if ended else "died")
        if memory:
            reason = f"worker out of memory, limit {worker.memory_limit / 2**20:.0f} MiB"
        deaths = job.deaths + (not memory and not ended)
        if deaths >= self._attempts or (memory and (job.alone or worker.address not in self._workers.shared)):
            fix = "raise cluster.memory_limit, or search smaller values" if memory else "look at the worker's log"
            code = "S005" if memory else "S007"
            return self._failed(job, TipcastError(code, self._key(job), reason, fix), searcher)
        return self._begin_again(job, reason, deaths)

    def _begin_again(self, job: _Job, reason: str, deaths: int) -> Lost:
        # Alone on its worker: if that dies too, no other trial goes with it.
        self._again.append(_Job(job.work, job.attempt + 1, alone=True, deaths=deaths))
        return Lost(job.work, reason)

    def _key(self, job: _Job) -> str:
        return self._study.objective.key(job.work.numbers[0])

    def _failed(self, job: _Job, problem: TipcastError, searcher: Searcher) -> Event:
        for number in job.work.numbers:
            searcher.fail(number)
        return Failed(job.work, problem)
