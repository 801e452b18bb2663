"""Typed schemas of the clusters: where the workers of a job are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


@dataclass
class ClusterSpec:
    """Where the workers are."""

    kind: str = MISSING
    wait_s: float = 60.0
    worker_ttl_s: float = 60.0
    allowed_failures: int = 2
    connect_timeout_s: float = 10.0
    performance_report: bool = True


@dataclass
class LocalCluster(ClusterSpec):
    """Workers on this machine, bound to 127.0.0.1; null means chosen for the machine."""

    n_workers: int | None = None
    threads_per_worker: int | None = None
    processes: bool | None = None
    memory_limit: str | None = None
    dashboard: bool = False


@dataclass
class SchedulerCluster(ClusterSpec):
    """A running Dask scheduler."""

    address: str = MISSING
    n_workers: int = 1
    insecure: bool = False
    tls_ca_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None


@dataclass
class LocalCudaCluster(ClusterSpec):
    """One worker for each GPU of this machine, bound to 127.0.0.1."""

    n_workers: int | None = None
    memory_limit: str | None = None
    """Host memory of each worker."""
    device_memory_limit: Any = 0.8
    """Share or bytes of a GPU's memory beyond which a worker moves parts to the host; null: never."""
    rmm_pool_size: Any = None
    """Share or bytes of a GPU's memory that a worker takes at once; null: as it needs it."""
    rmm_async: bool = False
    """Whether memory comes from CUDA's own asynchronous pool."""
    rmm_managed: bool = False
    """Whether memory may exceed the GPU's by paging to the host."""
    spill: bool = True
    """Whether cuDF moves its own buffers to the host when memory runs out."""
    protocol: str = "tcp"
    environment: dict[str, str] = field(default_factory=dict)
    """Variables of the worker processes, for NCCL, UCX or OpenMP."""
    dashboard: bool = False


@dataclass
class SshCluster(ClusterSpec):
    """A scheduler and workers that are started over ssh and end with the job."""

    hosts: list[str] = MISSING
    """The first runs the scheduler, the others a worker each (with GPUs, one for each GPU)."""
    n_workers: int | None = None
    """Workers to wait for; null: one for each host but the first."""
    threads_per_worker: int | None = None
    memory_limit: str | None = None
    remote_python: str | None = None
    """Python there; null: the same path as here."""
    known_hosts: str | None = None
    """File of known ssh hosts; null: the user's own."""
    insecure: bool = False


@dataclass
class SlurmCluster(ClusterSpec):
    """Workers that are jobs of Slurm, one for each GPU with backend=gpu; the scheduler runs in the driver."""

    n_workers: int = 1
    queue: str | None = None
    account: str | None = None
    walltime: str = "01:00:00"
    cores: int = 1
    memory: str = MISSING
    """Host memory of a worker."""
    directives: list[str] = field(default_factory=list)
    """More lines of the job script's head, as --gres=gpu:1."""
    prologue: list[str] = field(default_factory=list)
    """Shell lines before a worker starts, as module load cuda."""
    interface: str | None = None
    """Network interface that workers and driver talk over, as ib0."""
    shared_folder: str | None = None
    """Folder that driver and workers share, for the temporary TLS certificates; null: the working folder."""
