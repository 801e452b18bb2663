"""What is watched while a job waits for Dask: a scheduler or a worker that is frozen, a worker that
is lost, and workers that are all paused or gone.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait as ended
from typing import TYPE_CHECKING, Any

from distributed import Client
from distributed.scheduler import heartbeat_interval

from tipcast.compute.cluster import address
from tipcast.compute.scheduler_cluster import abandon
from tipcast.config.errors import TipcastError, ending_of, is_ending

if TYPE_CHECKING:
    from distributed import Scheduler

LOG = logging.getLogger("tipcast")

LOOK_S = 2.0
"""Seconds between two questions to the scheduler."""
SILENT_S = 45.0
"""Seconds that the scheduler may take to answer: it may be busy with a large graph."""
ENDING_S = 3.0
"""The same seconds once Ctrl-C or SIGTERM ends the job."""
COUNT_S = 0.5
"""Seconds by which such seconds are counted."""
JOIN_S = 10.0
"""Seconds that the end of a block waits for its watcher."""
HEARTBEATS = 10
"""Heartbeats that a worker may miss, as in Dask: many workers send them less often."""
RESTART_S = 5.0
"""Seconds that a nanny may take to end a frozen worker."""
OF_ALL = "all"
"""Topic to which Dask's scheduler logs what happens to any worker."""


@contextlib.contextmanager
def at_work(
    client: Client,
    wait_s: float,
    worker_ttl_s: float,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[threading.Event, float], bool] = threading.Event.wait,
) -> Iterator[None]:
    """End a block if the scheduler is frozen or no worker is at work; restart frozen workers.

    Dask would wait for ever, or for as long as a scheduler elsewhere was told to.

    - A frozen scheduler has answered nothing for ``SILENT_S`` seconds. One that is a thread of this
      process cannot be frozen alone.
    - A frozen worker has given no sign of life for ``worker_ttl_s`` seconds.
    - No worker is at work if for ``wait_s`` seconds tasks wait while all workers are gone, or
      paused and without a task. Dask leaves them paused if what they hold cannot be moved to disk.

    ``pause`` waits between two looks; ``now`` is a clock, in seconds.

    Raises K004 for the scheduler and K003 for workers; the client is closed by then. An error that
    comes of it while Ctrl-C or SIGTERM ends the job does not replace that ending.
    """
    over = threading.Event()
    given_up: list[TipcastError] = []
    job: int | None = threading.get_ident()
    if is_ending(job):  # whoever handles a Ctrl-C of their own may run a job in doing so
        job = None

    def watch() -> None:
        since = now()
        # A scheduler that is gone closes the client, and is reported elsewhere.
        while client.status != "closed" and not pause(over, LOOK_S):
            idle = _ask(client, worker_ttl_s, over, job)
            if not idle:
                since = now()

            if idle is None:
                given_up.append(_silent(client))
            elif now() - since > wait_s:
                given_up.append(_idle(client, wait_s))
            if given_up:
                abandon(client)
                return

    thread = threading.Thread(target=watch, daemon=True, name="scheduler and workers")
    thread.start()
    try:
        yield
    except BaseException as problem:
        ending = ending_of(problem) if job else None
        instead = ending or next(iter(given_up), problem)
        if instead is problem:
            raise
        raise instead from problem
    finally:
        over.set()
        thread.join(JOIN_S)


@contextlib.contextmanager
def naming_lost_workers(client: Client) -> Iterator[None]:
    """Log a line for each worker that is lost in the block: one that has not been retired."""
    over = threading.Event()

    def name_worker(event: tuple[float, Any]) -> None:
        _, message = event
        # Anybody may log to this topic.
        removed = isinstance(message, dict) and message.get("action") == "remove-worker"
        if removed and not message["expected"] and not over.is_set():
            LOG.warning("worker lost: %s", message["worker"])

    client.subscribe_topic(OF_ALL, name_worker)
    try:
        yield
    finally:
        over.set()
        if client.status == "running":
            client.unsubscribe_topic(OF_ALL)


