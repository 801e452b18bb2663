"""The NVIDIA GPUs that this process may use, as the driver tells them."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    index: int
    """The driver's number of it."""
    name: str
    memory_bytes: int
    driver: str
    """The driver's version."""


def visible() -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves; none without a driver, and never an error."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        driver = nvml.nvmlSystemGetDriverVersion()
        found = []
        for index in _chosen(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
            found.append(Gpu(index, str(nvml.nvmlDeviceGetName(handle)), memory, str(driver)))
    except Exception:  # no library, no driver, or one that answers something new
        return []
    return found


def _chosen(count: int) -> list[int]:
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None or chosen.startswith(("GPU-", "MIG-")):
        return list(range(count))
    numbers = [int(number) for number in chosen.split(",") if number.strip().isdigit()]
    return [number for number in numbers if number < count]
