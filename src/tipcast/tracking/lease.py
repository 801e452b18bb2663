"""A lease on a run: one process at a time works on a sweep, and a second is told which one does."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlflow.entities import RunTag

from tipcast.config.errors import TipcastError

OWNER, SEEN = "sweep.owner", "sweep.seen"
"""Tags: who works on a run, and when it was last heard of, in seconds since 1970."""
SILENCE_S = 120.0
"""After so many seconds an owner on another machine counts as gone."""
RENEW_S = 30.0


class Lease:
    """A run's lease in this process's hands."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._run_id, self._renewed = client, run_id, 0.0

    def renew(self) -> None:
        """Say, now and then, that the owner is at work."""
        if time.monotonic() - self._renewed < RENEW_S:
            return
        self._renewed = time.monotonic()
        tags = {OWNER: f"{socket.gethostname()} {os.getpid()}", SEEN: str(int(time.time()))}
        self._client.log_batch(self._run_id, tags=[RunTag(name, value) for name, value in tags.items()])


@contextlib.contextmanager
def leased(client: Any, run_id: str) -> Iterator[Lease]:
    """Hold a run's lease; on this machine a lock that ends with the process decides, beyond it what was last heard.

    Raises
    ------
    TipcastError
        S002 when another process holds it, naming its host and number.

    """
    tags = client.get_run(run_id).data.tags
    host, _, process = tags.get(OWNER, "").rpartition(" ")
    silent_s = time.time() - float(tags.get(SEEN, 0))
    if host and host != socket.gethostname() and silent_s < SILENCE_S:
        raise _held(run_id, host, process)
    with _locked(run_id) as locked:
        if not locked:
            raise _held(run_id, host or socket.gethostname(), process or "?")
        lease = Lease(client, run_id)
        lease.renew()
        yield lease
        client.log_batch(run_id, tags=[RunTag(SEEN, "0")])


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


def _held(run_id: str, host: str, process: str) -> TipcastError:
    return TipcastError(
        "S002", run_id, f"process {process} on {host} works on this sweep", "wait for it to end, or stop it"
    )
