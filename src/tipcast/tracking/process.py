"""Which process writes a run: whether it has ended, the closing of what such ones left open, and one at a time."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock
import psutil
from mlflow.exceptions import MlflowException

from tipcast.config.errors import TipcastError
from tipcast.tracking.store import is_locked, pages, sqlite_file

LOG = logging.getLogger("tipcast")

PROCESS = "tipcast.process"
"""Tag of a run: the host, and what else identifies the process that writes it, as JSON."""
INITIAL = 0xEFFFFFFC
"""Linux' number of the PID namespace that is no container's (PROC_PID_INIT_INO)."""
SAME_S = 1.5
"""Seconds by which two readings of a process's start may differ: the kernel rounds the boot's to one."""


def tags() -> dict[str, str]:
    """Return the tag that identifies this process; without ``/proc`` it has the host alone."""
    return {PROCESS: _identity(os.getpid())}


@functools.cache  # the kernel's boot time may move by a second: tags that are compared must not
def _identity(pid: int) -> str:
    host = {"host": socket.gethostname()}
    with contextlib.suppress(OSError, psutil.Error):
        return json.dumps({**host, **_kernel(), "pid": pid, "start": started(pid)})
    return json.dumps(host)


def started(pid: int) -> float:
    """Return when a process began, in seconds since the boot: these do not move when the clock is set."""
    return float(psutil.Process(pid).create_time() - psutil.boot_time())


def has_exited(run_tags: Mapping[str, str], *, one_machine: bool = False) -> bool:
    """Tell whether the process that wrote a run has certainly ended.

    Process numbers mean something only within one boot of one kernel and one PID namespace: of other machines and
    containers, even of the same host name, nothing is known. ``one_machine`` says that only this machine can have
    written the run, so that an earlier boot under this host name was its own.
    """
    try:
        known, here = json.loads(run_tags[PROCESS]), _kernel()
        pid, start = int(known["pid"]), float(known["start"])
        if known["host"] != socket.gethostname() or known["pid_namespace"] != here["pid_namespace"]:
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
    """Return what tells kernels and PID namespaces apart."""
    if str(Path("/proc/self").readlink()) != str(os.getpid()):
        raise OSError("/proc is of another PID namespace")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return {"boot": boot, "pid_namespace": Path("/proc/self/ns/pid").stat().st_ino}


def close_abandoned(client: Any, store: str, *, keep: str | None = None) -> None:
    """Close the runs that tipcast opened and whose process has ended as KILLED, in all experiments.

    ``keep`` is a run to leave as it is. Machines are told apart by their host names; under one name an sqlite file
    counts as written by one machine alone.
    """
    experiments = [experiment.experiment_id for experiment in pages(client.search_experiments)]
    here = json.dumps({"host": socket.gethostname()}).strip("{}")
    wanted = f"attributes.status = 'RUNNING' and tags.`{PROCESS}` LIKE '%{here}%'"
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
        LOG.warning("closed runs that ended without closing (KILLED): %s", ", ".join(killed))


@contextlib.contextmanager
def leased(client: Any, run_id: str) -> Iterator[None]:
    """Keep other processes off a run; S002, naming host and process, where one works on it.

    On one machine a lock decides, which ends with its process. Of a run that another machine has open nothing is
    known: it counts as worked on until it is closed.
    """
    folder = Path(tempfile.gettempdir()) / f"tipcast-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = filelock.FileLock(folder / f"sweep-{run_id}.lock", timeout=0, mode=0o600)
    with contextlib.suppress(filelock.Timeout):
        lock.acquire()
    run = client.get_run(run_id)  # by now nobody else here changes it
    written = run.data.tags
    try:
        own = tags().items() <= written.items()
        gone = has_exited(written, one_machine=sqlite_file(client.tracking_uri) is not None)
        if not lock.is_locked or (run.info.status == "RUNNING" and PROCESS in written and not own and not gone):
            known = json.loads(written.get(PROCESS) or "{}")
            what = f"process {known.get('pid', '?')} on {known.get('host', '?')} works on this run"
            fix = "wait for it to end, or stop it; if it was killed on another machine, set the run's status to KILLED"
            raise TipcastError("S002", run_id, what, fix)
        yield
    finally:
        lock.release()
