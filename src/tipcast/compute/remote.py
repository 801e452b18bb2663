"""Remote clusters: a running scheduler, or workers started for one job over ssh or by Slurm."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import shutil
import ssl
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dask
from distributed import Client, SSHCluster
from distributed.comm.core import CommClosedError, connect
from distributed.security import Security
from distributed.utils import LoopRunner, wait_for

from tipcast.compute import ssh_watchdog, workers
from tipcast.compute.forkserver import HIDDEN
from tipcast.config import schema
from tipcast.config.errors import TipcastError

LOG = logging.getLogger("tipcast")
WORKERS = {"pandas": f"{workers.__name__}.{workers.Nanny.__name__}", "cudf": "dask_cuda.CUDAWorker"}
"""Frame library -> worker class that ssh starts on a host; the second starts one for each of its GPUs."""
LOOPBACK = "127.0.0.1:0"
SUBMIT = "sbatch"
ASK_S = 60
"""Seconds that Slurm may take to cancel jobs."""
OPEN = "%s is reached without TLS (cluster.insecure): whoever reaches it can run code there"
START = "start workers with `dask worker ADDRESS`, or lower cluster.n_workers"
HANDSHAKE_S = 2.0
"""Seconds for a connection's handshake, on top of the connect timeout."""
TLS_FILES = {"tls_ca_file": "tls_ca_file", "tls_cert": "tls_client_cert", "tls_key": "tls_client_key"}
"""Key of the configuration -> what Dask's ``Security`` calls it."""
TLS_FIX = "set cluster.tls_ca_file, tls_cert and tls_key to PEM files (or Dask's distributed.comm.tls.*)"


def check_scheduler(spec: schema.SchedulerCluster) -> None:
    """Refuse, without connecting, an address without TLS (C009), without certificates (C004) or with bad ones."""
    if _is_open(spec) and not spec.insecure:
        what = "a scheduler runs any client's code and this one is reached without TLS"
        fix = "use a tls:// address with cluster.tls_* or set cluster.insecure=true on a trusted network"
        raise TipcastError("C009", spec.address, what, fix)
    _connection(spec)


def _is_open(spec: schema.SchedulerCluster) -> bool:
    host = urlsplit(spec.address if "://" in spec.address else f"tcp://{spec.address}").hostname
    return not spec.address.startswith("tls://") and host not in {"127.0.0.1", "localhost", "::1"}


def _connection(spec: schema.SchedulerCluster) -> tuple[Security | None, dict[str, Any]]:
    """Return the certificates, where the address needs them, and Dask's arguments for connecting."""
    if not spec.address.startswith("tls://"):
        return None, {}
    given = {name: getattr(spec, key) for key, name in TLS_FILES.items() if getattr(spec, key) is not None}
    security = Security(require_encryption=True, **given)  # the rest comes from Dask's own configuration
    for key, name in TLS_FILES.items():
        file = getattr(security, name)
        if file is None and key != "tls_key":  # a key may be in the certificate's file
            raise TipcastError("C004", f"cluster.{key}", f"needs a value for {spec.address}", TLS_FIX)
        try:
            if file is not None and "\n" not in file:
                Path(file).open("rb").close()
        except OSError as problem:
            raise TipcastError("C003", f"cluster.{key}", f"{file}: {problem.strerror}", TLS_FIX) from problem
    try:
        return security, security.get_connection_args("client")
    except ssl.SSLError as problem:
        what = f"not a certificate, its key and the CA's certificate: {problem}"
        raise TipcastError("C003", "cluster.tls_*", what, TLS_FIX) from problem


@contextlib.contextmanager
def scheduler(spec: schema.SchedulerCluster, _: str) -> Iterator[Client]:
    """Connect and wait for the workers; K001 where no scheduler answers in time."""
    if _is_open(spec):
        LOG.warning(OPEN, spec.address)
    security, arguments = _connection(spec)
    try:
        # Dask's connect() has a timeout for the connection but none for the handshake.
        LoopRunner().run_sync(wait_for, _answer(spec, arguments), spec.connect_timeout_s + HANDSHAKE_S)
        client = Client(spec.address, timeout=spec.connect_timeout_s, security=security)
    except (OSError, TimeoutError, ValueError) as problem:
        fix = "start one with `dask scheduler`, or set cluster.address"
        what = "no Dask scheduler answers here"
        if isinstance(problem, TimeoutError):
            what = f"it accepts connections but does not answer within {spec.connect_timeout_s:g} s"
            fix = "look whether it is a Dask scheduler and not stuck, or raise cluster.connect_timeout_s"
        elif isinstance(problem, CommClosedError):
            what = f"it closes the connection: {problem}"
        raise TipcastError("K001", spec.address, what, fix) from problem
    with client:
        workers.wait(client, spec.n_workers, spec.wait_s, START)
        yield client


async def _answer(spec: schema.SchedulerCluster, arguments: dict[str, Any]) -> None:
    (await connect(spec.address, timeout=spec.connect_timeout_s, **arguments)).abort()


def check_ssh(spec: schema.SshCluster) -> None:
    """Refuse what could not be started: C003 no hosts for workers, C009 no TLS, K007 a missing package."""
    if len(spec.hosts) < 2:
        fix = "name the scheduler's first, then one for each worker; a host may come twice"
        raise TipcastError("C003", "cluster.hosts", f"must be at least 2, got {len(spec.hosts)}", fix)
    if not spec.insecure:
        what = "a scheduler runs any client's code and this one would be reached without TLS"
        fix = "set cluster.insecure=true on a trusted network, or start one with TLS and use cluster=scheduler"
        raise TipcastError("C009", "cluster=ssh", what, fix)
    _need("asyncssh", "cluster=ssh")


