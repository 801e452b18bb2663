"""Trials on the workers: a free slot gets the next at once, and the trial of a worker that died is retried."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, final

from distributed.scheduler import KilledWorker

from tipcast.config.errors import TipcastError
from tipcast.search.proposals import Searcher
from tipcast.search.trial import Begun, Ended, Event, Failed, Lost, Proposal
from tipcast.search.workers import TrialWorkers


@dataclass
class _Job:
    proposal: Proposal
    attempt: int = 1
    deaths: int = 0
    """Worker losses of earlier attempts that count."""
    alone: bool = False
    """Whether no other trial runs on its worker."""
    worker: str = ""
    begun: float = 0.0
    late: bool = False
    future: Any = None


@final
class Pool:
    """The slots of all workers, kept filled with trials.

    A trial may lose ``attempts`` workers, not counting those out of memory. One that takes longer than ``limit_s``
    seconds has failed, and its worker is started anew. ``timeout_s`` seconds after the first no further trial begins.
    """

    def __init__(
        self,
        workers: TrialWorkers,
        attempts: int,
        limit_s: float | None = None,
        timeout_s: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workers, self._attempts, self._limit_s, self._now = workers, attempts, limit_s, now
        self._timeout_s, self._until = math.inf if timeout_s is None else timeout_s, math.inf
        self.timed_out = False
        """Whether there was more to try."""
        self._running: list[_Job] = []
        self._again: deque[_Job] = deque()
        """What waits for a worker without trials."""
        self._restarted: set[str] = set()
        """Workers that were ended on purpose."""

    def events(self, searcher: Searcher) -> Iterator[Event]:
        """Yield events after they happen; the next trial is submitted before the end of the last is yielded."""
        ended: list[Event] = []
        try:
            while True:
                nothing_left = self._fill(searcher, ended)
                yield from ended
                if nothing_left and not self._running:
                    self.timed_out = self._now() > self._until and searcher.next() is not None
                    return
                ended = [self._outcome(job, searcher) for job in self._ended()]
        finally:
            with contextlib.suppress(Exception):  # a cluster that is gone holds nothing
                for job in self._running:
                    job.future.release()

    def _fill(self, searcher: Searcher, events: list[Event]) -> bool:
        """Give trials to free slots; tell whether none is left to give."""
        while True:
            worker, empty = self._free()
            if self._again and empty:
                events.append(self._submit(self._again.popleft(), empty))
                continue
            if worker is None and (self._running or self._again):
                return False
            proposal = None if self._now() > self._until else searcher.next()
            if proposal is None:
                return not self._again
            if worker is None:
                self._again.append(_Job(proposal))
            else:
                events.append(self._submit(_Job(proposal), worker))

    def _free(self) -> tuple[str | None, str | None]:
        """Return the worker with most free slots, and one without trials."""
        slots = self._workers.slots
        free = dict(slots)
        for job in self._running:
            if job.worker in free:
                free[job.worker] -= slots[job.worker] if job.alone else 1
        emptiest = min(free, key=lambda address: slots[address] - free[address], default=None)
        empty = emptiest if emptiest and free[emptiest] == slots[emptiest] else None
        if self._again and emptiest:
            del free[emptiest]  # no other trial gets there until it is empty
        worker = max(free, key=free.__getitem__, default=None)
        return worker if worker and free[worker] > 0 else None, empty

    def _submit(self, job: _Job, worker: str) -> Begun:
        job.worker, job.begun, job.alone = worker, self._now(), job.alone or self._workers.slots[worker] == 1
        self._until = min(self._until, job.begun + self._timeout_s)
        key = f"trial-{self._key(job)}-{job.attempt}-{self._workers.study.sweep}"
        job.future = self._workers.submit(worker, key, job.proposal, job.attempt)
        self._running.append(job)
        return Begun(job.proposal, job.attempt)

    def _ended(self) -> list[_Job]:
        """Wait until a trial ends or, where none runs, until a worker takes one; return what has ended.

        K003 when no worker takes trials, or has one, for too long.
        """
        idle_since = self._now()
        while True:
            done = {future.key for future in self._workers.wait()}
            ended = [job for job in self._running if job.future.key in done]
            for job in self._running:
                if job.future.key in self._workers.lost - done:
                    job.future.release()  # which ends it as cancelled
                elif self._limit_s and self._now() - job.begun > self._limit_s and not job.late:
                    self._end(job)
            if ended or (self._workers.slots and not self._running):
                return ended
            if self._workers.slots or self._workers.busy:
                idle_since = self._now()
            elif self._now() - idle_since > self._workers.wait_s:
                raise self._workers.idle()

    def _end(self, job: _Job) -> None:
        """End a trial that takes too long, with its worker: a thread cannot be ended."""
        if not job.future.done():
            job.late = True
            job.future.cancel(force=True)
            self._restarted.add(job.worker)
            self._workers.restart(job.worker)

    def _outcome(self, job: _Job, searcher: Searcher) -> Event:
        self._running.remove(job)
        problem: BaseException | None = None
        if job.future.status == "error":
            problem = job.future.exception()
        elif job.future.status == "cancelled":  # for which Dask has no exception
            problem = CancelledError(job.future.key)
        job.future.release()  # or Dask computes it again if the worker dies
        if trial := self._workers.reports.pop((job.proposal.number, job.attempt), None):
            searcher.tell(trial.number, trial.score)
            return Ended(trial)
        found: Lost | TipcastError
        if job.late:
            what, fix = f"not done after {self._limit_s:g} s", "raise search.trial_timeout_s, or search smaller values"
            found = TipcastError("S008", self._key(job), what, fix)
        elif isinstance(problem, KilledWorker):
            found = self._died(job, problem)
        elif isinstance(problem, CancelledError) and job.future.key in self._workers.lost:
            found = self._count_loss(job, f"worker {job.worker} has gone, or is paused")
        elif isinstance(problem, TipcastError):
            found = problem
        else:
            raise problem or RuntimeError(f"a worker did not report what came of {self._key(job)}")
        if isinstance(found, Lost):
            return found
        searcher.tell(job.proposal.number, None)
        return Failed(job.proposal.number, found)

    def _died(self, job: _Job, problem: KilledWorker) -> Lost | TipcastError:
        """Retry the trial of a worker that died; S005 if it ran out of memory alone, S007 if too many have died."""
        if job.worker in self._restarted:
            return self._retry(job, f"worker {job.worker} ended for a trial that took too long")
        if self._workers.ended_for_memory(job.worker):
            reason = f"worker out of memory, limit {problem.last_worker.memory_limit / 2**20:.0f} MiB"
            fix = "raise cluster.memory_limit, or search smaller values"
            return TipcastError("S005", self._key(job), reason, fix) if job.alone else self._retry(job, reason)
        return self._count_loss(job, f"worker {job.worker} died")

    def _count_loss(self, job: _Job, reason: str) -> Lost | TipcastError:
        """Retry the trial of a worker that was lost; S007 if too many were."""
        job.deaths += 1
        if job.deaths >= self._attempts:
            return TipcastError("S007", self._key(job), reason, "look at the worker's log")
        return self._retry(job, reason)

    def _retry(self, job: _Job, reason: str) -> Lost:
        # Alone on its worker: if that dies too, no other trial goes with it.
        self._again.append(_Job(job.proposal, job.attempt + 1, job.deaths, alone=True))
        return Lost(job.proposal.number, reason)

    def _key(self, job: _Job) -> str:
        return self._workers.study.objective.key(job.proposal.number)
