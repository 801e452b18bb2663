"""The pool of trials: a free slot gets the next trial at once, and trials of workers that died are
retried.
"""

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, final

from distributed import Future
from distributed.scheduler import KilledWorker

from tipcast.config.errors import TipcastError
from tipcast.search.trial import Proposal, Searcher, TrialEvent, TrialFailed, TrialStarted
from tipcast.search.trial_workers import TrialWorkers, no_worker


@dataclass
class _TrialTask:
    """A trial that waits for a worker, or runs on one."""

    proposal: Proposal
    process_attempt: int = 1
    """Number of this attempt in this process, from 1: the record counts those of all processes."""
    worker_losses: int = 0
    """Worker losses of this process's attempts, not counting those out of memory."""
    alone: bool = False
    """Whether no other trial runs on its worker."""
    worker: str = ""
    begun: float = 0.0
    late: bool = False
    future: Any = None


@final
class Pool:
    """The slots of all workers, kept filled with trials.

    A trial has failed once it has lost ``max_worker_losses`` workers, not counting those out of
    memory; earlier it is retried. A trial that takes longer than ``limit_s`` seconds has failed,
    and its worker is restarted. No trial begins later than ``timeout_s`` seconds after the first.
    """

    def __init__(
        self,
        trial_workers: TrialWorkers,
        max_worker_losses: int,
        limit_s: float | None = None,
        timeout_s: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trial_workers = trial_workers
        self._max_worker_losses = max_worker_losses
        self._now = now
        self._limit_s = limit_s or math.inf
        self._timeout_s = timeout_s or math.inf
        self._until = math.inf
        self.timed_out = False
        """Whether the timeout left proposals untried."""
        self._running: list[_TrialTask] = []
        self._waiting: deque[_TrialTask] = deque()
        """Trials that wait for a worker without trials."""
        self._homes: dict[int, str] = {}
        """Trial that ended well -> its worker, which may have what a later trial goes on from."""

    def events(self, searcher: Searcher) -> Iterator[TrialEvent]:
        """Yield events after they happen.

        When a trial has ended, its slot gets the next trial first and its event is yielded then, so
        that no slot waits for what the caller does with the event.
        """
        outcomes: list[TrialEvent] = []
        try:
            while True:
                begun = self._fill(searcher)
                yield from outcomes
                yield from begun

                if not (self._running or self._waiting):
                    self.timed_out = self._now() > self._until and searcher.next() is not None
                    return
                outcomes = [self._outcome(task, searcher) for task in self._ended_tasks()]
        finally:
            with contextlib.suppress(Exception):  # a cluster that is gone holds nothing
                for task in self._running:
                    task.future.release()

    def _fill(self, searcher: Searcher) -> list[TrialStarted]:
        """Give trials to free slots; return those that were submitted."""
        submitted: list[TrialStarted] = []
        while True:
            free = self._free_slots()
            # A retried trial runs alone: one worker is reserved for it, and takes no other trial
            # until it is empty.
            reserved = None
            if self._waiting:
                reserved = self._emptiest(free)
            if reserved and free[reserved] == self._trial_workers.slots[reserved]:
                submitted.append(self._submit(self._waiting.popleft(), reserved))
                continue

            worker = _most_free(free, reserved)
            if worker is None and (self._running or self._waiting):
                return submitted

            if self._now() > self._until:
                return submitted
            proposal = searcher.next()
            if proposal is None:
                return submitted

            if worker is None:  # there is no worker at all: the trial waits for the next one
                self._waiting.append(_TrialTask(proposal))
            else:
                home = self._home(proposal)
                if free.get(home, 0) > 0 and home != reserved:
                    worker = home
                submitted.append(self._submit(_TrialTask(proposal), worker))

    def _home(self, proposal: Proposal) -> str:
        """Return the worker that had a trial in the rung before; empty without rungs."""
        rungs = self._trial_workers.sweep_setup.objective.rungs
        if rungs is None:
            return ""
        return self._homes.get(proposal.number - rungs.trials, "")

    def _emptiest(self, free: Mapping[str, int]) -> str | None:
        """Return the worker that runs fewest trials; None without workers."""
        slots = self._trial_workers.slots
        return min(free, key=lambda address: slots[address] - free[address], default=None)

    def _free_slots(self) -> dict[str, int]:
        """Return worker -> how many more trials it takes now."""
        slots = self._trial_workers.slots
        free = dict(slots)
        for task in self._running:
            if task.worker not in free:
                continue
            if task.alone:
                free[task.worker] -= slots[task.worker]
            else:
                free[task.worker] -= 1
        return free

    def _submit(self, task: _TrialTask, worker: str) -> TrialStarted:
        task.worker = worker
        task.begun = self._now()
        task.alone = task.alone or self._trial_workers.slots[worker] == 1
        self._until = min(self._until, task.begun + self._timeout_s)

        sweep_id = self._trial_workers.sweep_setup.sweep_id
        key = f"trial-{self._key(task)}-{task.process_attempt}-{sweep_id}"
        task.future = self._trial_workers.submit(worker, key, task.proposal, task.process_attempt)
        self._running.append(task)
        return TrialStarted(task.proposal)

    def _ended_tasks(self) -> list[_TrialTask]:
        """Wait until a trial ends or, if none runs, until a worker can take one; return the trials
        that have ended.

        Raises K003 if for too long no worker takes trials and no trial runs.
        """
        idle_since = self._now()
        while True:
            done = {future.key for future in self._trial_workers.wait()}
            ended = [task for task in self._running if task.future.key in done]
            for task in self._running:
                if task.future.key in self._trial_workers.lost - done:
                    task.future.release()  # the task then ends as cancelled
                elif self._is_late(task):
                    task.late = True
                    task.future.cancel(force=True)
                    self._trial_workers.restart(task.worker)  # a thread cannot be ended

            if ended or (self._trial_workers.slots and not self._running):
                return ended

            if self._trial_workers.slots or self._running:  # what runs on a paused worker runs on
                idle_since = self._now()
            elif self._now() - idle_since > self._trial_workers.wait_s:
                raise no_worker(self._trial_workers.wait_s)

    def _is_late(self, task: _TrialTask) -> bool:
        """Tell whether a trial still runs after its time limit; True only once for a trial."""
        if task.late or task.future.done():
            return False
        return self._now() - task.begun > self._limit_s

    def _outcome(self, task: _TrialTask, searcher: Searcher) -> TrialEvent:
        """Return the event of a task that has ended: its report if there is one, whatever happened
        after that.
        """
        self._running.remove(task)
        problem = _exception(task.future)
        task.future.release()  # otherwise Dask would compute it again if the worker dies

        number = task.proposal.number
        trial = self._trial_workers.reports.pop((number, task.process_attempt), None)
        if trial is not None:
            searcher.tell(number, trial.score)
            self._homes[number] = task.worker
            return trial

        failed = self._failure(task, problem)
        if failed.retried:  # alone on its worker: if that dies too, no other trial goes with it
            retry = _TrialTask(
                task.proposal, task.process_attempt + 1, task.worker_losses, alone=True
            )
            self._waiting.append(retry)
        else:
            searcher.tell(number, None)
        return failed

    def _failure(self, task: _TrialTask, problem: BaseException | None) -> TrialFailed:
        """Return why a trial has ended without a report: S005 if its worker was out of memory, S007
        if the worker died, S008 if the trial took too long, or the error that its task raised.

        Raises errors that are not the trial's.
        """
        if task.late:
            what = f"not finished after {self._limit_s:g} s"
            fix = "raise search.trial_timeout_s, or search smaller values"
            return self._failed(task, "S008", what, fix)

        if isinstance(problem, KilledWorker) and self._trial_workers.ended_for_memory(task.worker):
            limit_mib = problem.last_worker.memory_limit / 2**20
            what = f"worker out of memory, limit {limit_mib:.0f} MiB"
            fix = "raise cluster.memory_limit, or search smaller values"
            return self._failed(task, "S005", what, fix, retried=not task.alone)

        lost = isinstance(problem, CancelledError) and task.future.key in self._trial_workers.lost
        if lost or isinstance(problem, KilledWorker):
            task.worker_losses += 1
            what = f"worker {task.worker} died or is paused"
            retried = task.worker_losses < self._max_worker_losses
            return self._failed(task, "S007", what, "see the worker's log", retried=retried)

        if isinstance(problem, TipcastError):
            return TrialFailed(task.proposal.number, task.proposal.params, problem)
        raise problem or RuntimeError(f"a worker did not report the result of {self._key(task)}")

    def _failed(
        self, task: _TrialTask, code: str, what: str, fix: str, *, retried: bool = False
    ) -> TrialFailed:
        problem = TipcastError(code, self._key(task), what, fix)
        return TrialFailed(task.proposal.number, task.proposal.params, problem, retried)

    def _key(self, task: _TrialTask) -> str:
        return self._trial_workers.sweep_setup.objective.key(task.proposal.number)


def _exception(future: Future[None]) -> BaseException | None:
    """Return the error of a task that has ended, None if it ended well; Dask keeps no exception for
    a cancelled task.
    """
    if future.status == "cancelled":
        return CancelledError(future.key)
    if future.status == "error":
        problem: BaseException | None = future.exception()
        return problem
    return None


def _most_free(free: Mapping[str, int], reserved: str | None) -> str | None:
    """Return the unreserved worker with most free slots; None if no slot is free."""
    open_to_all = {
        address: slots for address, slots in free.items() if slots > 0 and address != reserved
    }
    return max(open_to_all, key=open_to_all.__getitem__, default=None)