def check_slurm(spec: schema.SlurmCluster) -> None:
    """Refuse what could not be started: K007 a missing package, or Slurm itself."""
    if shutil.which(SUBMIT) is None:
        raise TipcastError("K007", "cluster=slurm", f"no {SUBMIT} on the PATH", "run this on a login node of Slurm")
    _need("dask_jobqueue", "cluster=slurm")
    _need("cryptography", "cluster=slurm")


def _need(package: str, kind: str) -> None:
    if importlib.util.find_spec(package) is None:
        name = package.replace("_", "-")
        raise TipcastError("K007", kind, f"the package {name} is missing", f"install it: pip install {name}")


@contextlib.contextmanager
def ssh(spec: schema.SshCluster, frame_library: str) -> Iterator[Client]:
    """Start a scheduler and workers over ssh and connect."""
    LOG.warning(OPEN, spec.hosts[0])
    python = spec.remote_python or sys.executable
    options = {
        "nthreads": 1 if frame_library == "cudf" else spec.threads_per_worker,
        "memory_limit": spec.memory_limit or "auto",
        "death_timeout": spec.wait_s,
    }
    connection = {"connect_timeout": spec.connect_timeout_s, "known_hosts": spec.known_hosts}
    start = functools.partial(
        SSHCluster,
        list(spec.hosts),
        connect_options={name: value for name, value in connection.items() if value is not None},
        worker_options={name: value for name, value in options.items() if value is not None},
        scheduler_options={"port": 0, "dashboard_address": LOOPBACK},
        worker_class=WORKERS[frame_library],
        remote_python=f"{python} -m {ssh_watchdog.__name__}",
    )
    with contextlib.ExitStack() as stack:
        try:
            with dask.config.set({"logging": {"distributed": "info"}}):  # Dask reads addresses in their logs
                _, client = stack.enter_context(workers.closed(start, f"cluster={spec.kind}"))
        except Exception as problem:
            cause = problem.__cause__ or problem
            what = f"no scheduler or no worker was started over ssh: {str(cause) or type(cause).__name__}"
            fix = f"try `ssh HOST {python} -m tipcast --version` with each of them"
            raise TipcastError("K001", ", ".join(dict.fromkeys(spec.hosts)), what, fix) from problem
        workers.wait(client, spec.n_workers or len(spec.hosts) - 1, spec.wait_s, workers.SLOW)
        yield client


@contextlib.contextmanager
def slurm(spec: schema.SlurmCluster, frame_library: str) -> Iterator[Client]:
    """Submit a job for each worker and connect; certificates for TLS are made for the job.

    The workers are Dask's own, also for GPUs: Slurm makes only the job's GPU visible.
    """
    name = f"tipcast-{uuid.uuid4().hex[:12]}"
    refused: list[str] = []
    with contextlib.ExitStack() as stack:
        shared = spec.shared_folder or Path.cwd()
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=shared, prefix=".tipcast-tls-"))
        stack.callback(_cancel, name)
        start = functools.partial(
            _slurm_class(refused),
            job_name=name,
            shebang="#!/usr/bin/env bash",
            queue=spec.queue,
            account=spec.account,
            walltime=spec.walltime,
            cores=1 if frame_library == "cudf" else spec.cores,
            processes=1,
            memory=spec.memory,
            interface=spec.interface,
            job_extra_directives=list(spec.directives),
            job_script_prologue=[*(f"unset ${{!{prefix}@}}" for prefix in HIDDEN), *spec.prologue],
            protocol="tls://",
            security=_certificates(Path(folder)),
            scheduler_options={"dashboard_address": LOOPBACK},
            log_directory=spec.shared_folder,
        )
        started, client = stack.enter_context(workers.closed(start, f"cluster={spec.kind}"))
        started.scale(jobs=spec.n_workers)
        workers.wait(
            client,
            spec.n_workers,
            spec.wait_s,
            f"look at `squeue`, {workers.SLOW}",
            look=lambda: _check_jobs(refused),
        )
        yield client


def _certificates(folder: Path) -> Security:
    """Make certificates in files that workers find; dask-jobqueue leaves its own behind when a job fails."""
    made, files = Security.temporary(), {}
    roles = (f"{role}_{part}" for role in ("scheduler", "worker", "client") for part in ("key", "cert"))
    for name in ("ca_file", *roles):
        file = folder / name
        file.touch(0o600)
        file.write_text(getattr(made, f"tls_{name}"), encoding="ascii")
        files[f"tls_{name}"] = str(file)
    return Security(require_encryption=True, **files)


def _check_jobs(refused: list[str]) -> None:
    if refused:
        said = refused[0].strip().rpartition("\n")[2]
        fix = "correct cluster.queue, account, walltime, cores, memory or directives"
        raise TipcastError("K001", "cluster=slurm", f"Slurm did not take the workers' jobs: {said}", fix)


def _slurm_class(refused: list[str]) -> type:
    """Return dask-jobqueue's cluster class, extended to collect what Slurm said about refused jobs."""
    from dask_jobqueue.slurm import SLURMCluster, SLURMJob

    class Job(SLURMJob):
        async def _submit_job(self, script_filename: str) -> Any:
            try:
                return await super()._submit_job(script_filename)
            except RuntimeError as problem:
                refused.append(str(problem))
                raise

    class Cluster(SLURMCluster):
        job_cls = Job

    return Cluster


def _cancel(name: str) -> None:
    """Cancel jobs that dask-jobqueue did not, if any."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(["scancel", "--name", name], capture_output=True, check=False, timeout=ASK_S)  # noqa: S603, S607
