"""Which process writes a run: whether it has ended, the closing of what such ones left open, and
one at a time.
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
from tipcast.tracking.addresses import sqlite_file
from tipcast.tracking.store import all_runs

LOG = logging.getLogger("tipcast")

PROCESS = "tipcast.process"
"""Tag of a run: the machine, and what else identifies the process that writes it, as JSON."""
SAME_S = 1.5
"""Seconds by which two readings of a process's start may differ: the kernel rounds the boot's to
one.
"""

LOCK_S = 1
"""Seconds to wait for a run's lock: a process that looks for abandoned locks holds each for a
moment.
"""


def tags() -> dict[str, str]:
    """Return the tag that identifies this process."""
    return {PROCESS: _identity(os.getpid())}


@functools.cache  # the boot time may move by a second; the tags that are compared must not
def _identity(pid: int) -> str:
    # A system without /proc tells only its host.
    with contextlib.suppress(OSError, psutil.Error):
        return json.dumps({**_machine(), "pid": pid, "start": started(pid)})
    return json.dumps({"host": socket.gethostname()})


def _machine() -> dict[str, object]:
    """Return what tells machines and containers apart: process numbers mean something within one of
    them.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return {
        "host": socket.gethostname(),
        "pid_namespace": Path("/proc/self/ns/pid").stat().st_ino,
        "boot": boot,
    }


def started(pid: int) -> float:
    """Return when a process began, in seconds since the boot: these do not move when the clock is
    set.
    """
    return float(psutil.Process(pid).create_time() - psutil.boot_time())


def has_exited(run_tags: Mapping[str, str], store_uri: str) -> bool:
    """Tell whether the process that wrote a run of a store has certainly ended.

    Of other machines and containers nothing is known. Under one host name an sqlite file counts as
    written by one machine alone, also before its last boot.
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

        # The process waits to be reaped.
        ended = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        return ended or abs(started(pid) - start) > SAME_S  # the number is another process's by now
    except ProcessLookupError:
        return True
    # Other programs may have set these tags.
    except (KeyError, AttributeError, TypeError, ValueError, OverflowError, OSError, psutil.Error):
        return False


def close_abandoned(store: MlflowClient, uri: str, *, keep: str | None = None) -> None:
    """Close the runs that tipcast opened and whose process has ended as KILLED, in all experiments;
    not ``keep``.
    """
    for run in all_runs(f"attributes.status = 'RUNNING' and tags.`{PROCESS}` LIKE '%'"):
        if run.info.run_id == keep or not has_exited(run.data.tags, uri):
            continue
        now = store.get_run(run.info.run_id)
        # Otherwise another process has resumed the run.
        if now.info.status == "RUNNING" and now.data.tags[PROCESS] == run.data.tags[PROCESS]:
            store.set_tag(run.info.run_id, "error.message", "its process ended without closing it")
            store.set_terminated(run.info.run_id, "KILLED")
            LOG.warning("closed a run that ended without closing (KILLED): %s", run.info.run_id)


@contextlib.contextmanager
def leased(store: MlflowClient, run_id: str) -> Iterator[None]:
    """Keep other processes off a run; S002, naming host and process, where one works on it.

    On one machine a lock decides, which ends with its process. Of a run that another machine has
    open nothing is known: it counts as worked on until it is closed.
    """
    lock = filelock.FileLock(lock_file(run_id), timeout=LOCK_S, mode=0o600)
    with contextlib.suppress(filelock.Timeout):
        lock.acquire()

    try:
        run = store.get_run(run_id)  # no other process here changes it now
        written = run.data.tags
        by_another = PROCESS in written and not tags().items() <= written.items()
        is_open = run.info.status == "RUNNING" and by_another
        if not lock.is_locked or (is_open and not has_exited(written, store.tracking_uri)):
            writer = json.loads(written.get(PROCESS) or "{}")
            what = (
                f"process {writer.get('pid', '?')} on {writer.get('host', '?')} works on this run"
            )
            fix = (
                "wait for it to end, or stop it; if it was killed on another machine, set the "
                "run's status to KILLED"
            )
            raise TipcastError("S002", run_id, what, fix)

        yield
    finally:
        lock.release()
        remove_abandoned()  # filelock leaves the lock's file
