"""How a cluster of this machine ends: at once when a block fails, and in a bounded time in any case."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Iterator

from distributed import Client, LocalCluster, Nanny

CLOSE_S = 10.0
"""How long a cluster may take to close, in seconds: a nanny whose worker died while it started may wait for ever."""


@contextlib.contextmanager
def closed(cluster: LocalCluster) -> Iterator[tuple[LocalCluster, Client]]:
    """Connect to a cluster that was just started; close both at the end, also when Dask does not get there."""
    try:
        with Client(cluster) as client:
            try:
                yield cluster, client
            except BaseException:
                _kill(cluster)
                raise
    finally:
        try:
            cluster.close(timeout=CLOSE_S)
        except TimeoutError:
            logging.getLogger("tipcast").debug("the cluster did not close in %s s", CLOSE_S)
            _kill(cluster)
            cluster.shutdown_on_close = False  # or Dask would try again as the process ends


def _kill(cluster: LocalCluster) -> None:
    """End worker processes at once: a task in native code would keep them for many seconds."""
    for nanny in cluster.workers.values():
        if isinstance(nanny, Nanny) and nanny.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(nanny.pid, signal.SIGKILL)
