"""What this machine has for the workers that the configuration asks for: GPUs, cores, memory."""

from __future__ import annotations

import dask.utils
from distributed.system import MEMORY_LIMIT

from tipcast.backends import gpus, session
from tipcast.backends.cores import cores, shared_out
from tipcast.backends.gpus import Gpu
from tipcast.config import schema
from tipcast.config.errors import TipcastError
from tipcast.config.finding import Finding, ok, warning

LEAST_DRIVER = 580
"""Of CUDA 13, which the RAPIDS packages of the gpu extra are built for."""
GIB = 1 << 30


def uses_cuda(backend: schema.BackendSpec) -> bool:
    """Tell whether a backend computes on NVIDIA GPUs."""
    return backend.name == "gpu"


def is_here(cluster: schema.ClusterSpec) -> bool:
    """Tell whether a cluster's workers are on this machine."""
    return cluster.kind.startswith("local")


def check_gpus(backend: schema.BackendSpec, cluster: schema.ClusterSpec) -> Finding:
    """Find out which GPUs this machine has, and whether the backend needs them.

    Raises
    ------
    TipcastError
        C010 the backend needs a GPU here and there is none.

    """
    found = gpus.visible()
    if found:
        return _driver(found) if uses_cuda(backend) else ok(f"{shown(found)}; backend={backend.name} uses none")
    if not uses_cuda(backend):
        return ok(f"none; backend={backend.name} needs none")
    if not is_here(cluster):
        return ok(f"none here; the workers of cluster={cluster.kind} need them")
    raise no_gpu()


def no_gpu() -> TipcastError:
    """Return the error of a GPU backend without a GPU."""
    return TipcastError(
        "C010",
        "backend=gpu",
        "no NVIDIA GPU is visible on this machine",
        "run nvidia-smi and look at CUDA_VISIBLE_DEVICES, or use backend=cpu",
    )


def shown(found: list[Gpu]) -> str:
    """Return GPUs in words: how many of which, and the driver."""
    kinds = [f"{gpu.name} {gpu.memory_bytes / GIB:.0f} GiB" for gpu in found]
    counted = ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
    return f"{counted}, driver {found[0].driver}"


def _driver(found: list[Gpu]) -> Finding:
    major = found[0].driver.partition(".")[0]
    if major.isdigit() and int(major) < LEAST_DRIVER:
        return warning(
            f"{shown(found)}: CUDA 13 asks for driver {LEAST_DRIVER} or later",
            "update the driver, or install NVIDIA's cuda-compat package",
        )
    return ok(shown(found))


def check_workers(backend: schema.BackendSpec, cluster: schema.ClusterSpec) -> Finding:
    """Hold the workers that a cluster would have against this machine, without starting any.

    Raises
    ------
    TipcastError
        C010 more workers than GPUs, or no GPU; those of ``session.check``.

    """
    session.check(backend, cluster)
    wanted = getattr(cluster, "n_workers", None)
    if not is_here(cluster):
        return ok(f"{wanted or 'workers'} on cluster={cluster.kind}; they start with a job, not with the doctor")
    if uses_cuda(backend):
        return _on_gpus(wanted)
    if not isinstance(cluster, schema.LocalCluster):
        return ok(f"{wanted or 'as many as fit'} on cluster={cluster.kind}")
    return _on_cores(cluster)


def _on_gpus(wanted: int | None) -> Finding:
    there = len(gpus.visible())
    if not there:
        raise no_gpu()
    if wanted and wanted > there:
        raise TipcastError(
            "C010",
            "cluster.n_workers",
            f"{wanted} workers for {_count(there, 'GPU')}: each has one of its own",
            f"use cluster.n_workers={there}, or let CUDA_VISIBLE_DEVICES name more GPUs",
        )
    return ok(f"{_count(wanted or there, 'worker')} on {_count(there, 'GPU')}")


def _on_cores(cluster: schema.LocalCluster) -> Finding:
    workers, threads = shared_out(cluster)
    found = f"{_count(workers, 'worker')} of {_count(threads, 'thread')} on {_count(cores(), 'core')}"
    limit = dask.utils.parse_bytes(cluster.memory_limit) if cluster.memory_limit else 0
    if workers * limit > MEMORY_LIMIT:
        return warning(
            f"{found}; {workers} x {limit / GIB:.3g} GiB is more than the machine's {MEMORY_LIMIT / GIB:.3g} GiB",
            "lower cluster.memory_limit or cluster.n_workers",
        )
    if workers * threads > cores():
        return warning(f"{found}: they wait for each other", "lower cluster.n_workers or cluster.threads_per_worker")
    return ok(found)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
