"""A lease on a run: one process at a time works on a sweep, and a second is told which one does.

On one machine a lock decides, which ends with its process. A store may be reached from several machines, which do
not see each other's locks: for these the run's tags say who works on it and when that process was last heard of.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
from mlflow.entities import RunTag

from tipcast.config.errors import TipcastError
from tipcast.tracking import process

OWNER, SEEN = "sweep.owner", "sweep.seen"
"""Tags: host and process that work on a run, and when they were last heard of, in seconds since 1970."""
SILENCE_S = 120.0
"""After so many seconds an owner on another machine counts as gone."""
RENEW_S = 30.0
SETTLE_S = 1.0
"""Longer than two machines that take a lease at once need between reading and writing."""


class Lease:
    """A run's lease in this process's hands, renewed by a thread of its own as long as it is held."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._run_id = client, run_id
        self._owner = f"{socket.gethostname()} {os.getpid()}"
        self._left, self._lost = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._renewing, name="lease", daemon=True)

    def take(self, settle_s: float) -> None:
        """Write that this process is at work; look whether another machine wrote at the same time: the last has it."""
        self._write(time.time())
        if settle_s:
            time.sleep(settle_s)
            self._look()
            self.check()
        self._thread.start()

    def check(self) -> None:
        """Raise S002 once another process has taken the lease."""
        if self._lost.is_set():
            raise _held(self._run_id, _owner(self._client, self._run_id)[0])

    def leave(self) -> None:
        """Give it back."""
        self._left.set()
        if self._thread.is_alive():
            self._thread.join()
        with contextlib.suppress(Exception):  # a store that fails now must not hide the first problem
            self._look()
            if not self._lost.is_set():
                self._write(0)

    def _renewing(self) -> None:
        while not self._left.wait(RENEW_S) and not self._lost.is_set():
            with contextlib.suppress(Exception):  # the next time the store may answer again
                self._look()
                if not self._lost.is_set():
                    self._write(time.time())

    def _write(self, seen: float) -> None:
        self._client.log_batch(self._run_id, tags=[RunTag(OWNER, self._owner), RunTag(SEEN, str(int(seen)))])

    def _look(self) -> None:
        if _owner(self._client, self._run_id)[0] != self._owner:
            self._lost.set()


@contextlib.contextmanager
def leased(client: Any, run_id: str) -> Iterator[Lease]:
    """Hold a run's lease.

    Raises
    ------
    TipcastError
        S002 when another process holds it, naming its host and number.

    """
    folder = Path(tempfile.gettempdir()) / f"tipcast-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = filelock.FileLock(folder / f"sweep-{run_id}.lock", timeout=0, mode=0o600)
    owner, seen = _owner(client, run_id)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock)
        except filelock.Timeout:
            raise _held(run_id, owner) from None
        stack.callback(Path(lock.lock_file).unlink, missing_ok=True)
        if time.time() - seen < SILENCE_S and _lives(owner):
            raise _held(run_id, owner)
        lease = Lease(client, run_id)
        stack.callback(lease.leave)
        lease.take(SETTLE_S if owner else 0)  # nobody else knows of a run that is new
        yield lease


def _owner(client: Any, run_id: str) -> tuple[str, float]:
    """Return who works on a run, or did, and when it was last heard of."""
    tags = client.get_run(run_id).data.tags
    return tags.get(OWNER, ""), float(tags.get(SEEN, 0))


def _lives(owner: str) -> bool:
    """Tell whether an owner may be at work; on this machine it may have locked a file of another temporary folder."""
    host, _, pid = owner.rpartition(" ")
    if host != socket.gethostname():
        return bool(host)
    return pid != str(os.getpid()) and pid.isdecimal() and process.alive(int(pid))


def _held(run_id: str, owner: str) -> TipcastError:
    host, _, pid = owner.rpartition(" ")
    what = f"process {pid or '?'} on {host or socket.gethostname()} works on this sweep"
    return TipcastError("S002", run_id, what, "wait for it to end, or stop it")
