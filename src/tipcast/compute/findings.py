"""What `tipcast doctor` finds about the workers: this machine's GPUs, cores and memory, or a scheduler that runs."""

from __future__ import annotations

import platform
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dask.utils
from distributed import Client
from distributed.system import MEMORY_LIMIT

from tipcast import __version__
from tipcast.compute import cluster as clusters
from tipcast.compute import gpus, session
from tipcast.compute.gpus import Gpu
from tipcast.config import schema
from tipcast.config.errors import Finding, TipcastError, ok, warning

LEAST_DRIVER = 580
"""Of CUDA 13, which the RAPIDS packages of the gpu extra are built for."""
GIB = 1 << 30
MUST_EQUAL = ("tipcast", "python", "dask", "distributed", "cloudpickle", "xgboost", "cudf", "cuml")
"""What differs in these fails; in anything else it is a warning."""
SAME = "install the same requirements file on every machine of the cluster"


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
    workers, threads = clusters.shared_out(cluster)
    found = f"{_count(workers, 'worker')} of {_count(threads, 'thread')} on {_count(clusters.cores(), 'core')}"
    limit = dask.utils.parse_bytes(cluster.memory_limit) if cluster.memory_limit else 0
    if workers * limit > MEMORY_LIMIT:
        return warning(
            f"{found}; {workers} x {limit / GIB:.3g} GiB is more than the machine's {MEMORY_LIMIT / GIB:.3g} GiB",
            "lower cluster.memory_limit or cluster.n_workers",
        )
    if workers * threads > clusters.cores():
        return warning(f"{found}: they wait for each other", "lower cluster.n_workers or cluster.threads_per_worker")
    return ok(found)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class Told:
    """What a worker says of itself."""

    tipcast: str
    """Version."""
    host: str
    gpus: tuple[int, ...]
    """Numbers of those it may use."""


def tell() -> Told:
    """Say what this process is; run on the workers."""
    return Told(__version__, platform.node(), tuple(gpu.index for gpu in gpus.visible()))


def check_scheduler(backend: schema.BackendSpec, cluster: schema.SchedulerCluster, packages: Sequence[str]) -> Finding:
    """Connect to a scheduler, wait for its workers as a job would, and compare what they have.

    Parameters
    ----------
    backend, cluster
        Of the configuration.
    packages
        Distributions whose versions to compare, beside Dask's own.

    Raises
    ------
    TipcastError
        C009 K001 K002 as ``cluster.connect`` raises them, K005 other versions there, C010 a worker without a GPU.

    """
    with clusters.connect(cluster, "pandas") as client:
        told = _asked(client, cluster.address)
        threads = sum(client.nthreads().values())
        found = f"{cluster.address}: workers {len(told)}, wanted {cluster.n_workers}, threads {threads}"
        apart = differences(_versions(client, packages, told))
    grave = [text for name, text in apart.items() if name in MUST_EQUAL]
    if grave:
        raise TipcastError("K005", cluster.address, "; ".join(grave), SAME)
    crowded = _crowded(told, cluster.address) if uses_cuda(backend) else None
    if crowded:
        return warning(f"{found}; {crowded}", "start one `dask cuda worker` on each machine")
    if apart:
        return warning(f"{found}; {'; '.join(apart.values())}", SAME)
    return ok(f"{found}; same versions")


def _asked(client: Client, address: str) -> dict[str, Told]:
    """Return each worker's address -> what it says; one that cannot run our code says so."""
    answers: dict[str, Any] = client.run(tell, on_error="return")
    silent = [str(answer) for answer in answers.values() if not isinstance(answer, Told)]
    if silent:
        what = f"{len(silent)} of {len(answers)} workers lack tipcast, or have another version: {silent[0]}"
        raise TipcastError("K005", address, what, SAME)
    return answers


def _versions(client: Client, packages: Sequence[str], told: Mapping[str, Told]) -> dict[str, dict[str, str]]:
    """Return who -> what -> version: of this process, the scheduler and each worker."""
    asked: Any = client.get_versions(packages=list(packages))
    found = {"here": _plain(asked["client"]), "scheduler": _plain(asked["scheduler"])}
    found |= {address: _plain(versions) for address, versions in asked["workers"].items()}
    for address, worker in told.items():
        found.setdefault(address, {})["tipcast"] = worker.tipcast
    found["here"]["tipcast"] = __version__
    return found


def _plain(versions: Mapping[str, Any]) -> dict[str, str]:
    """Return package -> version, the builds of one library under one name and of Python what decides."""
    found: dict[str, str] = {}
    for name, version in versions["packages"].items():
        if version is not None and name != "tipcast":
            name = "xgboost" if name.startswith("xgboost") else name.removesuffix("-cu13")
            found[name] = ".".join(version.split(".")[:2]) if name == "python" else version
    return found


def differences(versions: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Compare versions with those of this process.

    Parameters
    ----------
    versions
        ``here``, ``scheduler`` and each worker's address -> package -> version. The scheduler need have none but
        Python and Dask.

    Returns
    -------
    dict
        Package -> what differs, in words.

    """
    apart: dict[str, str] = {}
    for name, mine in versions["here"].items():
        others = Counter(
            theirs.get(name, "none")
            for who, theirs in versions.items()
            if who != "here" and (who != "scheduler" or name in {"python", "dask", "distributed"})
        )
        told = [f"{version} on {count}" for version, count in others.items() if version != mine]
        if told:
            apart[name] = f"{name} {mine} here, {', '.join(told)} there"
    return apart


def _crowded(told: Mapping[str, Told], address: str) -> str | None:
    """Return which machine's workers share GPUs; refuse workers that see none."""
    without = [worker for worker, says in told.items() if not says.gpus]
    if without:
        raise TipcastError(
            "C010", address, f"{len(without)} of {len(told)} workers see no GPU", "start `dask cuda worker` there"
        )
    numbers: dict[str, set[int]] = defaultdict(set)
    workers: Counter[str] = Counter()
    for says in told.values():
        numbers[says.host].update(says.gpus)
        workers[says.host] += 1
    shared = [host for host in workers if workers[host] > len(numbers[host])]
    return f"{workers[shared[0]]} workers share {len(numbers[shared[0]])} GPUs of {shared[0]}" if shared else None
