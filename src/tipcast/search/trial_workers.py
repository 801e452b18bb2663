"""The workers of a sweep: their slots for trials, what has ended on them, and which were lost."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, final

from distributed import Client, Future, Scheduler, SchedulerPlugin, as_completed

from tipcast.compute.cluster import restart
from tipcast.config.errors import TipcastError
from tipcast.datasets.counts import Counts
from tipcast.search.trial import Proposal, SweepSetup, TrialResult
from tipcast.search.worker import SLOT, TrialSlots, load_rows, run_trial

POLL_S = 1.0
"""Seconds between two checks of the workers while no trial ends."""
MEMORY_TOPIC = "worker-restart-memory"
"""Topic under which Dask's nannies log that they end a worker for its memory."""
MEMORY_POLLS = 6
"""How often the topic is read after a worker's death."""
MEMORY_POLL_S = 0.1
"""Seconds between two of these reads."""
MORE_MEMORY = "give workers more memory (cluster.memory_limit), or search on fewer rows"


@final
class TrialWorkers:
    """The workers of a sweep; K003 after ``wait_s`` seconds without a worker that takes trials."""

    def __init__(
        self,
        client: Client,
        sweep_setup: SweepSetup,
        per_gpu: int,
        wait_s: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.client = client
        self.sweep_setup = sweep_setup
        self.wait_s = wait_s
        self._plugin = TrialSlots(sweep_setup, per_gpu)
        self._sleep = sleep
        self._ended: Any = None
        self.slots: dict[str, int] = {}
        """Worker -> how many trials it takes at once, without workers paused for lack of memory."""
        self.lost: set[str] = set()
        """Keys of tasks whose worker is gone, or was paused before it began them."""
        self.reports: dict[tuple[int, int], TrialResult] = {}
        """Trial and attempt in this process -> its result, which arrives before Dask says that its
        task is done.
        """

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Prepare the workers for the trials, and free their rows at the end."""
        no_retries = NoRetries(self._plugin.name, self.sweep_setup.sweep_id, self.client.id)
        self.client.register_plugin(self._plugin)
        self.client.register_plugin(no_retries)
        self.client.subscribe_topic(self.sweep_setup.topic, self._keep_report)
        self._ended = as_completed(loop=self.client.loop)
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # a cluster that is gone holds nothing
                self.client.unsubscribe_topic(self.sweep_setup.topic)
                self.client.unregister_scheduler_plugin(self._plugin.name)
                self.client.unregister_worker_plugin(self._plugin.name)

    def _keep_report(self, event: tuple[float, str]) -> None:
        """Keep the result of a trial, which ``worker.run_trial`` reports as (time, JSON)."""
        trial = TrialResult(**json.loads(event[1]))
        self.reports[trial.number, trial.attempt] = trial

    def load(self, max_tries: int) -> tuple[tuple[Counts, ...], ...]:
        """Have every worker read the rows; return the counts of one of them, by part and part.

        If a worker dies meanwhile, its successor reads them for its first trial. If all have died,
        their successors are tried, up to ``max_tries`` times in all. Raises K003 after that, and at
        once if one died for its memory.
        """
        for _ in range(max_tries):
            try:
                self.client.wait_for_workers(1, timeout=self.wait_s)
            except TimeoutError:
                raise no_worker(self.wait_s) from None

            self.update_slots()
            answers = self.client.run(
                load_rows, self.sweep_setup.sweep_id, workers=list(self.slots), on_error="return"
            )
            for answer in answers.values():
                if not isinstance(answer, BaseException):
                    return answer  # type: ignore[no-any-return]
                # Dask returns an OSError if the connection to a worker has ended.
                if not isinstance(answer, OSError):
                    raise answer

            if any(self.ended_for_memory(address) for address in answers):
                break  # the next worker would run out of memory as well

        raise TipcastError("K003", "all workers", "lost while reading the rows", MORE_MEMORY)

    def submit(
        self, worker: str, key: str, proposal: Proposal, process_attempt: int
    ) -> Future[None]:
        """Send a trial to a worker. Dask itself could choose a busy one: it does not count tasks
        that have seceded.
        """
        future = self.client.submit(
            run_trial,
            self.sweep_setup.sweep_id,
            proposal,
            process_attempt,
            workers=[worker],
            resources={SLOT: 1},
            key=key,
            pure=False,
        )
        self._ended.add(future)
        return future

    def wait(self) -> list[Future[None]]:
        """Wait up to a second for a task to end; update the slots, and return all ended tasks."""
        ended: list[Future[None]] = []

        async def first() -> Any:
            return await asyncio.wait_for(anext(self._ended), POLL_S)

        if self._ended.is_empty():
            self._sleep(POLL_S)
        else:
            with contextlib.suppress(TimeoutError):
                ended = [self.client.sync(first), *self._ended.next_batch(block=False)]
        # Only now: one of these tasks may have ended with its worker, which must get no other task.
        self.update_slots()
        return ended

    def update_slots(self) -> None:
        """Count the slots of all workers, and note tasks that their worker will not begin."""
        # Dask's own report on the workers would include all that it measures.
        self.slots, lost = self.client.run_on_scheduler(
            scan_workers, sweep_id=self.sweep_setup.sweep_id
        )
        self.lost |= lost

    def restart(self, address: str) -> None:
        """End a worker and all its tasks; its nanny, if it has one, starts another."""
        restart(self.client, [address])

    def ended_for_memory(self, address: str) -> bool:
        """Tell whether a worker that died was ended for its memory, which Dask may log a little
        later.
        """
        for pause in (0.0, *[MEMORY_POLL_S] * (MEMORY_POLLS - 1)):
            self._sleep(pause)
            if any(event["worker"] == address for _, event in self.client.get_events(MEMORY_TOPIC)):
                return True
        return False


def no_worker(wait_s: float) -> TipcastError:
    """Return the error if no worker takes trials."""
    what = f"not at work for {wait_s:g} s: gone, or paused because memory is low"
    return TipcastError("K003", "all workers", what, MORE_MEMORY)


@final
class NoRetries(SchedulerPlugin):
    """Disables Dask's retries of a sweep's tasks; frees its rows on the workers when its client
    disconnects.
    """

    idempotent = True

    def __init__(self, name: str, sweep_id: str, client: str) -> None:
        self.name = name
        self._sweep_id = sweep_id
        self._client = client
        self._scheduler: Any = None

    async def start(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Let Dask give a task up when its worker dies: the driver decides what is retried."""
        if finish == "processing" and str(key).endswith(self._sweep_id):
            task = self._scheduler.tasks[key]
            # With one more death than allowed, Dask ends the task with KilledWorker. Tasks of other
            # clients keep their count.
            task.suspicious = max(task.suspicious, self._scheduler.allowed_failures)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Clear up after a driver that was killed."""
        if client == self._client:
            # This hook cannot wait for a coroutine.
            scheduler.loop.add_callback(self._clear, scheduler)

    async def _clear(self, scheduler: Scheduler) -> None:
        with contextlib.suppress(ValueError):  # the driver cleared up itself
            scheduler.remove_plugin(self.name)
            await scheduler.unregister_worker_plugin(None, self.name)


def scan_workers(dask_scheduler: Scheduler, sweep_id: str) -> tuple[dict[str, int], set[str]]:
    """Return worker -> slots, for workers that take tasks, and the keys of a sweep's tasks that no
    worker will begin.

    A task that has begun has seceded: Dask counts it as long-running.
    """
    scheduler: Any = dask_scheduler
    lost = set(scheduler.unrunnable)
    slots = dict[str, int]()
    for address, worker in scheduler.workers.items():
        if worker in scheduler.running:
            slots[address] = int(worker.resources.get(SLOT, 0))
        else:
            lost |= set(worker.processing) - worker.long_running

    keys = {task.key for task in lost if str(task.key).endswith(sweep_id)}
    return {address: number for address, number in slots.items() if number}, keys
