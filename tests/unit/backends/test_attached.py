"""A scheduler and workers that run already, some of them with other versions."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

import tipcast
from tipcast.backends import attached, gpus
from tipcast.backends.attached import Told, check_scheduler, differences, tell
from tipcast.config.errors import TipcastError
from tipcast.config.finding import State
from tipcast.config.schema import BackendSpec, SchedulerCluster

CPU, GPU = BackendSpec("cpu"), BackendSpec("gpu")
PACKAGES = ("numpy", "xgboost", "xgboost-cpu", "tipcast")
SRC = Path(tipcast.__file__).resolve().parents[1]
VERSIONS = {"python": "3.11", "dask": "2026.7.1", "xgboost": "3.2.0", "numpy": "2.4.6"}


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """Address of a scheduler with one worker in this process."""
    options = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(host="tcp://127.0.0.1", **options) as cluster:
        yield str(cluster.scheduler_address)


def spec(address: str, workers: int = 1) -> SchedulerCluster:
    return SchedulerCluster("scheduler", address=address, n_workers=workers, wait_s=1, connect_timeout_s=2)


def test_workers_with_the_same_versions(scheduler: str) -> None:
    finding = check_scheduler(CPU, spec(scheduler), PACKAGES)
    assert finding.state is State.ok
    assert finding.found == f"{scheduler}: workers 1, wanted 1, threads 2; same versions"


def test_too_few_workers(scheduler: str) -> None:
    with pytest.raises(TipcastError, match="K002.*1 of 2 workers after 1 s"):
        check_scheduler(CPU, spec(scheduler, 2), PACKAGES)


def test_nobody_there() -> None:
    with pytest.raises(TipcastError, match="K001"):
        check_scheduler(CPU, spec("tcp://127.0.0.1:1"), PACKAGES)


def test_workers_without_gpus(scheduler: str) -> None:
    if gpus.visible():
        pytest.skip("this machine has a GPU, and so its workers have")
    with pytest.raises(TipcastError, match="C010.*1 of 1 workers see no GPU"):
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
            client.wait_for_workers(2, timeout=60)
            yield
        finally:
            process.kill()
            process.wait()
            while len(client.scheduler_info()["workers"]) > 1:
                client.run_on_scheduler(lambda: None)


def test_a_worker_of_another_version(scheduler: str, tmp_path: Path) -> None:
    shutil.copytree(SRC / "tipcast", tmp_path / "tipcast", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tipcast" / "__init__.py").write_text('__version__ = "9.9.9"\n')
    with _worker(scheduler, tmp_path), pytest.raises(TipcastError) as caught:
        check_scheduler(CPU, spec(scheduler, 2), PACKAGES)
    assert caught.value.code == "K005"
    assert f"tipcast {tipcast.__version__} here, 9.9.9 on 1 there" in caught.value.what


def test_a_worker_without_tipcast(scheduler: str, tmp_path: Path) -> None:
    (tmp_path / "tipcast").mkdir()
    (tmp_path / "tipcast" / "__init__.py").write_text("")
    with (
        _worker(scheduler, tmp_path),
        pytest.raises(TipcastError, match="K005.*1 of 2 workers lack tipcast.*tipcast.backends"),
    ):
        check_scheduler(CPU, spec(scheduler, 2), PACKAGES)


def test_a_process_tells_what_it_is() -> None:
    told = tell()
    assert told.tipcast == tipcast.__version__
    assert told.host
    assert told.gpus == tuple(gpu.index for gpu in gpus.visible())


def test_equal_versions_do_not_differ() -> None:
    scheduler = {"python": "3.11", "dask": "2026.7.1"}
    assert differences({"here": VERSIONS, "scheduler": scheduler, "a": VERSIONS, "b": VERSIONS}) == {}


def test_differences_are_counted() -> None:
    other = VERSIONS | {"xgboost": "3.3.0"}
    bare = {name: version for name, version in VERSIONS.items() if name != "xgboost"}
    found = differences({"here": VERSIONS, "scheduler": VERSIONS | {"dask": "1"}, "a": other, "b": other, "c": bare})
    assert found == {
        "dask": "dask 2026.7.1 here, 1 on 1 there",
        "xgboost": "xgboost 3.2.0 here, 3.3.0 on 2, none on 1 there",
    }


@pytest.mark.parametrize(
    ("told", "shared"),
    [
        ([Told("1", "a", (0, 1)), Told("1", "a", (1, 0))], None),
        ([Told("1", "a", (0,)), Told("1", "b", (0,))], None),
        ([Told("1", "a", (0,)), Told("1", "a", (0,))], "2 workers share 1 GPUs of a"),
    ],
)
def test_workers_that_share_gpus(told: list[Told], shared: str | None) -> None:
    assert attached._crowded({str(number): worker for number, worker in enumerate(told)}, "tcp://here") == shared
