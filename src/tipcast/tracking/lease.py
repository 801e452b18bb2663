"""One process at a time works on a sweep, and a second is told which one does.

On one machine a lock decides, which ends with its process. A store may be reached from several machines, which do not
see each other's locks: for these a tag of the run says when its process was last heard of.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock

from tipcast.config.errors import TipcastError
from tipcast.tracking import process
from tipcast.tracking.run import set_tags

SEEN = "sweep.seen"
"""Tag: when the process that works on a run was last heard of, in seconds since 1970."""
SILENCE_S = 120.0
"""Seconds without a word after which a process on another machine counts as gone."""
RENEW_S = 30.0


@contextlib.contextmanager
def leased(
    client: Any, run_id: str, wait: Callable[[threading.Event, float], bool] = threading.Event.wait
) -> Iterator[Callable[[], None]]:
    """Keep other processes off a run; S002, naming host and process, where one works on it.

    The block gets a check, to call now and then: S002 where another process has taken the run over, since this one was
    not heard of. Then nothing more is written to the run. ``wait`` waits between two renewals.
    """
    folder = Path(tempfile.gettempdir()) / f"tipcast-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = filelock.FileLock(folder / f"sweep-{run_id}.lock", timeout=0, mode=0o600)
    own, ended, lost = process.tags(), threading.Event(), threading.Event()

    def overtaken() -> bool:
        return not own.items() <= client.get_run(run_id).data.tags.items()

    def renew() -> None:
        while not wait(ended, RENEW_S):
            with contextlib.suppress(Exception):  # the next time the store may answer again
                if overtaken():
                    lost.set()
                    return
                set_tags(client, run_id, {SEEN: int(time.time())})

    def leave() -> None:
        ended.set()
        renewing.join()
        with contextlib.suppress(Exception):  # a store that fails now must not hide the first problem
            if not overtaken():
                set_tags(client, run_id, {SEEN: 0})

    def check() -> None:
        if lost.is_set():
            what = f"another process works on this run: this one was not heard of for {SILENCE_S:g} s"
            raise TipcastError("S002", run_id, what, "wait for the other to end")

    tags = client.get_run(run_id).data.tags
    held = TipcastError("S002", run_id, f"{process.named(tags)} works on this run", "wait for it to end, or stop it")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock)
        except filelock.Timeout:
            raise held from None
        stack.callback(Path(lock.lock_file).unlink, missing_ok=True)
        heard = time.time() - float(tags.get(SEEN, 0)) < SILENCE_S
        if heard and not own.items() <= tags.items() and not process.has_exited(tags):
            raise held
        set_tags(client, run_id, {**own, SEEN: int(time.time())})
        renewing = threading.Thread(target=renew, name="lease", daemon=True)
        stack.callback(leave)
        renewing.start()
        yield check
