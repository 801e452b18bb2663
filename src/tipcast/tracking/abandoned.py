"""Runs that nobody will close: their process was killed outright, or its machine went down."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from mlflow.entities import RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils import get_results_from_paginated_fn

from tipcast.tracking import process
from tipcast.tracking.credentials import is_loopback, redact
from tipcast.tracking.store import is_locked, sqlite_file

LOG = logging.getLogger("tipcast")

STATE, RUNGS = "trial.state", "trial.rungs"
"""Tags of a trial: what became of it, and the results that it had when it was opened again for more."""
PAGE = 1000
"""Entries of one answer of the store."""
NAMED = 5
"""Runs that the log names."""
DISKS = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}
"""File systems that one machine mounts."""


def close_abandoned(client: Any, store: str, *, keep: str | None = None) -> None:
    """Close the runs that tipcast opened and whose process has ended as KILLED, in all experiments.

    Trials that were open for more trees alone end as FINISHED: what they have counts when their sweep is resumed. Runs
    of processes of other machines and containers are left, as are those of whom it is not known. In a store that other
    machines may write to they are only named: on a copy of this virtual machine their process may live.

    Parameters
    ----------
    client, store
        The store, and its URI.
    keep
        A run to leave as it is.

    """
    experiments = [experiment.experiment_id for experiment in pages(client.search_experiments)]
    wanted = f"attributes.status = 'RUNNING' and tags.`{process.HOST}` = '{socket.gethostname()}'"
    one_machine = _on_own_disk(store)
    exited = [
        run
        for run in pages(client.search_runs, experiments, wanted)
        if run.info.run_id != keep and process.has_exited(run.data.tags, one_machine=one_machine)
    ]
    if exited and not (one_machine or is_loopback(urlsplit(store).hostname)):
        runs, ids = _named([run.info.run_id for run in exited])
        close = f"import mlflow; mlflow.MlflowClient({redact(store)!r}).set_terminated('RUN', 'KILLED')"
        told = 'left open %s whose process has ended, or runs on a copy of this machine: %s; close by python -c "%s"'
        LOG.warning(told, runs, ids, close)
        return
    killed = []
    for run in exited:
        try:
            killed += _closed(client, run)
        except MlflowException as problem:  # such as of a run that was deleted meanwhile
            if is_locked(problem):
                break  # each of the others would wait as long: they are left to the next command
    if killed:
        LOG.warning("closed %s that ended without closing (KILLED): %s", *_named(killed))


def _named(run_ids: Sequence[str]) -> tuple[str, str]:
    """Return how many runs there are, and the ids of the first."""
    more = f" and {len(run_ids) - NAMED} more" if len(run_ids) > NAMED else ""
    return "1 run" if len(run_ids) == 1 else f"{len(run_ids)} runs", ", ".join(run_ids[:NAMED]) + more


def _closed(client: Any, run: Any) -> list[str]:
    """Close a run; return its id where it is KILLED now."""
    run_id = run.info.run_id
    now = client.get_run(run_id)
    if now.info.status != "RUNNING" or now.data.tags.get(process.PROCESS) != run.data.tags[process.PROCESS]:
        return []  # another process has closed it or has resumed it
    tags = dict(run.data.tags)
    finished = RUNGS in tags
    told = {} if finished else {"error.message": "its process ended without closing it"}
    if STATE in tags:
        told[STATE] = "finished" if finished else "killed"
    client.log_batch(run_id, tags=[RunTag(name, value) for name, value in told.items()])
    client.set_terminated(run_id, "FINISHED" if finished else "KILLED")
    return [] if finished else [run_id]


def pages(search: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return all that the store finds, page by page."""
    found: list[Any] = get_results_from_paginated_fn(
        lambda size, token: search(*arguments, max_results=size, page_token=token), max_results_per_page=PAGE
    )
    return found


def _on_own_disk(store: str) -> bool:
    """Tell whether the store is a file of a disk that no other machine writes to."""
    file = sqlite_file(store)
    if file is None:
        return False
    file = file.resolve()
    mounts = [part for part in reversed(psutil.disk_partitions(all=True)) if file.is_relative_to(part.mountpoint)]
    # of several on one point the last is on top
    return max(mounts, key=lambda part: len(Path(part.mountpoint).parts)).fstype in DISKS if mounts else False
