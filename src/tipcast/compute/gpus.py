"""NVIDIA GPUs of this machine: which are visible, the packages they need, and their peak memory."""

import contextlib
import importlib.metadata
import importlib.util
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tipcast.config import schema
from tipcast.config.errors import TipcastError, missing

PACKAGES = (
    "cupy",
    "rmm",
    "cudf",
    "dask_cudf",
    "cuml",
    "raft_dask",
    "dask_cuda",
    "xgboost",
    "pynvml",
)
"""Packages of ``tipcast[gpu]``; each imports without a GPU."""
INSTALL = "install them: pip install '.[gpu]' in the checkout (RAPIDS 26.10 for CUDA 13)"
"""What a user can do about missing packages."""
DRIVER = Path("/proc/driver/nvidia/version")
"""File that exists if the kernel has NVIDIA's driver."""
EVERY_S = 0.05
"""Seconds between two samples of a GPU's memory; a shorter spike may be missed."""


@dataclass(frozen=True)
class Gpu:
    """One device, and the version of its driver."""

    name: str
    memory_bytes: int
    free_bytes: int
    """Memory that no process had taken when it was asked."""
    driver: str
    uuid: str


def visible() -> list[Gpu]:
    """Return the GPUs that this process may use, by NVML and CUDA_VISIBLE_DEVICES.

    The list is empty without NVIDIA's driver or the package pynvml.
    """
    nvml, handles = _opened()
    if nvml is None:
        return []

    with contextlib.suppress(Exception):
        return [_gpu(nvml, handle) for handle in handles]
    return []


def _gpu(nvml: ModuleType, handle: object) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        nvml.nvmlDeviceGetName(handle),
        int(memory.total),
        int(memory.free),
        nvml.nvmlSystemGetDriverVersion(),
        nvml.nvmlDeviceGetUUID(handle),
    )


def _opened() -> tuple[ModuleType | None, list[object]]:
    """Return NVML, which stays open, and its handles of the visible GPUs.

    Without a driver it returns None and an empty list.
    """
    # Whatever is wrong with package, library or driver, no GPU can be used.
    with contextlib.suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        return pynvml, _handles(pynvml)
    return None, []


def _handles(nvml: ModuleType) -> list[object]:
    """Return NVML's handles in the order of CUDA_VISIBLE_DEVICES, up to its first invalid entry."""
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    if variable is None:
        return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]

    entries = [part.strip() for part in variable.split(",")]
    handles: list[object] = []
    with contextlib.suppress(Exception):  # like CUDA, stop at the first invalid entry
        for entry in filter(None, entries):
            if entry.lstrip("-").isdigit():
                handles.append(nvml.nvmlDeviceGetHandleByIndex(int(entry)))
            else:
                handles.append(nvml.nvmlDeviceGetHandleByUUID(entry.encode()))
    return handles


def missing_packages() -> list[str]:
    """Return the packages of ``tipcast[gpu]`` that are not installed, without importing any."""
    packages = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("xgboost-cpu")
        packages.append("xgboost with CUDA (xgboost-cpu is installed instead)")
    return packages


def check(backend: schema.BackendSpec, cluster: schema.ClusterSpec) -> None:
    """Refuse backend=gpu without GPUs or packages.

    If the workers are on other machines, the driver needs the packages only. Raises K006 if no GPU
    is visible, K007 if packages are missing.
    """
    if backend.name != "gpu":
        return

    packages = missing_packages()
    # There may be GPUs that only pynvml would find.
    is_unknown = "pynvml" in packages and DRIVER.exists()
    if isinstance(cluster, schema.LocalCudaCluster) and not visible() and not is_unknown:
        what = "no NVIDIA GPU is visible"
        if "CUDA_VISIBLE_DEVICES" in os.environ:
            what = f"{what} (CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r})"
        fix = "run on a machine with one, check nvidia-smi, or use backend=cpu"
        raise TipcastError("K006", "backend=gpu", what, fix)

    if packages:
        raise missing("backend=gpu", f"packages: {', '.join(packages)}", INSTALL, "K007")


class Watcher:
    """Samples one GPU's memory in a thread until the process ends.

    NVML counts everything on the device: CUDA's context, XGBoost's own allocations, other
    processes. It sees an RMM pool's whole size, so the unused part, from RMM's statistics, is
    subtracted.
    """

    def __init__(self, nvml: ModuleType, handle: object) -> None:
        self._nvml = nvml
        self._handle = handle
        self._pool, self._counts = _pool()
        self.peak = 0
        threading.Thread(target=self._watch, daemon=True, name="tipcast-device-memory").start()

    def sample(self) -> int:
        """Take a sample and return the peak so far, in bytes."""
        used = int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)
        if self._pool is not None:
            used -= max(self._pool.pool_size() - self._counts.allocation_counts.current_bytes, 0)
        self.peak = max(self.peak, used)
        return self.peak

    def _watch(self) -> None:
        with contextlib.suppress(Exception):  # the driver is going away
            while True:
                time.sleep(EVERY_S)
                self.sample()


def _pool() -> tuple[Any, Any]:
    """Return this process's RMM pool and the statistics on it; both are None without a pool."""
    import rmm.mr
    import rmm.statistics

    resource = rmm.mr.get_current_device_resource()
    while resource is not None and not isinstance(resource, rmm.mr.PoolMemoryResource):
        resource = getattr(resource, "upstream_mr", None)
    if resource is None:
        return None, None
    rmm.statistics.enable_statistics()  # this puts a counting resource on top
    return resource, rmm.mr.get_current_device_resource()


_watcher: Watcher | None = None


def watch() -> None:
    """Start to watch this process's first GPU; a second call does nothing."""
    global _watcher
    nvml, handles = _opened()
    if _watcher is None and nvml and handles:
        _watcher = Watcher(nvml, handles[0])


def peak_bytes() -> int | None:
    """Return the peak memory of this process's GPU since ``watch``, in bytes.

    None before ``watch``.
    """
    if _watcher is None:
        return None
    return _watcher.sample()
