"""The session of a device: its workers and its frame library, looked up by the backend's name."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tipcast.backends import cluster as cluster_module
from tipcast.backends import cuda_cluster, cuda_workers, gpus, remote
from tipcast.backends.base import Session
from tipcast.backends.cpu import CpuFrames
from tipcast.backends.gpu import GpuFrames
from tipcast.config import schema
from tipcast.config.errors import TipcastError

LOG = logging.getLogger("tipcast")

OPENERS: Mapping[type, cluster_module.Opener] = {
    schema.LocalCudaCluster: cuda_cluster.opened,
    schema.SshCluster: remote.ssh,
    schema.SlurmCluster: remote.slurm,
}
CHECKS: Mapping[type, Callable[[Any], None]] = {
    schema.LocalCudaCluster: cuda_cluster.check,
    schema.SshCluster: remote.check_ssh,
    schema.SlurmCluster: remote.check_slurm,
}
NOT_FOR = {"cpu": (schema.LocalCudaCluster, "local"), "gpu": (schema.LocalCluster, "local_cuda")}
"""Backend -> a kind of cluster whose workers it cannot use, and the one to use."""


def check(backend: schema.BackendSpec, cluster: schema.ClusterSpec) -> None:
    """Refuse what ``session`` would refuse, before anything is opened.

    Raises
    ------
    TipcastError
        C003 for a backend or a kind of cluster that is not there, or two that do not go together, C009 for an address
        that needs TLS, K006 no GPU, K007 packages that are missing.

    """
    if backend.name not in NOT_FOR:
        raise TipcastError("C003", "backend.name", f"no such backend: {backend.name}", "use backend=cpu or backend=gpu")
    kind, instead = NOT_FOR[backend.name]
    if isinstance(cluster, kind):
        raise TipcastError(
            "C003",
            f"cluster={cluster.kind}",
            f"its workers are not for backend={backend.name}",
            f"use cluster={instead}, or leave cluster out",
        )
    gpus.check(backend, cluster)
    cluster_module.check(cluster, OPENERS)
    if type(cluster) in CHECKS:
        CHECKS[type(cluster)](cluster)


@contextlib.contextmanager
def session(backend: schema.BackendSpec, cluster: schema.ClusterSpec) -> Iterator[Session]:
    """Open the workers of a device and make its frame library current.

    Yields
    ------
    Session

    Raises
    ------
    TipcastError
        Those of ``check``; K-errors of ``cluster.connect`` and ``cuda_workers.prepare``.

    """
    check(backend, cluster)
    with _OPEN[backend.name](cluster) as opened:
        if LOG.isEnabledFor(logging.DEBUG):
            for address, worker in opened.client.scheduler_info(n_workers=-1)["workers"].items():
                memory = f"{worker['memory_limit'] / 2**20:,.0f} MiB"
                LOG.debug("worker %s on %s: %d threads, %s", address, worker["host"], worker["nthreads"], memory)
        yield opened


@contextlib.contextmanager
def _cpu(cluster: schema.ClusterSpec) -> Iterator[Session]:
    with cluster_module.connect(cluster, "pandas", OPENERS) as client:
        threads = client.nthreads()
        yield Session(
            client=client, device="cpu", frames=CpuFrames(), n_workers=len(threads), n_threads=sum(threads.values())
        )


@contextlib.contextmanager
def _gpu(cluster: schema.ClusterSpec) -> Iterator[Session]:
    with cluster_module.connect(cluster, "cudf", OPENERS) as client, _told():
        found = cuda_workers.prepare(client)
        threads = client.nthreads()
        yield Session(
            client=client,
            device="cuda",
            frames=GpuFrames(),
            n_workers=len(threads),
            n_threads=sum(threads.values()),
            rehearses=True,
            tags={
                "gpu.name": ", ".join(sorted({gpu.name for gpu in found})),
                "gpu.count": str(len(found)),
                "gpu.driver": ", ".join(sorted({gpu.driver for gpu in found})),
            },
        )


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Tell in one line that a GPU's memory ran out, whichever library noticed."""
    try:
        yield
    except TipcastError:
        raise
    except Exception as problem:
        if not (isinstance(problem, MemoryError) or "out of memory" in str(problem)):
            raise
        said = str(problem).strip().partition("\n")[0]
        raise TipcastError(
            "K008",
            "a worker's GPU",
            f"out of memory: {said}",
            "use more GPUs or fewer rows, or set cluster.rmm_managed=true",
        ) from problem


_OPEN = {"cpu": _cpu, "gpu": _gpu}
