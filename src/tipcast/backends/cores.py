"""The processor's cores, and how the workers of a local cluster share them."""

from __future__ import annotations

import math
import os

import dask

from tipcast.config.errors import TipcastError
from tipcast.config.schema import LocalCluster

CORES_PER_PROCESS = 16
"""Threads of one process share its data; beyond about this many they wait for each other."""

WORKERS_PER_CORE, ALWAYS = 4, 8
"""Most workers of a local cluster: so many for each core, and so many on any machine."""
LEAST_MEMORY = "512MiB"
"""What a worker process needs for the libraries alone."""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shared_out(spec: LocalCluster) -> tuple[int, int]:
    """Return the workers of a local cluster and the threads of each: as configured, else chosen for the machine."""
    workers = spec.n_workers or math.ceil(cores() / CORES_PER_PROCESS)
    return workers, spec.threads_per_worker or max(cores() // workers, 1)


def check_share(spec: LocalCluster) -> None:
    """Refuse more workers than the machine could start, and less memory than one of them needs.

    Raises
    ------
    TipcastError
        C003.

    """
    if (spec.n_workers or 1) > max(WORKERS_PER_CORE * cores(), ALWAYS):
        raise TipcastError(
            "C003", "cluster.n_workers", f"{spec.n_workers} are too many for {cores()} cores", "use fewer, or null"
        )
    try:
        if dask.utils.parse_bytes(spec.memory_limit or LEAST_MEMORY) < dask.utils.parse_bytes(LEAST_MEMORY):
            raise ValueError(f"{spec.memory_limit} is too little: a worker needs {LEAST_MEMORY}")
    except ValueError as problem:
        raise TipcastError("C003", "cluster.memory_limit", str(problem), "write it as 8GiB") from problem