def _ask(
    client: Client, worker_ttl_s: float, over: threading.Event, job: int | None
) -> bool | None:
    """Ask the scheduler whether no worker is at work; None if it does not answer in time.

    False if it cannot be asked, and once the block, which the thread ``job`` runs, is over.
    """
    question = client.run_on_scheduler(_look, client.id, worker_ttl_s, asynchronous=True)
    loop: Any = client.loop
    answer = asyncio.run_coroutine_threadsafe(question, loop.asyncio_loop)

    waited = 0.0
    while not over.is_set():
        ended([answer], COUNT_S)
        if answer.done():
            break
        # Not by a clock: this process may itself have been stopped for a while (Ctrl-Z).
        waited += COUNT_S
        if waited >= (ENDING_S if is_ending(job) else SILENT_S) and client.cluster is None:
            return None

    if answer.cancelled() or not answer.done() or answer.exception():
        answer.cancel()
        return False
    idle, frozen = answer.result()
    if frozen:
        LOG.warning("no heartbeat for %g s, restarted: %s", worker_ttl_s, ", ".join(frozen))
    return bool(idle)


async def _look(
    client: str, worker_ttl_s: float, dask_scheduler: "Scheduler"
) -> tuple[bool, list[str]]:
    """Return whether no worker is at work, and the frozen workers, which are restarted.

    Runs on the scheduler, whose own ``worker-ttl`` may be longer. Those without a nanny are
    removed. A worker that computes for other clients alone is left to them.
    """
    scheduler: Any = dask_scheduler
    _free_stranded(scheduler)
    idle = _none_at_work(scheduler)
    workers = scheduler.workers.values()
    ttl_s = max(worker_ttl_s, HEARTBEATS * heartbeat_interval(len(workers)))
    silent = [worker for worker in workers if time.time() - worker.last_seen > ttl_s]
    if not silent:
        return idle, []

    tasks = _tasks_of(scheduler, client)
    frozen = [
        worker.address
        for worker in silent
        if not worker.processing or tasks & {*worker.processing, *worker.has_what}
    ]
    await scheduler.restart_workers(
        frozen,
        timeout=RESTART_S,
        wait_for_workers=False,
        on_error="return",
        stimulus_id=f"tipcast-frozen-{time.time()}",
    )
    return idle, frozen


def _free_stranded(scheduler: Any) -> None:
    """Let tasks run anywhere that may, but whose own workers are gone.

    Dask forgets that they may if for a moment no worker at all was there.
    """
    stranded = [task.key for task in scheduler.unrunnable if task.loose_restrictions]
    if not stranded or not scheduler.running:
        return

    scheduler.set_restrictions(worker=dict.fromkeys(stranded))
    for worker in list(scheduler.running):
        runnable = scheduler.bulk_schedule_unrunnable_after_adding_worker(worker)
        scheduler.transitions(runnable, f"tipcast-stranded-{time.time()}")


def _tasks_of(scheduler: Any, client: str) -> set[Any]:
    """Return all tasks that a client waits for or keeps, and those that they depend on."""
    waiting = list(scheduler.clients[client].wants_what)
    tasks: set[Any] = set()
    while waiting:
        task = waiting.pop()
        if task not in tasks:
            tasks.add(task)
            waiting.extend(task.dependencies)
    return tasks


def _none_at_work(scheduler: Any) -> bool:
    """Tell whether tasks wait while no worker runs one: all are paused and idle, or gone."""
    workers = scheduler.workers.values()
    if any(worker.status.name != "paused" or worker.executing for worker in workers):
        return False

    waiting_states = ("processing", "queued", "no-worker")
    return any(task.state in waiting_states for task in scheduler.tasks.values())


def _silent(client: Client) -> TipcastError:
    """Return the error for a scheduler that does not answer."""
    what = f"the scheduler has not answered for {SILENT_S:g} s"
    fix = "check its process and machine, restart it if needed, and repeat the command"
    return TipcastError("K004", address(client), what, fix)


def _idle(client: Client, wait_s: float) -> TipcastError:
    """Return the error if no worker is at work."""
    what = f"no worker at work for {wait_s:g} s: all are gone, or paused because memory is low"
    fix = "give workers more memory (cluster.memory_limit), read fewer rows, or start more workers"
    return TipcastError("K003", address(client), what, fix)
