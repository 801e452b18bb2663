"""GPUs, where there are none: what is refused before anything starts, what workers on them get, and
peaks of memory.
"""

import copy
import os
import sys
import types
from typing import Any

import dask
import distributed
import psutil
import pytest
from distributed import Client
from tests.conftest import NO_PAGES, python

from tipcast.compute import cluster, gpus, session
from tipcast.config.errors import TipcastError
from tipcast.config.schema import BackendSpec, LocalCluster, LocalCudaCluster, SchedulerCluster

CUDA_SETTINGS = ("device_memory_limit", "enable_cudf_spill", "rmm_pool_size", "rmm_managed_memory")
GPU = BackendSpec("gpu")


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's GPUs are hidden, as where there are none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.usefixtures("hidden")
def test_hidden_gpus_are_not_seen() -> None:
    assert gpus.visible() == []


@pytest.mark.usefixtures("hidden")
def test_hidden_gpus_have_no_peak_of_memory() -> None:
    gpus.watch()
    assert gpus.peak_bytes() is None


@pytest.mark.usefixtures("hidden")
def test_a_job_on_hidden_gpus_is_refused() -> None:
    with pytest.raises(TipcastError, match="K006"):
        gpus.check(GPU, LocalCudaCluster("local_cuda"))


@pytest.mark.usefixtures("hidden")
def test_a_job_on_processors_needs_no_gpu() -> None:
    gpus.check(BackendSpec("cpu"), LocalCluster("local"))


REMOTE = SchedulerCluster("scheduler", address="tcp://127.0.0.1:1")


@pytest.mark.usefixtures("hidden")
def test_a_job_on_remote_gpus_needs_none_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "missing_packages", list)
    gpus.check(GPU, REMOTE)


@pytest.mark.usefixtures("hidden")
def test_a_job_on_remote_gpus_needs_their_packages_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "missing_packages", lambda: ["cudf", "cuml"])
    with pytest.raises(TipcastError, match="K007.*cudf, cuml.*pip install"):
        gpus.check(GPU, REMOTE)


@pytest.mark.parametrize(
    ("named", "expected"),
    [(None, [0, 1, 2]), ("1,0", [1, 0]), ("2,7,0", [2]), ("", []), ("-1,0", []), ("GPU-b", [1])],
)
def test_visible_devices_are_read_as_cuda_reads_them(
    monkeypatch: pytest.MonkeyPatch, named: str | None, expected: list[int]
) -> None:
    """A library of three devices, in place of NVML's, whose handles are their numbers."""

    nvml = types.SimpleNamespace(
        nvmlDeviceGetCount=lambda: 3,
        nvmlDeviceGetHandleByIndex=lambda index: range(3)[index] if index >= 0 else [][0],
        nvmlDeviceGetHandleByUUID=[b"GPU-a", b"GPU-b", b"GPU-c"].index,
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert gpus._handles(nvml) == expected


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> list[gpus.Gpu]:
    """Two GPUs."""
    visible = [
        gpus.Gpu(f"NVIDIA H{at}", 150 << 30, 140 << 30, "600.1", f"GPU-{at}") for at in range(2)
    ]
    monkeypatch.setattr(gpus, "visible", lambda: visible)
    return visible


@pytest.mark.usefixtures("two", "forked")
@pytest.mark.parametrize(("of_driver", "seen"), [("", "1"), ("0", "0")])
def test_dask_cuda_gets_the_settings(
    of_driver: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster of the CPU in place of Dask-CUDA's, with its way to give each worker a device.

    Workers see no secret of the driver's; NCCL waits for its sums, unless somebody wants it
    otherwise.
    """
    given: dict[str, Any] = {}

    class LocalCUDACluster(distributed.LocalCluster):
        def __init__(self, n_workers: int, **settings: Any) -> None:
            given.update({name: settings.pop(name) for name in CUDA_SETTINGS})
            super().__init__(n_workers=0, **settings)
            self.scale(n_workers)

        def new_worker_spec(self) -> dict[Any, Any]:
            specs: dict[Any, Any] = copy.deepcopy(super().new_worker_spec())
            for name, spec in specs.items():
                spec["options"]["env"] = {"CUDA_VISIBLE_DEVICES": str(name)}
            return specs

    monkeypatch.setitem(
        sys.modules, "dask_cuda", types.SimpleNamespace(LocalCUDACluster=LocalCUDACluster)
    )
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    for variable in cluster.TOGETHER:
        monkeypatch.delenv(variable, raising=False)
    if of_driver:
        monkeypatch.setenv("NCCL_COMM_BLOCKING", of_driver)
    environment: Any = {"NCCL_DEBUG": "INFO", "OMP_WAIT_POLICY": 2}
    spec = LocalCudaCluster("local_cuda", rmm_pool_size=0.5, environment=environment)
    with cluster.opened(spec) as client:
        cluster.wait_for_workers(client, spec)
        assert not dask.config.get("distributed.scheduler.work-stealing")
        workers = list(client.run(lambda: dict(os.environ)).values())
        assert list(client.nthreads().values()) == [1, 1]
    assert {worker["CUDA_VISIBLE_DEVICES"] for worker in workers} == {"0", "1"}
    expected = {
        "MLFLOW_TRACKING_TOKEN": "",
        "NCCL_DEBUG": "INFO",
        "NCCL_COMM_BLOCKING": seen,
        "OMP_WAIT_POLICY": "2",
    }
    assert all(expected.items() <= worker.items() for worker in workers)
    assert given == dict(
        zip(CUDA_SETTINGS, (spec.device_memory_limit, True, 0.5, False), strict=True)
    )


@pytest.mark.parametrize(
    ("workers", "message"), [(1, "worker without a GPU"), (2, "GPU-0: more than one worker")]
)
def test_workers_that_share_a_gpu_are_refused(
    workers: int, message: str, two: list[gpus.Gpu]
) -> None:
    if workers == 1:
        two.clear()
    options = {"processes": False, "threads_per_worker": 1, **NO_PAGES}
    with (
        distributed.LocalCluster(n_workers=workers, **options) as local,
        Client(local, set_as_default=False) as client,
        pytest.raises(TipcastError, match=f"K006.*{message}.*dask cuda worker"),
    ):
        session.own_gpus(client)


def test_peaks_of_processes(client: Client, tmp_path: Any) -> None:
    """A peak does not fall, but for pages that Linux counts late, and leaves out what started the
    process.
    """
    held = psutil.Process().memory_info().rss
    assert 0.9 * held < session.peak_bytes() < psutil.virtual_memory().total
    block = bytearray(200 << 20)
    block[::4096] = b"x" * len(block[::4096])
    program = "from tipcast.compute.session import peak_bytes; print(peak_bytes())"
    assert (
        int(python(tmp_path, "-c", program).stdout) < len(block) < (after := session.peak_bytes())
    )
    del block
    peaks = session.peaks(client)
    assert set(peaks) == {"driver", "worker"}
    assert min(peaks.values()) >= after - (16 << 20)
