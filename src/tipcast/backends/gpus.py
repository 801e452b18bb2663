"""The GPUs of this machine, and what a session on them needs before anything is opened."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tipcast.config import schema
from tipcast.config.errors import TipcastError

PACKAGES = ("cupy", "rmm", "cudf", "dask_cudf", "cuml", "raft_dask", "dask_cuda", "xgboost")
"""What ``tipcast[gpu]`` installs; each imports without a GPU."""
INSTALL = "install them: pip install 'tipcast[gpu]' (RAPIDS 26.10 for CUDA 13)"
DRIVER = Path("/proc/driver/nvidia/version")
"""There where the kernel has NVIDIA's driver."""


@dataclass(frozen=True)
class Gpu:
    """One device."""

    index: int
    """Its place among the visible ones, as CUDA counts."""
    name: str
    memory_bytes: int
    driver: str
    """Version of the driver."""


def visible() -> list[Gpu]:
    """Return the GPUs that this process may use, by NVML and CUDA_VISIBLE_DEVICES; none where either is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # whatever is wrong with package, library or driver: there is no GPU to use
        return []
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        return [_gpu(pynvml, index, handle, driver) for index, handle in enumerate(_handles(pynvml))]
    except Exception:  # NVML's errors, one class for each of its codes
        return []
    finally:
        pynvml.nvmlShutdown()


def first() -> tuple[Any, Any] | None:
    """Return NVML, left open, and its handle of the first visible GPU; None where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = _handles(pynvml)
    except Exception:  # as in ``visible``
        return None
    return (pynvml, handles[0]) if handles else None


def own() -> tuple[str, Gpu] | None:
    """Return the identity and the first of the GPUs that this process sees; None where it sees none."""
    found, devices = first(), visible()
    if found is None or not devices:
        return None
    nvml, handle = found
    return _text(nvml.nvmlDeviceGetUUID(handle)), devices[0]


def _gpu(nvml: Any, index: int, handle: Any, driver: str) -> Gpu:
    return Gpu(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        driver=driver,
    )


def _handles(nvml: Any) -> list[Any]:
    """Return NVML's handles in the order of CUDA_VISIBLE_DEVICES, which ends at the first entry that is none."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    handles: list[Any] = []
    for entry in filter(None, (part.strip() for part in named.split(","))):
        try:
            handles.append(
                nvml.nvmlDeviceGetHandleByIndex(int(entry))
                if entry.lstrip("-").isdigit()
                else nvml.nvmlDeviceGetHandleByUUID(entry.encode())
            )
        except Exception:  # as CUDA does, stop here
            break
    return handles


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def missing_packages() -> list[str]:
    """Return what of ``tipcast[gpu]`` this environment lacks, without importing any of it."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    try:
        importlib.metadata.version("xgboost-cpu")
    except importlib.metadata.PackageNotFoundError:
        return missing
    return [*missing, "xgboost with CUDA (xgboost-cpu is in its place)"]


def check(backend: schema.BackendSpec, cluster: schema.ClusterSpec) -> None:
    """Refuse GPUs where there are none; a driver whose workers are elsewhere needs the packages but no GPU.

    Raises
    ------
    TipcastError
        K006 no GPU, K007 packages that are missing.

    """
    if backend.name != "gpu":
        return
    local = isinstance(cluster, schema.LocalCudaCluster)
    missing = missing_packages()
    unseen = importlib.util.find_spec("pynvml") is None and DRIVER.exists()
    if local and not visible() and not unseen:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise TipcastError(
            "K006",
            "backend=gpu",
            "no NVIDIA GPU is visible" + ("" if hidden is None else f" (CUDA_VISIBLE_DEVICES={hidden!r})"),
            "run on a machine with one, check nvidia-smi, or use backend=cpu",
        )
    if missing or unseen:
        raise TipcastError(
            "K007", "backend=gpu", f"packages are missing: {', '.join(missing or ['nvidia-ml-py'])}", INSTALL
        )
