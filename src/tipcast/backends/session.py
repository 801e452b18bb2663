"""The session of a device: its workers and its frame library, looked up by the backend's name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tipcast.backends.base import Session
from tipcast.backends.cluster import connect
from tipcast.backends.cpu import CpuFrames
from tipcast.config import schema
from tipcast.config.errors import TipcastError


@contextlib.contextmanager
def session(backend: schema.BackendSpec, cluster: schema.ClusterSpec) -> Iterator[Session]:
    """Open the workers of a device and make its frame library current.

    Yields
    ------
    Session

    Raises
    ------
    TipcastError
        C003 for a backend that is not there; K-errors of ``cluster.connect``.

    """
    if backend.name != "cpu":
        raise TipcastError("C003", "backend.name", f"no such backend: {backend.name}", "use backend=cpu")
    with connect(cluster, "pandas") as client:
        threads = client.nthreads()
        yield Session(
            client=client, device="cpu", frames=CpuFrames(), n_workers=len(threads), n_threads=sum(threads.values())
        )
