"""A lease on a run: one process at a time works on a sweep, and a second is told which one does."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlflow.entities import RunTag

from tipcast.config.errors import TipcastError
from tipcast.tracking import process

OWNER, SIGN, SEEN = "sweep.owner", "sweep.owner_sign", "sweep.seen"
"""Tags: who works on a run, what it alone writes there, and when it was last heard of, in seconds since 1970."""
SILENCE_S = 120.0
"""After so many seconds an owner on another machine counts as gone."""
RENEW_S = 30.0
SETTLE_S = 1.0
"""Longer than two processes that take a lease at once need between reading and writing."""


class Lease:
    """A run's lease in this process's hands, renewed by a thread of its own as long as it is held."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._run_id = client, run_id
        self._sign, self._left, self._lost = uuid.uuid4().hex, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._renewing, name="lease", daemon=True)

    def take(self, settle_s: float) -> None:
        """Write that the owner is at work; after a while look whether another wrote at the same time.

        Raises
        ------
        TipcastError
            S002 when another did, and later: of several the last has it.

        """
        self._write()
        if settle_s:
            time.sleep(settle_s)
            self._look()
            self.check()
        self._thread.start()

    def check(self) -> None:
        """Raise S002 once another process has taken the lease."""
        if self._lost.is_set():
            host, _, pid = self._tags().get(OWNER, "").rpartition(" ")
            raise _held(self._run_id, host, pid)

    def leave(self) -> None:
        """Give it back."""
        self._left.set()
        if self._thread.is_alive():
            self._thread.join()
        with contextlib.suppress(Exception):  # a store that fails now must not hide the first problem
            self._look()
            if not self._lost.is_set():
                self._client.log_batch(self._run_id, tags=[RunTag(SEEN, "0")])

    def _renewing(self) -> None:
        while not self._left.wait(RENEW_S) and not self._lost.is_set():
            with contextlib.suppress(Exception):  # the next time the store may answer again
                self._look()
                if not self._lost.is_set():
                    self._write()

    def _write(self) -> None:
        tags = {OWNER: f"{socket.gethostname()} {os.getpid()}", SIGN: self._sign, SEEN: str(int(time.time()))}
        self._client.log_batch(self._run_id, tags=[RunTag(name, value) for name, value in tags.items()])

    def _look(self) -> None:
        if self._tags().get(SIGN) != self._sign:
            self._lost.set()

    def _tags(self) -> dict[str, str]:
        return dict(self._client.get_run(self._run_id).data.tags)


@contextlib.contextmanager
def leased(client: Any, run_id: str) -> Iterator[Lease]:
    """Hold a run's lease; on this machine a lock that ends with the process decides, beyond it what was last heard.

    Raises
    ------
    TipcastError
        S002 when another process holds it, naming its host and number.

    """
    with _locked(run_id) as locked:
        tags = client.get_run(run_id).data.tags
        host, _, pid = tags.get(OWNER, "").rpartition(" ")
        recent = time.time() - float(tags.get(SEEN, 0)) < SILENCE_S
        if not locked or (recent and _lives(host, pid)):
            raise _held(run_id, host or socket.gethostname(), pid or "?")
        lease = Lease(client, run_id)
        try:
            lease.take(SETTLE_S if host else 0)  # nobody else knows of a run that is new
            yield lease
        finally:
            lease.leave()


def _lives(host: str, pid: str) -> bool:
    """Tell whether an owner may be at work; on this machine it may have locked a file of another temporary folder."""
    if host != socket.gethostname():
        return bool(host)
    return pid != str(os.getpid()) and pid.isdecimal() and process.alive(int(pid))


@contextlib.contextmanager
def _locked(run_id: str) -> Iterator[bool]:
    """Lock a file of this user's, gone at the end; tell whether that succeeded."""
    folder = Path(tempfile.gettempdir()) / f"tipcast-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"sweep-{run_id}.lock"
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            yield False
            return
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(file).st_ino:  # else its last owner has just taken it away
                break
        os.close(file)
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)
        os.close(file)


def _held(run_id: str, host: str, pid: str) -> TipcastError:
    return TipcastError(
        "S002", run_id, f"process {pid} on {host} works on this sweep", "wait for it to end, or stop it"
    )
