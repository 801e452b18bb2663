"""The process that writes a run: whether it has ended, how its open runs are closed, and the lock
that keeps others off.
"""

import contextlib
import functools
import json
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import filelock
import psutil
from mlflow import MlflowClient

from tipcast.config.disk import lock_file, remove_abandoned
from tipcast.config.errors import TipcastError
from tipcast.tracking.store import all_runs
from tipcast.tracking.uri_checks import sqlite_file

LOG = logging.getLogger("tipcast")

PROCESS = "tipcast.process"
"""Tag of a run: the process that writes it, with its machine, as JSON."""
SAME_S = 1.5
"""Seconds by which two readings of one process's start may differ: the kernel rounds the time of
the boot to a second.
"""

LOCK_S = 1
"""Seconds to wait for a run's lock, which a process that looks for abandoned locks holds for a
moment.
"""


def tags() -> dict[str, str]:
    """Return the tag that identifies this process."""
    return {PROCESS: _identity(os.getpid())}


@functools.cache  # the boot time may move by a second; the tags that are compared must not
def _identity(pid: int) -> str:
    """Return machine, number and start of a process as JSON; only the host without /proc."""
    with contextlib.suppress(OSError, psutil.Error):
        return json.dumps({**_machine(), "pid": pid, "start": started(pid)})
    return json.dumps({"host": socket.gethostname()})


def _machine() -> dict[str, object]:
    """Return what tells machines and containers apart: each numbers its processes anew."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return {
        "host": socket.gethostname(),
        "pid_namespace": Path("/proc/self/ns/pid").stat().st_ino,
        "boot": boot,
    }


def started(pid: int) -> float:
    """Return when a process began, in seconds since the boot: the clock may be set meanwhile."""
    return float(psutil.Process(pid).create_time() - psutil.boot_time())


def has_exited(run_tags: Mapping[str, str], store_uri: str) -> bool:
    """Tell whether the process that wrote a run of a store has certainly ended.

    It is False for processes of other machines and containers, which cannot be seen from here. All
    processes that write an sqlite file under one host name count as of one machine, even from
    before its last boot.
    """
    try:
        writer = json.loads(run_tags[PROCESS])
        machine = _machine()
        if sqlite_file(store_uri):
            machine.pop("boot")

        if not machine.items() <= writer.items():
            return False

        pid = int(writer["pid"])
        start = float(writer["start"])
        # psutil may not look at another user's process.
        with contextlib.suppress(PermissionError):
            os.kill(pid, 0)

        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:  # it waits to be reaped
            return True
        return abs(started(pid) - start) > SAME_S  # by now another process has the number
    except ProcessLookupError:
        return True
    # Other programs may have set these tags.
    except (KeyError, AttributeError, TypeError, ValueError, OverflowError, OSError, psutil.Error):
        return False


def close_abandoned(store: MlflowClient, *, keep: str | None = None) -> None:
    """Close, as KILLED, runs of all experiments whose process has ended; ``keep`` stays open."""
    for run in all_runs(store, f"attributes.status = 'RUNNING' and tags.`{PROCESS}` LIKE '%'"):
        run_id = run.info.run_id
        if run_id == keep or not has_exited(run.data.tags, store.tracking_uri):
            continue

        current = store.get_run(run_id)
        if current.info.status != "RUNNING" or current.data.tags[PROCESS] != run.data.tags[PROCESS]:
            continue  # another process has resumed or closed the run meanwhile
        store.set_tag(run_id, "error.message", "its process ended without closing it")
        store.set_terminated(run_id, "KILLED")
        LOG.warning("closed a run whose process had ended (KILLED): %s", run_id)


@contextlib.contextmanager
def leased(store: MlflowClient, run_id: str) -> Iterator[None]:
    """Keep other processes off a run; S002, with host and process, if one works on it.

    On one machine a lock decides, which ends with its process. A run that another machine has open
    counts as worked on until it is closed.
    """
    lock = filelock.FileLock(lock_file(run_id), timeout=LOCK_S, mode=0o600)
    with contextlib.suppress(filelock.Timeout):
        lock.acquire()

    try:
        if not lock.is_locked:
            raise _in_use(run_id, store.get_run(run_id).data.tags)
        check_free(store, run_id)  # no other process here changes it now

        yield
    finally:
        lock.release()
        remove_abandoned()  # filelock leaves the lock's file


def check_free(store: MlflowClient, run_id: str) -> None:
    """Refuse (S002) a run that another process has open, unless that has certainly ended."""
    run = store.get_run(run_id)
    run_tags = run.data.tags
    by_another = PROCESS in run_tags and not tags().items() <= run_tags.items()
    is_open = run.info.status == "RUNNING" and by_another
    if is_open and not has_exited(run_tags, store.tracking_uri):
        raise _in_use(run_id, run_tags)


def _in_use(run_id: str, run_tags: Mapping[str, str]) -> TipcastError:
    """Return the S002 error of a run that another process works on."""
    writer = json.loads(run_tags.get(PROCESS) or "{}")
    what = f"process {writer.get('pid', '?')} on {writer.get('host', '?')} is working on this run"
    fix = (
        "wait for it to end, or stop it; if it was killed on another machine, set the run's status "
        "to KILLED"
    )
    return TipcastError("S002", run_id, what, fix)
