"""Trials on the workers: a free slot gets the next at once, and the trial of a worker that died is
retried.
"""

import asyncio
import contextlib
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, final

from distributed import Client, Future, SchedulerPlugin, as_completed
from distributed.scheduler import KilledWorker

from tipcast.config.errors import TipcastError
from tipcast.datasets.counts import Counts
from tipcast.search.proposals import Searcher
from tipcast.search.trial import Begun, Event, Failed, Proposal, Study, Trial
from tipcast.search.worker import SLOT, TrialSlots, load_rows, run_trial

POLL_S = 1.0
"""How often the workers are looked at while nothing ends, in seconds."""
MEMORY_TOPIC = "worker-restart-memory"
"""Where Dask's nannies log that they end a worker for its memory."""
MEMORY_POLLS = 6
MEMORY_POLL_S = 0.1
"""How often that is looked for after a worker's death, and the seconds between."""
MORE_MEMORY = "give workers more memory (cluster.memory_limit), or search on fewer rows"


@dataclass
class _TrialTask:
    """A trial that waits for a worker, or runs on one."""

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

    A trial may lose ``attempts`` workers, not counting those out of memory. One that takes longer
    than ``limit_s`` seconds has failed, and its worker is started anew. ``timeout_s`` seconds after
    the first no further trial begins.
    """

    def __init__(
        self,
        workers: "TrialWorkers",
        attempts: int,
        limit_s: float | None = None,
        timeout_s: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workers = workers
        self._attempts = attempts
        self._now = now
        self._limit_s = limit_s or math.inf
        self._timeout_s = timeout_s or math.inf
        self._until = math.inf
        self.timed_out = False
        """Whether there was more to try."""
        self._running: list[_TrialTask] = []
        self._waiting: deque[_TrialTask] = deque()
        """What waits for a worker without trials."""

    def events(self, searcher: Searcher) -> Iterator[Event]:
        """Yield events after they happen; the next trial is submitted before the end of the last is
        yielded.
        """
        outcomes: list[Event] = []
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

    def _fill(self, searcher: Searcher) -> list[Begun]:
        """Give trials to free slots; return those that were submitted."""
        submitted: list[Begun] = []
        while True:
            free = self._free_slots()
            # A retried trial runs alone: one worker is reserved for it, and takes no other trial
            # until it is empty.
            reserved = self._emptiest(free) if self._waiting else None
            if reserved and free[reserved] == self._workers.slots[reserved]:
                submitted.append(self._submit(self._waiting.popleft(), reserved))
                continue

            worker = _most_free(free, reserved)
            if worker is None and (self._running or self._waiting):
                return submitted

            proposal = None if self._now() > self._until else searcher.next()
            if proposal is None:
                return submitted

            if worker is None:  # there is no worker at all: the trial waits for the next one
                self._waiting.append(_TrialTask(proposal))
            else:
                submitted.append(self._submit(_TrialTask(proposal), worker))

    def _emptiest(self, free: Mapping[str, int]) -> str | None:
        """Return the worker that runs fewest trials; None where there is no worker."""
        slots = self._workers.slots
        return min(free, key=lambda address: slots[address] - free[address], default=None)

    def _free_slots(self) -> dict[str, int]:
        """Return worker -> how many more trials it takes now."""
        slots = self._workers.slots
        free = dict(slots)
        for task in self._running:
            if task.worker in free:
                free[task.worker] -= slots[task.worker] if task.alone else 1
        return free

    def _submit(self, task: _TrialTask, worker: str) -> Begun:
        task.worker = worker
        task.begun = self._now()
        task.alone = task.alone or self._workers.slots[worker] == 1
        self._until = min(self._until, task.begun + self._timeout_s)

        key = f"trial-{self._key(task)}-{task.attempt}-{self._workers.study.sweep}"
        task.future = self._workers.submit(worker, key, task.proposal, task.attempt)
        self._running.append(task)
        return Begun(task.proposal)

    def _ended_tasks(self) -> list[_TrialTask]:
        """Wait until a trial ends or, where none runs, until a worker takes one; return what has
        ended.

        K003 when no worker takes trials, and none has one, for too long.
        """
        idle_since = self._now()
        while True:
            done = {future.key for future in self._workers.wait()}
            ended = [task for task in self._running if task.future.key in done]
            for task in self._running:
                if task.future.key in self._workers.lost - done:
                    task.future.release()  # the task then ends as cancelled
                elif self._is_late(task):
                    task.late = True
                    task.future.cancel(force=True)
                    self._workers.restart(task.worker)  # a thread cannot be ended

            if ended or (self._workers.slots and not self._running):
                return ended

            if self._workers.slots or self._running:  # what runs on a paused worker runs on
                idle_since = self._now()
            elif self._now() - idle_since > self._workers.wait_s:
                raise idle(self._workers.wait_s)

    def _is_late(self, task: _TrialTask) -> bool:
        """Tell whether a trial that still runs has had its time; it is told once."""
        if task.late or task.future.done():
            return False
        return self._now() - task.begun > self._limit_s

    def _outcome(self, task: _TrialTask, searcher: Searcher) -> Event:
        """Return what came of a task that has ended: of its report, where there is one, whatever
        came after that.
        """
        self._running.remove(task)
        problem = _exception(task.future)
        task.future.release()  # otherwise Dask would compute it again if the worker dies

        number = task.proposal.number
        trial = self._workers.reports.pop((number, task.attempt), None)
        if trial is not None:
            searcher.tell(number, trial.score)
            return trial

        failed = self._failure(task, problem)
        if failed.retried:  # alone on its worker: if that dies too, no other trial goes with it
            retry = _TrialTask(task.proposal, task.attempt + 1, task.deaths, alone=True)
            self._waiting.append(retry)
        else:
            searcher.tell(number, None)
        return failed

    def _failure(self, task: _TrialTask, problem: BaseException | None) -> Failed:
        """Return why a trial has ended without a report: S005 its worker was out of memory, S007 it
        died, S008 the trial took too long, or what its task raised.

        Raises an error that is not the trial's.
        """
        if task.late:
            what = f"not done after {self._limit_s:g} s"
            fix = "raise search.trial_timeout_s, or search smaller values"
            return self._failed(task, "S008", what, fix)

        if isinstance(problem, KilledWorker) and self._workers.ended_for_memory(task.worker):
            limit_mib = problem.last_worker.memory_limit / 2**20
            what = f"worker out of memory, limit {limit_mib:.0f} MiB"
            fix = "raise cluster.memory_limit, or search smaller values"
            return self._failed(task, "S005", what, fix, retried=not task.alone)

        lost = isinstance(problem, CancelledError) and task.future.key in self._workers.lost
        if lost or isinstance(problem, KilledWorker):
            task.deaths += 1
            what = f"worker {task.worker} died, or is paused"
            retried = task.deaths < self._attempts
            return self._failed(task, "S007", what, "look at the worker's log", retried=retried)

        if isinstance(problem, TipcastError):
            return Failed(task.proposal.number, problem)
        raise problem or RuntimeError(f"a worker did not report what came of {self._key(task)}")

    def _failed(
        self, task: _TrialTask, code: str, what: str, fix: str, *, retried: bool = False
    ) -> Failed:
        problem = TipcastError(code, self._key(task), what, fix)
        return Failed(task.proposal.number, problem, retried)

    def _key(self, task: _TrialTask) -> str:
        return self._workers.study.objective.key(task.proposal.number)


def _exception(future: Future[None]) -> BaseException | None:
    """Return what a task has ended with, None if well; Dask has no exception of a cancelled one."""
    if future.status == "cancelled":
        return CancelledError(future.key)
    if future.status == "error":
        problem: BaseException | None = future.exception()
        return problem
    return None


def _most_free(free: Mapping[str, int], reserved: str | None) -> str | None:
    """Return the unreserved worker with most free slots; None if none is free."""
    open_to_all = {
        address: slots for address, slots in free.items() if slots > 0 and address != reserved
    }
    return max(open_to_all, key=open_to_all.__getitem__, default=None)


@final
class TrialWorkers:
    """The workers of a sweep; K003 after ``wait_s`` seconds without one that can work."""

    def __init__(
        self,
        client: Client,
        study: Study,
        per_gpu: int,
        wait_s: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.client = client
        self.study = study
        self.wait_s = wait_s
        self._plugin = TrialSlots(study, per_gpu)
        self._sleep = sleep
        self._ended: Any = None
        self.slots: dict[str, int] = {}
        """Worker that takes trials -> how many at once; one that is paused for lack of memory takes
        none.
        """
        self.lost: set[str] = set()
        """Keys of tasks whose worker is gone, or was paused before it began them."""
        self.reports: dict[tuple[int, int], Trial] = {}
        """Trial and attempt -> its result, which comes before the word that its task is done."""

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Prepare the workers for the trials, and free what they keep for them at the end."""
        self.client.register_plugin(self._plugin)
        self.client.register_plugin(NoRetries(self._plugin.name, self.study.sweep, self.client.id))
        self.client.subscribe_topic(self.study.topic, self._keep_report)
        self._ended = as_completed(loop=self.client.loop)
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # a cluster that is gone holds nothing
                self.client.unsubscribe_topic(self.study.topic)
                self.client.unregister_scheduler_plugin(self._plugin.name)
                self.client.unregister_worker_plugin(self._plugin.name)

    def _keep_report(self, event: tuple[float, Any]) -> None:
        """Keep the result of a trial, which ``worker.run_trial`` reports as (time, JSON)."""
        trial = Trial(**json.loads(event[1]))
        self.reports[trial.number, trial.attempt] = trial

    def load(self, attempts: int) -> tuple[tuple[Counts, ...], ...]:
        """Have every worker read the rows; return what one of them read, by fragment and part.

        A worker that dies meanwhile reads them when it gets its first trial. K003 where all have
        died.
        """
        for _ in range(attempts):
            try:
                self.client.wait_for_workers(1, timeout=self.wait_s)
            except TimeoutError:
                raise idle(self.wait_s) from None

            self.update_slots()
            answers = self.client.run(
                load_rows, self.study.sweep, workers=list(self.slots), on_error="return"
            )
            for read in answers.values():
                if not isinstance(read, BaseException):
                    return read  # type: ignore[no-any-return]
                # An OSError is Dask's word for a connection to a worker that has ended.
                if not isinstance(read, OSError):
                    raise read

            if any(self.ended_for_memory(address) for address in answers):
                break  # the next worker would run out of memory as well

        raise TipcastError("K003", "all workers", "lost while they read the rows", MORE_MEMORY)

    def submit(self, worker: str, key: str, proposal: Proposal, attempt: int) -> Future[None]:
        """Send a trial to a worker; Dask would send it to a busy one, for it does not count what
        has seceded.
        """
        where: dict[str, Any] = {"workers": [worker], "resources": {SLOT: 1}}
        future = self.client.submit(
            run_trial, self.study.sweep, proposal, attempt, key=key, pure=False, **where
        )
        self._ended.add(future)
        return future

    def wait(self) -> list[Future[None]]:
        """Return the tasks that have ended, waiting for the first of them for a second; look at the
        workers.
        """
        ended: list[Future[None]] = []

        async def first() -> Any:
            return await asyncio.wait_for(anext(self._ended), POLL_S)

        if self._ended.is_empty():
            self._sleep(POLL_S)
        else:
            with contextlib.suppress(TimeoutError):
                ended = [self.client.sync(first), *self._ended.next_batch(block=False)]
        # Only now: one of these events may be the death of a worker, which must get no further
        # task.
        self.update_slots()
        return ended

    def update_slots(self) -> None:
        """Count the slots of the workers that are there, and note which tasks their worker will not
        begin.
        """
        # Dask's own account of the workers would come with all that it measures.
        self.slots, lost = self.client.run_on_scheduler(scan_workers, sweep=self.study.sweep)
        self.lost |= lost

    def restart(self, address: str) -> None:
        """End a worker with all that it does; its nanny, where it has one, starts another."""
        # Client.restart_workers would wait for the other workers.
        scheduler: Any = self.client.scheduler
        how = {
            "wait_for_workers": False,
            "on_error": "return",
            "stimulus_id": f"tipcast-restart-{address}",
        }
        self.client.sync(scheduler.restart_workers, workers=[address], **how)

    def ended_for_memory(self, address: str) -> bool:
        """Tell whether a worker that died was ended for its memory, which may be logged a little
        later.
        """
        for poll in range(MEMORY_POLLS):
            self._sleep(MEMORY_POLL_S if poll else 0)
            if any(event["worker"] == address for _, event in self.client.get_events(MEMORY_TOPIC)):
                return True
        return False


