"""Trials on the workers: a free one gets the next at once, and the trial of one that died is begun again."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, final

from distributed.scheduler import KilledWorker

from tipcast.config.errors import TipcastError
from tipcast.data.rows import Counts
from tipcast.search import task
from tipcast.search.events import Begun, Ended, Event, Failed, Lost
from tipcast.search.searchers import Searcher
from tipcast.search.task import SLOT, Host
from tipcast.search.trial import Study, Trial, Work

LOOK_S = 1.0
"""How often the workers are looked at while no trial ends, in seconds."""
TELL_S = 1.0
"""How long an account of a worker's death may come after the death itself, in seconds."""
MEMORY_EVENTS = "worker-restart-memory"
"""Where Dask's nannies say that they end a worker for its memory."""


@dataclass
class _Job:
    work: Work
    attempt: int
    alone: bool
    future: Any = None


@final
class Pool:
    """The slots of all workers, kept filled with trials.

    Parameters
    ----------
    client
        A ``distributed.Client``.
    study
        What the trials have in common.
    per_gpu
        Trials at once on a GPU.
    attempts
        How often a trial is begun before its worker's death counts as its own failure.
    wait_s
        How long no worker may be able to work.

    """

    def __init__(self, client: Any, study: Study, per_gpu: int, attempts: int, wait_s: float) -> None:
        self._client, self._study, self._per_gpu = client, study, per_gpu
        self._attempts, self._wait_s = attempts, wait_s
        self._done: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._running: list[_Job] = []
        self._again: deque[_Job] = deque()
        self._memory = _MemoryEvents()
        self._company: set[str] = set()  # workers, also of the past, that run several trials at once
        self.slots: dict[str, int] = {}
        """Worker -> trials at once."""

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Make the workers hosts of the trials, and free what they keep for them at the end."""
        host = Host(self._study, self._per_gpu)
        self._client.register_plugin(host)
        allowed = self._client.run_on_scheduler(_allow_failures, number=0)  # the driver decides what is begun again
        self._client.subscribe_topic(MEMORY_EVENTS, self._memory.take)
        try:
            self._look()
            yield
        finally:
            with contextlib.suppress(Exception):  # a cluster that is gone holds nothing
                for job in self._running:
                    job.future.release()
                self._client.unsubscribe_topic(MEMORY_EVENTS)
                self._client.run_on_scheduler(_allow_failures, number=allowed)
                self._client.unregister_worker_plugin(host.name)

    def load(self) -> tuple[tuple[Counts, ...], ...]:
        """Have every worker read the rows; return what one of them read, by fragment and part."""
        futures = [
            self._client.submit(task.load, self._study.sweep, workers=[address], pure=False, key=f"load-{address}")
            for address in self.slots
        ]
        found: list[tuple[tuple[Counts, ...], ...]] = self._client.gather(futures)
        return found[0]

    def events(self, searcher: Searcher) -> Iterator[Event]:
        """Run all trials; what is told has happened already, and the next trial is under way before it is told."""
        told: deque[Event] = deque()
        while True:
            told.extend(self._fill(searcher))
            while told:
                yield told.popleft()
            if not self._running:
                return
            for job in self._ended():
                told.append(self._outcome(job, searcher))

    def _fill(self, searcher: Searcher) -> Iterator[Event]:
        """Submit work while slots are free; of the tasks that wait for a worker to come back there is one at least."""
        while len(self._running) < max(sum(self.slots.values()), 1):
            if self._again:
                job = self._again.popleft()
            else:
                work = searcher.next()
                if work is None:
                    return
                job = _Job(work, attempt=1, alone=False)
            self._submit(job)
            yield Begun(job.work, job.attempt)

    def _submit(self, job: _Job) -> None:
        slots = min(self.slots.values(), default=1) if job.alone else 1
        home = {"workers": [job.work.worker], "allow_other_workers": True} if job.work.worker in self.slots else {}
        key = f"trial-{self._study.key(job.work.numbers[0])}-{job.work.rounds or 0}-{job.attempt}-{self._study.sweep}"
        job.future = self._client.submit(
            task.run, self._study.sweep, job.work, job.attempt, key=key, pure=False, resources={SLOT: slots}, **home
        )
        self._running.append(job)
        job.future.add_done_callback(lambda _: self._done.put(job))

    def _ended(self) -> list[_Job]:
        """Wait until work ends; return all that has."""
        idle_since = time.monotonic()
        while True:
            try:
                ended = [self._done.get(timeout=LOOK_S)]
                break
            except queue.Empty:
                if self._look():
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since > self._wait_s:
                    raise TipcastError(
                        "K003",
                        "all workers",
                        f"not at work for {self._wait_s:g} s: paused for lack of memory, or gone",
                        "give workers more memory (cluster.memory_limit), or search on fewer rows",
                    ) from None
        with contextlib.suppress(queue.Empty):
            while True:
                ended.append(self._done.get_nowait())
        self._look()
        return ended

    def _look(self) -> bool:
        """Count the slots of the workers that are there; tell whether any can work or is at work."""
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        self.slots = {
            address: int(worker["resources"][SLOT])
            for address, worker in workers.items()
            if SLOT in worker["resources"]
        }
        if any(worker["status"] == "running" for worker in workers.values()):
            return True
        return bool(workers) and any(self._client.run(_at_work, on_error="ignore").values())

    def _outcome(self, job: _Job, searcher: Searcher) -> Event:
        self._running.remove(job)
        future, job.future = job.future, None
        try:
            trials: list[Trial] = future.result()
        except KilledWorker as problem:
            return self._died(job, problem, searcher)
        except TipcastError as problem:
            return self._failed(job, problem, searcher)
        finally:
            future.release()  # a result that is held would be computed again when its worker dies
        for trial in trials:
            searcher.tell(trial)
        return Ended(job.work, trials)

    def _died(self, job: _Job, problem: KilledWorker, searcher: Searcher) -> Event:
        worker = problem.last_worker
        memory = self._memory.about(worker.address)
        reason = f"worker {worker.address} died"
        if memory:
            reason = f"worker out of memory, limit {worker.memory_limit / 2**20:.0f} MiB"
        if (memory and (job.alone or worker.address not in self._company)) or job.attempt >= self._attempts:
            fix = "raise cluster.memory_limit, or search smaller values" if memory else "look at the worker's log"
            code = "S005" if memory else "S007"
            return self._failed(job, TipcastError(code, self._study.key(job.work.numbers[0]), reason, fix), searcher)
        # Begun again it has a worker to itself: if that dies too, no other trial goes with it.
        self._again.append(_Job(job.work, job.attempt + 1, alone=True))
        return Lost(job.work, reason)

    def _failed(self, job: _Job, problem: TipcastError, searcher: Searcher) -> Event:
        for number in job.work.numbers:
            searcher.fail(number)
        return Failed(job.work, problem)


@dataclass
class _MemoryEvents:
    """Workers that a nanny ended for their memory."""

    seen: set[str] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, event: tuple[float, Any]) -> None:
        with self.changed:
            self.seen.add(str(event[1]["worker"]))
            self.changed.notify_all()

    def about(self, address: str) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: address in self.seen, TELL_S)


def _allow_failures(dask_scheduler: Any, number: int) -> int:
    """Set after how many deaths of workers Dask gives a task up; return what it was."""
    before, dask_scheduler.allowed_failures = dask_scheduler.allowed_failures, number
    return int(before)


def _at_work(dask_worker: Any) -> int:
    """Return how many tasks a worker is computing."""
    state = dask_worker.state
    return len(state.executing) + len(state.long_running)
