"""Workers held against the machine, whose GPUs are made up, and those of schedulers that run already."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import distributed
import pytest
from distributed import Client
from distributed.system import MEMORY_LIMIT
from tests.conftest import NO_PAGES
from tests.waiting import WATCHDOG_S, wait_until

import tipcast
from tipcast.compute import gpus
from tipcast.compute.cluster import cores
from tipcast.compute.findings import _differences, check_gpus, check_scheduler, check_workers
from tipcast.compute.gpus import Gpu
from tipcast.compute.workers import known
from tipcast.config.errors import State, TipcastError
from tipcast.config.schema import BackendSpec, LocalCluster, LocalCudaCluster, SchedulerCluster

CPU, GPU = BackendSpec("cpu"), BackendSpec("gpu")
HERE, THERE = LocalCluster("local"), SchedulerCluster("scheduler", address="tcp://127.0.0.1:8786")


def made_up(count: int, driver: str = "580.65.06") -> list[Gpu]:
    return [Gpu(index, "NVIDIA H200", 143_771 << 20, driver) for index in range(count)]


def has(monkeypatch: pytest.MonkeyPatch, found: list[Gpu]) -> None:
    monkeypatch.setattr(gpus, "visible", lambda: found)


def test_gpus_are_counted_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, [*made_up(2), Gpu(2, "NVIDIA L4", 24 << 30, "580.65.06")])
    finding = check_gpus(GPU, HERE)
    assert finding.state is State.ok
    assert finding.found == "2 x NVIDIA H200 140 GiB, 1 x NVIDIA L4 24 GiB, driver 580.65.06"
    assert check_gpus(CPU, HERE).found.endswith("; backend=cpu uses none")


@pytest.mark.parametrize(("driver", "state"), [("570.124", State.warning), ("580.65.06", State.ok), ("?", State.ok)])
def test_an_old_driver_is_a_warning(monkeypatch: pytest.MonkeyPatch, driver: str, state: State) -> None:
    has(monkeypatch, made_up(1, driver))
    assert check_gpus(GPU, HERE).state is state
    assert check_gpus(CPU, HERE).state is State.ok, "what is not used may be old"


def test_only_a_gpu_backend_here_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, [])
    assert check_gpus(CPU, HERE).state is State.ok
    assert "cluster=scheduler" in check_gpus(GPU, THERE).found
    with pytest.raises(TipcastError, match=r"C010.*backend=cpu"):
        check_gpus(GPU, HERE)


@pytest.mark.parametrize(("there", "wanted", "found"), [(2, None, "2 workers on 2 GPUs"), (2, 1, "1 worker on 2 GPUs")])
def test_workers_on_gpus(monkeypatch: pytest.MonkeyPatch, there: int, wanted: int | None, found: str) -> None:
    has(monkeypatch, made_up(there))
    monkeypatch.setattr(gpus, "missing_packages", list)
    assert check_workers(GPU, LocalCudaCluster("local_cuda", n_workers=wanted)).found == found


def test_workers_on_cores() -> None:
    finding = check_workers(CPU, LocalCluster("local", n_workers=1, threads_per_worker=1))
    assert finding.state is State.ok
    assert finding.found.startswith("1 worker of 1 thread on ")
    crowded = check_workers(CPU, LocalCluster("local", n_workers=cores() + 1, threads_per_worker=1))
    assert crowded.state is State.warning
    assert "cluster.n_workers" in crowded.fix


def test_memory_of_the_workers() -> None:
    limit = f"{MEMORY_LIMIT // 2 + (1 << 20)}B"
    fits = check_workers(CPU, LocalCluster("local", n_workers=1, threads_per_worker=1, memory_limit=limit))
    assert fits.state is State.ok
    too_much = check_workers(CPU, LocalCluster("local", n_workers=2, threads_per_worker=1, memory_limit=limit))
    assert too_much.state is State.warning
    assert "memory_limit" in too_much.fix


PACKAGES = ("numpy", "xgboost", "xgboost-cpu", "tipcast")
SRC = Path(tipcast.__file__).resolve().parents[1]
VERSIONS = {"python": "3.11.7", "dask": "2026.7.1", "xgboost": "3.2.0", "numpy": "2.4.6"}


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """Address of a scheduler with one worker in this process."""
    options = {"n_workers": 1, "threads_per_worker": 2, "processes": False, **NO_PAGES}
    with distributed.LocalCluster(host="tcp://127.0.0.1", **options) as cluster:
        yield str(cluster.scheduler_address)


def spec(address: str, workers: int = 1) -> SchedulerCluster:
    return SchedulerCluster("scheduler", address=address, n_workers=workers, wait_s=1, connect_timeout_s=WATCHDOG_S)


def test_workers_with_the_same_versions(scheduler: str) -> None:
    finding = check_scheduler(CPU, spec(scheduler), PACKAGES)
    assert finding.state is State.ok
    assert finding.found == f"{scheduler}: workers 1, wanted 1, threads 2; same versions"


def test_too_few_workers(scheduler: str) -> None:
    with pytest.raises(TipcastError, match="K002.*1 of 2 workers after 1 s"):
        check_scheduler(CPU, spec(scheduler, 2), PACKAGES)


def test_workers_that_a_gpu_job_would_refuse(scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "missing_packages", list)
    with pytest.raises(TipcastError, match=r"K006.*several threads"):
        check_scheduler(GPU, spec(scheduler), PACKAGES)


@contextlib.contextmanager
def _worker(address: str, path: Path) -> Iterator[None]:
    """Run a worker that finds tipcast in a folder of its own."""
    command = [sys.executable, "-m", "dask", "worker", address, "--no-nanny", "--no-dashboard", "--nthreads", "1"]
    with (
        (path / "log").open("wb") as log,
        subprocess.Popen(
            command, cwd=path, env=os.environ | {"PYTHONPATH": str(path)}, stdout=log, stderr=log
        ) as process,
        Client(address) as client,
    ):
        try:
            client.wait_for_workers(2, timeout=WATCHDOG_S)
            yield
        finally:
            process.kill()
            process.wait()
            wait_until(lambda: len(known(client)) == 1)


@pytest.mark.parametrize(
    ("whole", "told"),
    [(True, f"tipcast {tipcast.__version__} here, 9.9.9 on 1 there"), (False, "1 of 2 workers lack tipcast.*compute")],
)
def test_a_worker_without_the_same_tipcast(whole: bool, told: str, scheduler: str, tmp_path: Path) -> None:
    if whole:
        shutil.copytree(SRC / "tipcast", tmp_path / "tipcast", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tipcast").mkdir(exist_ok=True)
    (tmp_path / "tipcast" / "__init__.py").write_text('__version__ = "9.9.9"\n')
    with _worker(scheduler, tmp_path), pytest.raises(TipcastError, match=f"K005.*{told}"):
        check_scheduler(CPU, spec(scheduler, 2), PACKAGES)


class Versions:
    """Stands for a client: what it, its scheduler and its workers answer when asked for their versions."""

    def __init__(self, scheduler: dict[str, str], *workers: dict[str, str]) -> None:
        self.workers = {str(at): {"packages": found} for at, found in enumerate(workers)}
        self.scheduler = scheduler

    def run(self, *_: Any, **__: Any) -> dict[str, str]:
        return dict.fromkeys(self.workers, tipcast.__version__)

    def get_versions(self, packages: list[str]) -> dict[str, Any]:
        return {
            "client": {"packages": VERSIONS},
            "scheduler": {"packages": self.scheduler},
            "workers": self.workers,
        }


def test_equal_versions_do_not_differ() -> None:
    """Nor do builds of one library, or what only workers need."""
    build = {"xgboost-cpu" if name == "xgboost" else name: version for name, version in VERSIONS.items()}
    scheduler = {"python": "3.11.9", "dask": "2026.7.1"}
    assert _differences(Versions(scheduler, VERSIONS, build), PACKAGES, "here") == {}


def test_differences_are_counted() -> None:
    other = VERSIONS | {"xgboost": "3.3.0"}
    bare = {name: version for name, version in VERSIONS.items() if name != "xgboost"}
    assert _differences(Versions(VERSIONS | {"dask": "1"}, other, other, bare), PACKAGES, "here") == {
        "dask": "dask 2026.7.1 here, 1 on 1 there",
        "xgboost": "xgboost 3.2.0 here, 3.3.0 on 2, none on 1 there",
    }
