"""The workers of a sweep: what they keep for its trials, how many each runs at once, whether they are at work."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, final

from distributed import Client, Future, SchedulerPlugin, as_completed

from tipcast.config.errors import TipcastError
from tipcast.datasets.base import Counts
from tipcast.search import task
from tipcast.search.task import SLOT, TrialSlots
from tipcast.search.trial import Proposal, Study, Trial

LOOK_S = 1.0
"""How often the workers are looked at while nothing ends, in seconds."""
MEMORY_TOPIC = "worker-restart-memory"
"""Where Dask's nannies log that they end a worker for its memory."""
MEMORY_LOOKS, MEMORY_LOOK_S = 6, 0.1
"""How often that is looked for after a worker's death, and the seconds between."""


@final
class TrialWorkers:
    """The workers of a sweep; ``wait_s`` is how many seconds none of them may be able to work."""

    def __init__(
        self, client: Client, study: Study, per_gpu: int, wait_s: float, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.client, self.study, self.wait_s = client, study, wait_s
        self._plugin, self._sleep = TrialSlots(study, per_gpu), sleep
        self._ended: Any = None
        self.slots: dict[str, int] = {}
        """Worker that takes trials -> how many at once; one that is paused for lack of memory takes none."""
        self.busy = False
        """Whether trials run."""
        self.lost: set[str] = set()
        """Keys of tasks whose worker is gone, or was paused before it began them."""
        self.reports: dict[tuple[int, int], Trial] = {}
        """Trial and attempt -> its result, which comes before the word that its task is done."""

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Prepare the workers for the trials, and free what they keep for them at the end."""
        self.client.register_plugin(self._plugin)
        self.client.register_plugin(NoRetries(self._plugin.name, self.study.sweep, self.client.id))
        self.client.subscribe_topic(self.study.topic, self._report)
        self._ended = as_completed(loop=self.client.loop)
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # a cluster that is gone holds nothing
                self.client.unsubscribe_topic(self.study.topic)
                self.client.unregister_scheduler_plugin(self._plugin.name)
                self.client.unregister_worker_plugin(self._plugin.name)

    def load(self, attempts: int) -> tuple[tuple[Counts, ...], ...]:
        """Have every worker read the rows; return what one of them read, by fragment and part.

        A worker that dies meanwhile reads them when it gets its first trial. K003 where all have died.
        """
        problem: object = "they died"
        for _ in range(attempts):
            try:
                self.client.wait_for_workers(1, timeout=self.wait_s)
            except TimeoutError:
                raise self.idle() from None
            self.look()
            found = self.client.run(task.load, self.study.sweep, workers=list(self.slots), on_error="return")
            for read in found.values():
                if not isinstance(read, OSError):  # as Dask tells that the connection to a worker has ended
                    if isinstance(read, BaseException):
                        raise read
                    return read  # type: ignore[no-any-return]
                problem = read
            if any(self.ended_for_memory(address) for address in found):
                break
        fix = "give workers more memory (cluster.memory_limit), or search on fewer rows"
        raise TipcastError("K003", "all workers", f"lost while they read the rows: {problem}", fix)

    def submit(self, worker: str, key: str, proposal: Proposal, attempt: int) -> Future[Any]:
        """Send a trial to a worker; Dask would send it to a busy one, for it does not count what has seceded."""
        args = self.study.sweep, proposal, attempt
        future: Future[Any] = self.client.submit(
            task.run, *args, key=key, pure=False, workers=[worker], resources={SLOT: 1}
        )
        self._ended.add(future)
        return future

    def wait(self) -> list[Future[Any]]:
        """Return the tasks that have ended, waiting for the first of them for a second; look at the workers."""
        ended: list[Future[Any]] = []
        if self._ended.is_empty():
            self._sleep(LOOK_S)
        else:
            with contextlib.suppress(TimeoutError):
                ended = [self.client.sync(self._next), *self._ended.next_batch(block=False)]
        self.look()  # after all that has ended: or what comes next goes to a worker whose death is among it
        return ended

    async def _next(self) -> Future[Any]:
        return await asyncio.wait_for(anext(self._ended), LOOK_S)

    def look(self) -> None:
        """Count the slots of the workers that are there, and note which tasks their worker will not begin."""
        # Dask's own account of the workers would come with all that it measures.
        self.slots, self.busy, lost = self.client.run_on_scheduler(_look, sweep=self.study.sweep)
        self.lost |= lost

    def restart(self, address: str) -> None:
        """End a worker with all that it does; its nanny, where it has one, starts another."""
        self.client.run_on_scheduler(_restart, address=address)

    def ended_for_memory(self, address: str) -> bool:
        """Tell whether a worker that died was ended for its memory, which may be logged a little later."""
        for look in range(MEMORY_LOOKS):
            self._sleep(MEMORY_LOOK_S if look else 0)
            if any(event["worker"] == address for _, event in self.client.get_events(MEMORY_TOPIC)):
                return True
        return False

    def idle(self) -> TipcastError:
        """Return the error of workers that do nothing."""
        what = f"not at work for {self.wait_s:g} s: paused for lack of memory, or gone"
        fix = "give workers more memory (cluster.memory_limit), or search on fewer rows"
        return TipcastError("K003", "all workers", what, fix)

    def _report(self, event: tuple[float, Any]) -> None:
        trial = Trial(**json.loads(event[1]))
        self.reports[trial.number, trial.attempt] = trial


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


def _look(dask_scheduler: Any, sweep: str) -> tuple[dict[str, int], bool, set[str]]:
    """Return the slots of each worker that takes tasks, whether any runs, and the keys of tasks that none will begin.

    A task that has begun has seceded, and so is one of Dask's long-running ones.
    """
    lost, slots = set(dask_scheduler.unrunnable), dict[str, int]()
    for address, worker in dask_scheduler.workers.items():
        if worker in dask_scheduler.running:
            slots[address] = int(worker.resources.get(SLOT, 0))
        else:
            lost |= set(worker.processing) - worker.long_running
    busy = any(worker.long_running for worker in dask_scheduler.workers.values())
    keys = {task.key for task in lost if str(task.key).endswith(sweep)}
    return {address: number for address, number in slots.items() if number}, busy, keys


async def _restart(dask_scheduler: Any, address: str) -> None:
    await dask_scheduler.restart_workers(
        [address], wait_for_workers=False, on_error="return", stimulus_id=f"tipcast-restart-{address}"
    )
