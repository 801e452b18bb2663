"""Which process writes a run, as tags; whether it has certainly ended; and the closing of what such ones left open."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from mlflow.exceptions import MlflowException

from tipcast.tracking.store import is_locked, pages, sqlite_file

LOG = logging.getLogger("tipcast")

HOST, PROCESS = "tipcast.host", "tipcast.process"
"""Tags of a run: the host name, and as JSON what else identifies the process that writes it."""
INITIAL = 0xEFFFFFFC
"""Linux' number of the PID namespace that is no container's (PROC_PID_INIT_INO)."""
SAME_S = 1.5
"""Seconds by which two readings of a process's start may differ: the kernel rounds the boot's to one."""
NAMED = 5
"""Runs that the log names."""


def tags() -> dict[str, str]:
    """Return the tags that identify this process; without ``/proc`` an empty one, for a resumed run has old ones."""
    return {HOST: socket.gethostname(), PROCESS: _identity(os.getpid())}


@functools.cache  # the kernel's boot time may move by a second: tags that are compared must not
def _identity(pid: int) -> str:
    try:
        return json.dumps({**_kernel(), "pid": pid, "start": started(pid)})
    except (OSError, psutil.Error):
        return ""


def named(run_tags: Mapping[str, str]) -> str:
    """Return number and host of the process that a run's tags identify, in words."""
    known = json.loads(run_tags.get(PROCESS) or "{}")
    return f"process {known.get('pid', '?')} on {run_tags.get(HOST, '?')}"


def started(pid: int) -> float:
    """Return when a process began, in seconds since the boot: these do not move when the clock is set."""
    boot = psutil.boot_time()
    return float(psutil.Process(pid).create_time() - boot)


def has_exited(run_tags: Mapping[str, str], *, one_machine: bool = False) -> bool:
    """Tell whether the process that wrote a run has certainly ended.

    Process numbers mean something only within one boot of one kernel and one PID namespace: of other machines and
    containers, even of the same host name, nothing is known. ``one_machine`` says that only this machine can have
    written the run, so that an earlier boot under this host name was its own.
    """
    try:
        known, here = json.loads(run_tags[PROCESS]), _kernel()
        pid, start = int(known["pid"]), float(known["start"])
        if run_tags.get(HOST) != socket.gethostname() or known["pid_namespace"] != here["pid_namespace"]:
            return False
        if known["boot"] != here["boot"]:
            return one_machine and here["pid_namespace"] == INITIAL  # containers may have boot ids of their own
        with contextlib.suppress(PermissionError):  # of another user's process
            os.kill(pid, 0)
        if psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):  # waits to be reaped
            return True
        return abs(started(pid) - start) > SAME_S  # the number is another process's by now
    except ProcessLookupError:
        return True
    # Tags of others, no /proc, or one that hides other users' processes (hidepid=).
    except (KeyError, TypeError, ValueError, OverflowError, OSError, psutil.Error):
        return False


def _kernel() -> dict[str, object]:
    if str(Path("/proc/self").readlink()) != str(os.getpid()):
        raise OSError("/proc is of another PID namespace")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return {"boot": boot, "pid_namespace": Path("/proc/self/ns/pid").stat().st_ino}


def close_abandoned(client: Any, store: str, *, keep: str | None = None) -> None:
    """Close the runs that tipcast opened and whose process has ended as KILLED, in all experiments.

    ``keep`` is a run to leave as it is. Runs of processes of other machines and containers are left, as are those of
    whom it is not known. Machines are told apart by their host names; under one name an sqlite file counts as written
    by one machine alone.
    """
    experiments = [experiment.experiment_id for experiment in pages(client.search_experiments)]
    wanted = f"attributes.status = 'RUNNING' and tags.`{HOST}` = '{socket.gethostname()}'"
    killed: list[str] = []
    for run in pages(client.search_runs, experiments, wanted):
        run_id, written = run.info.run_id, run.data.tags
        if run_id == keep or not has_exited(written, one_machine=sqlite_file(store) is not None):
            continue
        try:
            now = client.get_run(run_id)
            if now.info.status == "RUNNING" and now.data.tags.get(PROCESS) == written[PROCESS]:  # else it was resumed
                client.set_tag(run_id, "error.message", "its process ended without closing it")
                client.set_terminated(run_id, "KILLED")
                killed.append(run_id)
        except MlflowException as problem:  # such as of a run that was deleted meanwhile
            if is_locked(problem):
                break  # each of the others would wait as long: they are left to the next command
    if killed:
        runs = "1 run" if len(killed) == 1 else f"{len(killed)} runs"
        more = f" and {len(killed) - NAMED} more" if len(killed) > NAMED else ""
        LOG.warning("closed %s that ended without closing (KILLED): %s", runs, ", ".join(killed[:NAMED]) + more)
