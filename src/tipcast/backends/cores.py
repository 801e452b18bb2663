"""The processor's cores, and how the workers of a local cluster share them."""

from __future__ import annotations

import math
import os

from tipcast.config.schema import LocalCluster

CORES_PER_PROCESS = 16
"""Threads of one process share its data; beyond about this many they wait for each other."""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shared_out(spec: LocalCluster) -> tuple[int, int]:
    """Return the workers of a local cluster and the threads of each: as configured, else chosen for the machine."""
    workers = spec.n_workers or math.ceil(cores() / CORES_PER_PROCESS)
    return workers, spec.threads_per_worker or max(cores() // workers, 1)
