"""Where parts lie, and waiting for tasks that cannot go on when a worker is lost."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any

from distributed import wait

from tipcast.config.errors import TipcastError
from tipcast.estimators.base import Future

LOOK_S = 1.0
"""Seconds between two looks at which workers are there."""


def by_worker(client: Any, parts: Sequence[Future]) -> dict[str, list[int]]:
    """Wait for parts and return a worker that holds each: address -> numbers of parts, in order.

    Of several workers that hold a part, the one with the fewest parts has it.

    Raises
    ------
    TipcastError
        K003 where nobody holds a part any more.
    Exception
        What went wrong in the first part that could not be made.

    """
    with client.as_current():  # wait takes no client
        wait(parts)
    for part in parts:
        if part.status == "error":
            part.result()
    holders = client.who_has(list(parts))
    held: dict[str, list[int]] = {}
    for at in sorted(range(len(parts)), key=lambda at: len(holders[parts[at].key])):  # those with no choice first
        there = holders[parts[at].key]
        if not there:
            raise gone(["a worker that held rows"])
        held.setdefault(min(there, key=lambda address: (len(held.get(address, ())), address)), []).append(at)
    return {address: sorted(held[address]) for address in sorted(held)}


def results(client: Any, tasks: Mapping[str, Future]) -> dict[str, Any]:
    """Return the results of tasks that need each other, one on each worker.

    Parameters
    ----------
    client
        A ``distributed.Client``.
    tasks
        Worker's address -> its task.

    Raises
    ------
    TipcastError
        K003 as soon as a worker is gone: its peers would wait for it until the end of time.
    Exception
        What went wrong in the first task that failed.

    """
    pending = list(tasks.values())
    while True:
        problem: BaseException | None = None
        try:
            with client.as_current():
                wait(pending, timeout=LOOK_S)
            if all(task.status == "finished" for task in pending):
                return dict(zip(tasks, client.gather(pending), strict=True))
        except TimeoutError:
            pass
        except CancelledError as cancelled:  # what a task needs is gone
            problem = cancelled
        failed = next((task for task in pending if task.status == "error"), None)
        if failed is not None:
            problem = failed.exception()
        if problem is not None:
            if client.status != "running":  # the scheduler is gone: Dask would try for long to ask it
                raise problem
            time.sleep(LOOK_S)  # a task may know of a lost peer before the scheduler does
        lost = set(tasks) - set(client.nthreads())
        if lost:
            client.cancel(pending, force=True)
            raise gone(lost) from problem
        if failed is not None:
            failed.result()  # raises; the others wait for it
        if problem is not None:
            raise problem


def gone(lost: Any) -> TipcastError:
    """Return the error for workers that were lost while training."""
    return TipcastError(
        "K003",
        ", ".join(sorted(lost)),
        "worker lost while training",
        "give workers more memory (cluster.memory_limit) and repeat the command",
    )
