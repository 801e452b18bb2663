"""Workers that a job starts: what they are given, what they may say, and how they are waited for."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import distributed
from distributed import Client, Status, as_completed
from distributed.diagnostics.plugin import WorkerPlugin

from tipcast.backends.waiting import waiting
from tipcast.config.errors import TipcastError

HIDDEN = ("MLFLOW_", "DATABRICKS_")
"""Variables that workers do not get: they compute and return; only the driver may talk to MLflow."""

QUIET = ("distributed.worker", "distributed.core", "distributed.sizeof", "asyncio", "tornado", "tornado.application")
"""Loggers of workers: what they tell, the driver learns otherwise, or it comes of its leaving; or it is how deep their
profile is for Dask's report."""

START = "start workers with `dask worker ADDRESS`, or lower cluster.n_workers"
"""How to mend that workers are missing, where the user starts them."""
SLOW = "raise cluster.wait_s, or lower cluster.n_workers"
"""The same, where tipcast starts them."""

LOOK_S = 1.0
"""How often to look at what else has happened while workers are waited for, in seconds."""


def environment() -> dict[str, str]:
    """Return the variables of workers that this machine starts."""
    return dict.fromkeys((name for name in os.environ if name.startswith(HIDDEN)), "") | waiting()


class Nanny(distributed.Nanny):
    """A nanny that forgets a worker process that has ended before it starts the next one.

    Dask's own starts the next one through the same object. Where a worker is killed before its nanny has read that it
    is up, that start goes on waiting and takes the next one's word for that from the queue; the nanny believes for ever
    that its worker is starting, and can neither restart nor close it.
    """

    async def instantiate(self) -> Status:
        """Start a worker process."""
        if self.process is not None and self.process.status is Status.stopped:
            self.process = None
        return await super().instantiate()


class Quiet(WorkerPlugin):
    """Leaves all words to the driver, also in workers that come later: they read no settings."""

    name = "tipcast-quiet"

    def setup(self, worker: Any) -> None:  # noqa: ARG002 - Dask's interface
        """Close the loggers of this worker's process."""
        for name in QUIET:
            logging.getLogger(name).setLevel(logging.CRITICAL)


def wait(
    client: Client, wanted: int, wait_s: float, fix: str = START, *, look: Callable[[], object] = lambda: None
) -> None:
    """Wait for workers, with a look now and then at what else may have happened; K002 when they are too few in time."""
    deadline = time.monotonic() + wait_s
    while True:
        left = deadline - time.monotonic()
        try:
            client.wait_for_workers(wanted, timeout=max(min(LOOK_S, left), 0.01))
        except TimeoutError as problem:
            look()
            if left > LOOK_S:
                continue
            ready = len(client.scheduler_info()["workers"])
            what = f"{ready} of {wanted} workers after {wait_s:g} s"
            raise TipcastError("K002", address(client), what, fix) from problem
        return


def completed(client: Client, futures: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each future with its result as it ends; raise what one failed with, also that it was cancelled."""
    with client.as_current():  # as_completed takes no client
        ended = as_completed(list(futures), with_results=True)
    for future, result in ended:
        if isinstance(result, CancelledError):  # as all are when the scheduler goes: Dask makes the error the result
            raise result
        yield future, result


def address(client: Client) -> str:
    return str(client.scheduler.address) if client.scheduler else "scheduler"