def idle(wait_s: float) -> TipcastError:
    """Return the error of workers that do nothing."""
    what = f"not at work for {wait_s:g} s: paused for lack of memory, or gone"
    return TipcastError("K003", "all workers", what, MORE_MEMORY)


@final
class NoRetries(SchedulerPlugin):
    """Disables Dask's retries of a sweep's tasks; clears up on the workers when its client
    disconnects.
    """

    idempotent = True

    def __init__(self, name: str, sweep: str, client: str) -> None:
        self.name = name
        self._sweep = sweep
        self._client = client
        self._scheduler: Any = None

    async def start(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Let Dask give a task up when its worker dies: the driver decides what is retried."""
        if finish == "processing" and str(key).endswith(self._sweep):
            task = self._scheduler.tasks[key]
            # One more death than allowed, and Dask makes a KilledWorker of the task; other clients'
            # keep their count.
            task.suspicious = max(task.suspicious, self._scheduler.allowed_failures)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Clear up after a driver that was killed."""
        if client == self._client:
            # This hook cannot wait for a coroutine.
            scheduler.loop.add_callback(self._clear, scheduler)

    async def _clear(self, scheduler: Any) -> None:
        with contextlib.suppress(ValueError):  # the driver cleared up itself
            scheduler.remove_plugin(self.name)
            await scheduler.unregister_worker_plugin(None, self.name)


def scan_workers(dask_scheduler: Any, sweep: str) -> tuple[dict[str, int], set[str]]:
    """Return the slots of each worker that takes tasks, and the keys of tasks that none will begin.

    A task that has begun has seceded, and so is one of Dask's long-running ones.
    """
    lost = set(dask_scheduler.unrunnable)
    slots = dict[str, int]()
    for address, worker in dask_scheduler.workers.items():
        if worker in dask_scheduler.running:
            slots[address] = int(worker.resources.get(SLOT, 0))
        else:
            lost |= set(worker.processing) - worker.long_running
    keys = {task.key for task in lost if str(task.key).endswith(sweep)}
    return {address: number for address, number in slots.items() if number}, keys
