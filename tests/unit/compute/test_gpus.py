"""GPUs, where there are none: nothing is found, nothing is raised, and the packages that lack are named."""

from __future__ import annotations

import types
from collections.abc import Iterator

import distributed
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from tests.conftest import NO_PAGES

from tipcast.compute import gpus, session
from tipcast.compute.base import device_of, module_of, to_host
from tipcast.config.errors import TipcastError
from tipcast.config.schema import BackendSpec, LocalCluster, LocalCudaCluster, SchedulerCluster


def test_hidden_gpus_are_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus.visible() == []
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


@pytest.fixture
def single() -> Iterator[Client]:
    """One worker of one thread."""
    with (
        distributed.LocalCluster(processes=False, n_workers=1, threads_per_worker=1, **NO_PAGES) as cluster,
        Client(cluster, set_as_default=False) as connected,
    ):
        yield connected


def test_workers_without_gpus_are_named(single: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(TipcastError, match="K006.*worker without a GPU.*dask cuda worker"):
        session.own_gpus(single)


def test_workers_of_several_threads_are_refused(client: Client) -> None:
    with pytest.raises(TipcastError, match="K006.*several threads.*dask cuda worker"):
        session.own_gpus(client)


def test_workers_that_share_a_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "visible", lambda: [gpus.Gpu(0, "H", 1, "1", "GPU-1")])
    options = {"processes": False, "threads_per_worker": 1, **NO_PAGES}
    with (
        distributed.LocalCluster(n_workers=2, **options) as cluster,
        Client(cluster, set_as_default=False) as client,
        pytest.raises(TipcastError, match="K006.*GPU-1.*more than one worker"),
    ):
        session.own_gpus(client)


def test_nothing_is_watched_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    gpus.watch()
    assert gpus.peak_bytes() is None


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
    assert device_of(array) == "cpu"
    assert module_of(array) is np
