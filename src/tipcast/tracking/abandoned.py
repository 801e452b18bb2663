"""Runs that nobody will close: their process was killed outright, or its machine went down."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.utils import get_results_from_paginated_fn

from tipcast.tracking import process
from tipcast.tracking.store import is_locked, sqlite_file

LOG = logging.getLogger("tipcast")

PAGE = 1000
"""Entries of one answer of the store."""
NAMED = 5
"""Runs that the log names."""


def close_abandoned(client: Any, store: str, *, keep: str | None = None) -> None:
    """Close the runs that tipcast opened and whose process has ended as KILLED, in all experiments.

    ``keep`` is a run to leave as it is. Runs of processes of other machines and containers are left, as are those of
    whom it is not known. Machines are told apart by their host names; under one name an sqlite file counts as written
    by one machine alone.
    """
    experiments = [experiment.experiment_id for experiment in pages(client.search_experiments)]
    wanted = f"attributes.status = 'RUNNING' and tags.`{process.HOST}` = '{socket.gethostname()}'"
    one_machine = sqlite_file(store) is not None
    killed: list[str] = []
    for run in pages(client.search_runs, experiments, wanted):
        if run.info.run_id == keep or not process.has_exited(run.data.tags, one_machine=one_machine):
            continue
        try:
            killed += _closed(client, run)
        except MlflowException as problem:  # such as of a run that was deleted meanwhile
            if is_locked(problem):
                break  # each of the others would wait as long: they are left to the next command
    if killed:
        runs = "1 run" if len(killed) == 1 else f"{len(killed)} runs"
        more = f" and {len(killed) - NAMED} more" if len(killed) > NAMED else ""
        LOG.warning("closed %s that ended without closing (KILLED): %s", runs, ", ".join(killed[:NAMED]) + more)


def _closed(client: Any, run: Any) -> list[str]:
    """Close a run; return its id, or nothing where another process has closed or resumed it meanwhile."""
    run_id = run.info.run_id
    now = client.get_run(run_id)
    if now.info.status != "RUNNING" or now.data.tags.get(process.PROCESS) != run.data.tags[process.PROCESS]:
        return []
    client.set_tag(run_id, "error.message", "its process ended without closing it")
    client.set_terminated(run_id, "KILLED")
    return [run_id]


def pages(search: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return all that the store finds, page by page."""
    found: list[Any] = get_results_from_paginated_fn(
        lambda size, token: search(*arguments, max_results=size, page_token=token), max_results_per_page=PAGE
    )
    return found
