"""The session of a device: its workers and its frame library, looked up by the backend's name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tipcast.backends import cluster as cluster_module
from tipcast.backends.base import Session
from tipcast.backends.cpu import CpuFrames
from tipcast.config import schema
from tipcast.config.errors import TipcastError


def check(backend: schema.BackendSpec, cluster: schema.ClusterSpec) -> None:
    """Refuse what ``session`` would refuse, before anything is opened.

    Raises
    ------
    TipcastError
        C003 for a backend or a kind of cluster that is not there, C009 for an address that needs TLS.

    """
    if backend.name != "cpu":
        raise TipcastError("C003", "backend.name", f"no such backend: {backend.name}", "use backend=cpu")
    cluster_module.check(cluster)


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
    check(backend, cluster)
    with cluster_module.connect(cluster, "pandas") as client:
        threads = client.nthreads()
        yield Session(
            client=client, device="cpu", frames=CpuFrames(), n_workers=len(threads), n_threads=sum(threads.values())
        )
