"""Peak memory of a worker's GPU, sampled on the worker by NVML, less what a pool holds ready.

NVML counts everything on the device: CUDA's context, XGBoost's own allocations, another process. Of a pool of RMM it
sees the size and not what is handed out, so the idle part, which RMM's statistics tell, is taken off. With CUDA's
asynchronous pool the idle part stays in.
"""

from __future__ import annotations

import threading
from typing import Any

from tipcast.backends import gpus

EVERY_S = 0.05
"""Seconds between two samples; a shorter spike may be missed."""


class Watcher:
    """Samples one GPU's memory in a thread of its own until the process ends."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._pool, self._counts = _pool()
        self.peak = 0
        threading.Thread(target=self._watch, daemon=True, name="tipcast-device-memory").start()

    def used(self) -> int:
        """Return what the GPU holds now, in bytes."""
        used = int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)
        if self._pool is not None:
            used -= max(self._pool.pool_size() - self._counts.allocation_counts.current_bytes, 0)
        return used

    def sample(self) -> int:
        """Take a sample and return the peak so far, in bytes."""
        self.peak = max(self.peak, self.used())
        return self.peak

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(EVERY_S):
            try:
                self.sample()
            except Exception:  # the driver is going away
                return


def _pool() -> tuple[Any, Any]:
    """Return this process's pool and counters put on top of it, both None where there is no pool."""
    import rmm.mr
    import rmm.statistics

    resource = rmm.mr.get_current_device_resource()
    while resource is not None and not isinstance(resource, rmm.mr.PoolMemoryResource):
        resource = getattr(resource, "upstream_mr", None)
    if resource is None:
        return None, None
    rmm.statistics.enable_statistics()
    return resource, rmm.mr.get_current_device_resource()


_watcher: Watcher | None = None


def watch() -> None:
    """Start to watch this process's first GPU; a second call does nothing."""
    global _watcher
    if _watcher is None and (found := gpus.first()) is not None:
        _watcher = Watcher(*found)


def used_bytes() -> int | None:
    """Return what this process's GPU holds now, in bytes; None where nothing is watched."""
    return None if _watcher is None else _watcher.used()


def peak_bytes() -> int | None:
    """Return the most that this process's GPU ever held since ``watch``, in bytes; None where nothing is watched."""
    return None if _watcher is None else _watcher.sample()
