"""Clusters that are started elsewhere for one job: machines reached by ssh, and jobs of Slurm."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import Iterator
from pathlib import Path

from distributed import Client, SSHCluster

from tipcast.backends import cluster
from tipcast.config import schema
from tipcast.config.errors import TipcastError

LOG = logging.getLogger("tipcast")
WORKERS = {"pandas": "distributed.Nanny", "cudf": "dask_cuda.CUDAWorker"}
"""Frame library -> class that ssh starts on a machine; the second makes a worker for each of its GPUs."""
LOOPBACK = "127.0.0.1:0"


def check_ssh(spec: schema.SshCluster) -> None:
    """Refuse what could not be started.

    Raises
    ------
    TipcastError
        C003 no hosts for workers, C009 no TLS, K007 a package that is missing.

    """
    if len(spec.hosts) < 2:
        raise TipcastError(
            "C003",
            "cluster.hosts",
            f"{len(spec.hosts)} hosts are too few",
            "name the scheduler's first, then one for each worker; a host may come twice",
        )
    if not spec.insecure:
        raise TipcastError(
            "C009",
            "cluster=ssh",
            "a scheduler runs any client's code and this one would be reached without TLS",
            "set cluster.insecure=true on a trusted network, or start one with TLS and use cluster=scheduler",
        )
    _need("asyncssh", "cluster=ssh")


def check_slurm(spec: schema.SlurmCluster) -> None:
    """Refuse what could not be started.

    Raises
    ------
    TipcastError
        K007 a package that is missing.

    """
    _need("dask_jobqueue", "cluster=slurm")
    _need("cryptography", "cluster=slurm")


def _need(package: str, kind: str) -> None:
    if importlib.util.find_spec(package) is None:
        name = package.replace("_", "-")
        raise TipcastError("K007", kind, f"the package {name} is missing", f"install it: pip install {name}")


@contextlib.contextmanager
def ssh(spec: schema.SshCluster, frame_library: str) -> Iterator[Client]:
    """Start a scheduler and workers over ssh and connect."""
    LOG.warning("%s is reached without TLS (cluster.insecure): whoever reaches it can run code there", spec.hosts[0])
    options = {
        "nthreads": 1 if frame_library == "cudf" else spec.threads_per_worker,
        "memory_limit": spec.memory_limit or "auto",
    }
    with (
        SSHCluster(
            list(spec.hosts),
            connect_options={} if spec.known_hosts is None else {"known_hosts": spec.known_hosts},
            worker_options={name: value for name, value in options.items() if value is not None},
            scheduler_options={"port": 0, "dashboard_address": LOOPBACK},
            worker_class=WORKERS[frame_library],
            remote_python=spec.remote_python,
        ) as started,
        Client(started) as client,
    ):
        cluster._wait(client, spec.n_workers or len(spec.hosts) - 1, spec.wait_s)
        yield client


@contextlib.contextmanager
def slurm(spec: schema.SlurmCluster, frame_library: str) -> Iterator[Client]:
    """Submit a job for each worker and connect; certificates for TLS are made for the job.

    A worker is Dask's own, also for GPUs: Slurm shows it the one that its job was given.
    """
    from dask_jobqueue import SLURMCluster

    with (
        SLURMCluster(
            queue=spec.queue,
            account=spec.account,
            walltime=spec.walltime,
            cores=1 if frame_library == "cudf" else spec.cores,
            processes=1,
            memory=spec.memory,
            interface=spec.interface,
            job_extra_directives=list(spec.directives),
            job_script_prologue=[*(f"unset ${{!{name}@}}" for name in cluster.HIDDEN), *spec.prologue],
            protocol="tls://",
            security=True,
            shared_temp_directory=spec.shared_folder or str(Path.cwd()),
            scheduler_options={"dashboard_address": LOOPBACK},
            log_directory=spec.shared_folder,
        ) as started,
        Client(started) as client,
    ):
        started.scale(jobs=spec.n_workers)
        cluster._wait(client, spec.n_workers, spec.wait_s)
        yield client
