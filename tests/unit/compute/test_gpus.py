"""GPUs, where there are none: nothing is found, nothing is raised, and the packages that lack are named."""

from __future__ import annotations

import types

import distributed
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from tests.conftest import NO_PAGES

from tipcast.compute import gpus, session
from tipcast.compute.base import module_of, to_host
from tipcast.config.errors import TipcastError
from tipcast.config.schema import BackendSpec, LocalCluster, LocalCudaCluster, SchedulerCluster


def test_hidden_gpus_are_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus.visible() == []
    gpus.watch()
    assert gpus.peak_bytes() is None
    with pytest.raises(TipcastError, match="K006"):
        gpus.check(BackendSpec("gpu"), LocalCudaCluster("local_cuda"))
    gpus.check(BackendSpec("cpu"), LocalCluster("local"))


def test_a_driver_of_remote_workers_needs_packages_and_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    remote = SchedulerCluster("scheduler", address="tcp://127.0.0.1:1")
    monkeypatch.setattr(gpus, "missing_packages", list)
    gpus.check(BackendSpec("gpu"), remote)
    monkeypatch.setattr(gpus, "missing_packages", lambda: ["cudf", "cuml"])
    with pytest.raises(TipcastError, match="K007.*cudf, cuml.*pip install"):
        gpus.check(BackendSpec("gpu"), remote)


@pytest.mark.parametrize(
    ("named", "expected"), [(None, [0, 1, 2]), ("1,0", [1, 0]), ("2,7,0", [2]), ("", []), ("-1,0", []), ("GPU-b", [1])]
)
def test_order_and_end_are_cudas(monkeypatch: pytest.MonkeyPatch, named: str | None, expected: list[int]) -> None:
    """A library of three devices, in place of NVML's, whose handles are their numbers."""

    class Nvml:
        def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - NVML's names
            return 3

        def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
            return range(3)[index] if index >= 0 else [][0]

        def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> int:  # noqa: N802
            return [b"GPU-a", b"GPU-b", b"GPU-c"].index(uuid)

    if named is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert gpus._handles(Nvml()) == expected


GPU = gpus.Gpu(0, "H", 1, "1", "GPU-1")


@pytest.mark.parametrize(
    ("workers", "threads", "visible", "told"),
    [
        (1, 1, [], "worker without a GPU"),
        (1, 2, [GPU], "worker with several threads"),
        (2, 1, [GPU], "GPU-1: more than one worker"),
    ],
)
def test_workers_that_share_a_gpu_are_refused(
    workers: int, threads: int, visible: list[gpus.Gpu], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "visible", lambda: visible)
    options = {"processes": False, **NO_PAGES}
    with (
        distributed.LocalCluster(n_workers=workers, threads_per_worker=threads, **options) as cluster,
        Client(cluster, set_as_default=False) as client,
        pytest.raises(TipcastError, match=f"K006.*{told}.*dask cuda worker"),
    ):
        session.own_gpus(client)


def test_the_idle_part_of_a_pool_is_not_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of NVML's and a pool of RMM's kinds, in their place."""
    device = types.SimpleNamespace(used=1000)
    nvml = types.SimpleNamespace(nvmlDeviceGetMemoryInfo=lambda _: device)
    counts = types.SimpleNamespace(allocation_counts=types.SimpleNamespace(current_bytes=100))
    monkeypatch.setattr(gpus, "EVERY_S", 60)
    monkeypatch.setattr(gpus, "_pool", lambda: (types.SimpleNamespace(pool_size=lambda: 700), counts))
    watcher = gpus.Watcher(nvml, None)
    assert watcher.sample() == 400
    counts.allocation_counts.current_bytes, device.used = 650, 1100
    assert watcher.sample() == 1050
    device.used = 900
    assert watcher.sample() == 1050
    monkeypatch.setattr(gpus, "_pool", lambda: (None, None))
    assert gpus.Watcher(nvml, None).sample() == 900


def test_what_is_on_the_host_stays() -> None:
    array, frame = np.arange(3), pd.DataFrame({"a": [1]})
    assert to_host(array) is array
    assert to_host(frame) is frame
    assert module_of(array) is np
