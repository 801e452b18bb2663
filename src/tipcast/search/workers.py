"""The workers of a sweep: what they keep for its trials, how many each runs at once, whether they are at work."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, TypeVar, final

from distributed import SchedulerPlugin
from distributed.scheduler import KilledWorker

from tipcast.config.errors import TipcastError
from tipcast.datasets.base import Counts
from tipcast.search import task
from tipcast.search.task import SLOT, TrialSlots
from tipcast.search.trial import Study

Ends = TypeVar("Ends")

TRIAL = "trial-"
"""How the keys of trials begin."""
LOOK_S = 1.0
"""How often the workers are looked at while nothing ends, in seconds."""
AWAIT_S = 0.1
"""How often a worker is looked for while none is there, in seconds."""
MEMORY_TOPIC = "worker-restart-memory"
"""Where Dask's nannies say that they end a worker for its memory."""
TELL_S = 0.5
"""How long they may say so after the worker's death, in seconds."""


@final
class TrialWorkers:
    """The workers of a sweep; ``wait_s`` is how many seconds none of them may be able to work."""

    def __init__(self, client: Any, study: Study, per_gpu: int, wait_s: float) -> None:
        self.client, self.study, self.wait_s = client, study, wait_s
        self._plugin = TrialSlots(study, per_gpu)
        self._died_of_memory: dict[str, bool] = {}
        self._told = threading.Condition()
        self.slots: dict[str, int] = {}
        """Worker -> trials at once, as of the last look."""
        self.able: list[str] = []
        """Those that take trials: the others are paused for lack of memory."""
        self.shared: set[str] = set()
        """Workers, also of the past, that run several trials at once."""
        self.restarted: set[str] = set()
        """Workers that were ended on purpose."""
        self.lost: set[str] = set()
        """Tasks, also of the past, that their worker will not begin: it has gone, or is paused."""

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Prepare the workers for the trials, and free what they keep for them at the end."""
        self.client.register_plugin(self._plugin)
        self.client.register_plugin(NoRetries(self._plugin.name, self.study.sweep, self.client.id))
        self.client.subscribe_topic(MEMORY_TOPIC, self._ended_for_memory)
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # a cluster that is gone holds nothing
                self.client.unsubscribe_topic(MEMORY_TOPIC)
                self.client.unregister_scheduler_plugin(self._plugin.name)
                self.client.unregister_worker_plugin(self._plugin.name)

    def load(self, attempts: int) -> tuple[tuple[Counts, ...], ...]:
        """Have every worker read the rows; return what one of them read, by fragment and part.

        A worker that dies meanwhile reads them when it gets its first trial.
        """
        for attempt in range(1, attempts + 1):
            self.await_one()
            found = self._load(attempt, attempts)
            if found is not None:
                return found
        raise _idle(self.wait_s)

    def _load(self, attempt: int, attempts: int) -> tuple[tuple[Counts, ...], ...] | None:
        sweep, found = self.study.sweep, None
        done: queue.SimpleQueue[tuple[str, Any, Any]] = queue.SimpleQueue()
        keys = {f"load-{each}-{attempt}-{sweep}": each for each in self.slots}
        running = {key: self.submit(each, key, partial(_end, done), task.load, sweep) for key, each in keys.items()}
        try:
            while running:
                for key, problem, counts in self.ended(done, lambda: self.let_go(running.values())):
                    del running[key]
                    found = found or counts
                    if problem is None or (isinstance(problem, CancelledError) and key in self.lost):
                        continue
                    if not isinstance(problem, KilledWorker):
                        raise problem
                    if attempt == attempts or self.memory_ended(problem.last_worker.address):
                        raise problem
        finally:
            for future in running.values():
                future.release()
        return found

    def submit(self, worker: str, key: str, then: Callable[[Any], object], function: Any, *args: Any) -> Any:
        """Send a task to a worker; ``then`` gets the future when it is done, in a thread that all futures share."""
        future = self.client.submit(function, *args, key=key, pure=False, workers=[worker], resources={SLOT: 1})
        future.add_done_callback(then)
        return future

    def ended(self, done: queue.SimpleQueue[Ends], meanwhile: Callable[[], None]) -> list[Ends]:
        """Wait until something ends, and return all that has; look at the workers each time.

        K003 when no worker is able to work, or at work, for too long.
        """
        idle_since = time.monotonic()
        while True:
            found: list[Ends] = []
            with contextlib.suppress(queue.Empty):
                found.append(done.get(timeout=LOOK_S))
                found += [done.get() for _ in range(done.qsize())]
            self.look()  # after all that has ended: or what comes next goes to a worker whose death is among it
            meanwhile()
            if found:
                return found
            if self.able or any(self.client.run(_at_work, on_error="ignore").values()):
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > self.wait_s:
                raise _idle(self.wait_s)

    def let_go(self, futures: Iterable[Any]) -> None:
        """Let go of the tasks that their worker will not begin, which ends them as cancelled."""
        for future in futures:
            if future.key in self.lost:
                future.release()

    def await_one(self) -> None:
        """Wait until a worker is there that can take trials."""
        deadline = time.monotonic() + self.wait_s
        self.look()
        while not self.able:
            if time.monotonic() > deadline:
                raise _idle(self.wait_s)
            time.sleep(AWAIT_S)
            self.look()

    def look(self) -> None:
        """Count the slots of the workers that are there, and note which tasks their worker will not begin."""
        # Dask's own account of the workers would come with all that it measures.
        workers, lost = self.client.run_on_scheduler(_look, sweep=self.study.sweep)
        self.lost |= lost
        self.slots = {address: slots for address, (slots, _) in workers.items() if slots}
        self.able = [address for address in self.slots if workers[address][1]]
        self.shared |= {address for address, slots in self.slots.items() if slots > 1}

    def restart(self, address: str) -> None:
        """End a worker with all that it does; its nanny, where it has one, starts another."""
        self.restarted.add(address)
        self.client.run_on_scheduler(_restart, address=address)

    def memory_ended(self, address: str) -> bool:
        """Tell whether a worker that died was ended for its memory."""
        with self._told:
            self._told.wait_for(lambda: address in self._died_of_memory, TELL_S)
            return self._died_of_memory.setdefault(address, False)

    def _ended_for_memory(self, event: tuple[float, Any]) -> None:
        with self._told:
            self._died_of_memory[str(event[1]["worker"])] = True
            self._told.notify_all()


@final
class NoRetries(SchedulerPlugin):
    """Disables Dask's retries of a sweep's tasks; clears up on the workers when its client disconnects."""

    idempotent = True

    def __init__(self, name: str, sweep: str, client: str) -> None:
        self.name, self._sweep, self._client = name, sweep, client
        self._scheduler: Any = None

    async def start(self, scheduler: Any) -> None:
        """Keep the scheduler."""
        self._scheduler = scheduler

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Let Dask give a task up when its worker dies: the driver decides what is retried."""
        if finish == "processing" and str(key).endswith(self._sweep):
            task = self._scheduler.tasks[key]
            task.suspicious = max(task.suspicious, self._scheduler.allowed_failures)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Clear up after a driver that was killed."""
        if client == self._client:
            scheduler.loop.add_callback(self._clear, scheduler)

    async def _clear(self, scheduler: Any) -> None:
        with contextlib.suppress(ValueError):  # it did so itself
            scheduler.remove_plugin(self.name)
            await scheduler.unregister_worker_plugin(None, self.name)


def outcome(future: Any) -> BaseException | None:
    """Return the problem of a task that is done; Dask has none for one that was cancelled."""
    if future.status == "cancelled":
        return CancelledError(str(future.key))
    problem: BaseException | None = future.exception() if future.status == "error" else None
    return problem


def _end(done: queue.SimpleQueue[tuple[str, Any, Any]], future: Any) -> None:
    """Pass on the problem or the result of a task, and let go of it: held, it would be computed again."""
    problem, result = outcome(future), None
    try:
        result = None if problem else future.result()
    except BaseException as raised:  # noqa: BLE001 - let go of while its result was on the way
        problem = raised
    finally:
        done.put((future.key, problem, result))
        future.release()


def _idle(wait_s: float) -> TipcastError:
    """Return the error of workers that do nothing."""
    what = f"not at work for {wait_s:g} s: paused for lack of memory, or gone"
    fix = "give workers more memory (cluster.memory_limit), or search on fewer rows"
    return TipcastError("K003", "all workers", what, fix)


def _look(dask_scheduler: Any, sweep: str) -> tuple[dict[str, tuple[int, bool]], set[str]]:
    """Return each worker's slots and whether it takes tasks, and the sweep's tasks that their worker will not begin."""
    able = dask_scheduler.running
    workers = dask_scheduler.workers.items()
    lost = {task.key for task in dask_scheduler.unrunnable if not dask_scheduler.valid_workers(task)}
    for _, worker in workers:
        if worker not in able:  # what it has begun has seceded
            lost |= {task.key for task in worker.processing if str(task.key).startswith(TRIAL)} - {
                task.key for task in worker.long_running
            }
    slots = {address: (int(worker.resources.get(SLOT, 0)), worker in able) for address, worker in workers}
    return slots, {key for key in lost if str(key).endswith(sweep)}


async def _restart(dask_scheduler: Any, address: str) -> None:
    await dask_scheduler.restart_workers(
        [address], wait_for_workers=False, on_error="return", stimulus_id=f"tipcast-restart-{address}"
    )


def _at_work(dask_worker: Any) -> int:
    """Return how many tasks a worker is computing."""
    state = dask_worker.state
    return len(state.executing) + len(state.long_running)
