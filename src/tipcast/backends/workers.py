"""Workers that a job starts: what they are given, what they may say, and how they are waited for."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

from distributed import Client
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


def address(client: Client) -> str:
    return str(client.scheduler.address) if client.scheduler else "scheduler"
