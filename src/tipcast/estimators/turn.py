"""Turns: one training at a time on the same workers, also after one whose process was killed in it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from distributed import MultiLock

LOG = logging.getLogger("tipcast")
WAIT_S = 5.0
"""How long a turn is waited for before it is looked at who has it, in seconds."""
BETWEEN = "|"
"""Stands between the client and the rest of a lock's id."""


@contextlib.contextmanager
def turn(client: Any, workers: Sequence[str]) -> Iterator[None]:
    """Hold workers for one training; wait while another that is alive holds one of them.

    Parameters
    ----------
    client
        A ``distributed.Client``.
    workers
        Addresses.

    """
    lock = MultiLock(list(workers), client)
    lock.id = f"{client.id}{BETWEEN}{lock.id}"
    told = False
    while not lock.acquire(timeout=WAIT_S):
        holders = client.run_on_scheduler(_let_go, workers=list(workers))
        if holders and not told:
            LOG.warning("waiting for another training on the same workers, of %s", ", ".join(holders))
            told = True
    try:
        yield
    finally:
        lock.release()


def _let_go(dask_scheduler: Any, workers: Sequence[str]) -> list[str]:
    """Take workers from clients that are gone, which Dask leaves to them for ever; return who holds the others."""
    locks = dask_scheduler.extensions["multi_locks"]
    holders = {user for worker in workers for user in locks.locks[worker]} - set(locks.events)
    alive = []
    for user in sorted(map(str, holders)):
        client, ours, _ = user.partition(BETWEEN)
        if ours and client not in dask_scheduler.clients:
            locks.release(id=user)
        else:
            alive.append(client)
    return alive
