"""Checks of `tipcast doctor` on workers: this machine's GPUs, cores and memory, or a running scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import dask.utils
from distributed import Client
from distributed.system import MEMORY_LIMIT

from tipcast import __version__
from tipcast.compute import cluster as clusters
from tipcast.compute import gpus, session
from tipcast.compute.base import count
from tipcast.config import schema
from tipcast.config.errors import Finding, TipcastError

LEAST_DRIVER = 580
"""Least driver for CUDA 13, which the gpu extra's RAPIDS packages are built for."""
GIB = 1 << 30
MUST_EQUAL = ("tipcast", "python", "dask", "distributed", "cloudpickle", "xgboost", "cudf", "cuml")
"""Packages whose versions must agree; for others a difference is a warning."""
SAME = "install the same requirements file on every machine of the cluster"


def check_gpus(backend: schema.BackendSpec, cluster: schema.ClusterSpec) -> Finding:
    """Find out which GPUs this machine has; C010 where the backend needs one here and there is none."""
    found = gpus.visible()
    if not found:
        if backend.name != "gpu":
            return Finding("none; backend=cpu needs none")
        if not cluster.kind.startswith("local"):
            return Finding(f"none here; the workers of cluster={cluster.kind} need them")
        fix = "run nvidia-smi and look at CUDA_VISIBLE_DEVICES, or use backend=cpu"
        raise TipcastError("C010", "backend=gpu", "no NVIDIA GPU is visible on this machine", fix)
    kinds, driver = Counter(f"{gpu.name} {gpu.memory_bytes / GIB:.0f} GiB" for gpu in found), found[0].driver
    shown = f"{', '.join(f'{number} x {kind}' for kind, number in kinds.items())}, driver {driver}"
    if backend.name != "gpu":
        return Finding(f"{shown}; backend={backend.name} uses none")
    major = driver.partition(".")[0]
    if major.isdigit() and int(major) < LEAST_DRIVER:
        fix = "update the driver, or install NVIDIA's cuda-compat package"
        return Finding(f"{shown}: CUDA 13 asks for driver {LEAST_DRIVER} or later", fix)
    return Finding(shown)


def check_workers(backend: schema.BackendSpec, cluster: schema.ClusterSpec) -> Finding:
    """Compare the workers of a cluster here with this machine, without starting any; see ``session.check``."""
    session.check(backend, cluster)
    if not isinstance(cluster, schema.LocalCluster):
        there = len(gpus.visible())
        wanted = getattr(cluster, "n_workers", None) or there
        return Finding(f"{count(wanted, 'worker')} on {count(there, 'GPU')}")
    workers, threads = clusters.shared_out(cluster)
    found = f"{count(workers, 'worker')} of {count(threads, 'thread')} on {count(clusters.cores(), 'core')}"
    limit = dask.utils.parse_bytes(cluster.memory_limit) if cluster.memory_limit else 0
    if workers * limit > MEMORY_LIMIT:
        what = f"{workers} x {limit / GIB:.3g} GiB is more than the machine's {MEMORY_LIMIT / GIB:.3g} GiB"
        return Finding(f"{found}; {what}", "lower cluster.memory_limit or cluster.n_workers")
    if workers * threads > clusters.cores():
        return Finding(f"{found}: they wait for each other", "lower cluster.n_workers or cluster.threads_per_worker")
    return Finding(found)


def check_scheduler(backend: schema.BackendSpec, cluster: schema.SchedulerCluster, packages: Sequence[str]) -> Finding:
    """Connect to a scheduler, wait for its workers as a job would, and compare their versions with ours.

    ``packages`` are distributions whose versions to compare, beside Dask's own. C009 K001 K002 as a job meets them,
    K005 other versions there, K006 a worker without a GPU of its own.
    """
    session.check(backend, cluster)
    with clusters.connect(cluster, "pandas") as client:
        apart = _differences(client, packages, cluster.address)
        if backend.name == "gpu":
            session.own_gpus(client)
        threads = client.nthreads().values()
    found = f"{cluster.address}: workers {len(threads)}, wanted {cluster.n_workers}, threads {sum(threads)}"
    grave = [text for name, text in apart.items() if name in MUST_EQUAL]
    if grave:
        raise TipcastError("K005", cluster.address, "; ".join(grave), SAME)
    if apart:
        return Finding(f"{found}; {'; '.join(apart.values())}", SAME)
    return Finding(f"{found}; same versions")


def _tipcast() -> str:
    return __version__


def _differences(client: Client, packages: Sequence[str], address: str) -> dict[str, str]:
    """Return package -> how its versions on the scheduler and the workers differ from ours, in words.

    K005 a worker without tipcast.
    """
    own: dict[str, Any] = client.run(_tipcast, on_error="return")
    silent = [str(answer) for answer in own.values() if not isinstance(answer, str)]
    if silent:
        what = f"{len(silent)} of {len(own)} workers lack tipcast, or have another version: {silent[0]}"
        raise TipcastError("K005", address, what, SAME)
    asked: Any = client.get_versions(packages=list(packages))
    workers = [_plain(asked["workers"].get(worker, {})) | {"tipcast": own[worker]} for worker in own]
    apart: dict[str, str] = {}
    for name, mine in (_plain(asked["client"]) | {"tipcast": __version__}).items():
        others = Counter(theirs.get(name, "none") for theirs in workers)
        if name in {"python", "dask", "distributed"}:  # a scheduler needs no more
            others[_plain(asked["scheduler"]).get(name, "none")] += 1
        told = [f"{version} on {number}" for version, number in others.items() if version != mine]
        if told:
            apart[name] = f"{name} {mine} here, {', '.join(told)} there"
    return apart


def _plain(versions: Mapping[str, Any]) -> dict[str, str]:
    """Return package -> version, with one name for all builds of a library, and Python's minor version."""
    found: dict[str, str] = {}
    for name, version in versions.get("packages", {}).items():
        if version is not None:
            name = "xgboost" if name.startswith("xgboost") else name.removesuffix("-cu13")
            found[name] = ".".join(version.split(".")[:2]) if name == "python" else version
    return found
