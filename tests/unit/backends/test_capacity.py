"""Workers held against the machine; the GPUs are made up, for the rules must hold on machines that have others."""

from __future__ import annotations

import pytest
from distributed.system import MEMORY_LIMIT

from tipcast.backends import capacity, gpus, session
from tipcast.backends.capacity import check_gpus, check_workers
from tipcast.backends.cores import cores
from tipcast.backends.gpus import Gpu
from tipcast.config.errors import TipcastError
from tipcast.config.finding import State
from tipcast.config.schema import BackendSpec, ClusterSpec, LocalCluster, SchedulerCluster

CPU, GPU = BackendSpec("cpu"), BackendSpec("gpu")
HERE, THERE = LocalCluster("local"), SchedulerCluster("scheduler", address="tcp://127.0.0.1:8786")


def made_up(count: int, driver: str = "580.65.06") -> list[Gpu]:
    return [Gpu(index, "NVIDIA H200", 143_771 << 20, driver) for index in range(count)]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine whose GPUs a test chooses, with a GPU backend that opens no device."""
    monkeypatch.setattr(session, "check", lambda backend, cluster: None)
    return monkeypatch


def has(machine: pytest.MonkeyPatch, found: list[Gpu]) -> None:
    machine.setattr(gpus, "visible", lambda: found)


def test_gpus_are_counted_by_kind(machine: pytest.MonkeyPatch) -> None:
    has(machine, [*made_up(2), Gpu(2, "NVIDIA L4", 24 << 30, "580.65.06")])
    finding = check_gpus(GPU, HERE)
    assert finding.state is State.ok
    assert finding.found == "2 x NVIDIA H200 140 GiB, 1 x NVIDIA L4 24 GiB, driver 580.65.06"
    assert check_gpus(CPU, HERE).found.endswith("; backend=cpu uses none")


@pytest.mark.parametrize(("driver", "state"), [("570.124", State.warning), ("580.65.06", State.ok), ("?", State.ok)])
def test_an_old_driver_is_a_warning(machine: pytest.MonkeyPatch, driver: str, state: State) -> None:
    has(machine, made_up(1, driver))
    assert check_gpus(GPU, HERE).state is state
    assert check_gpus(CPU, HERE).state is State.ok, "what is not used may be old"


def test_only_a_gpu_backend_here_needs_a_gpu(machine: pytest.MonkeyPatch) -> None:
    has(machine, [])
    assert check_gpus(CPU, HERE).state is State.ok
    assert "cluster=scheduler" in check_gpus(GPU, THERE).found
    for check in (check_gpus, check_workers):
        with pytest.raises(TipcastError) as caught:
            check(GPU, HERE)
        assert caught.value.code == "C010"
        assert "backend=cpu" in caught.value.fix


@pytest.mark.parametrize(("there", "wanted", "found"), [(2, None, "2 workers on 2 GPUs"), (2, 1, "1 worker on 2 GPUs")])
def test_workers_on_gpus(machine: pytest.MonkeyPatch, there: int, wanted: int | None, found: str) -> None:
    has(machine, made_up(there))
    assert check_workers(GPU, LocalCluster("local", n_workers=wanted)).found == found


def test_more_workers_than_gpus_are_refused(machine: pytest.MonkeyPatch) -> None:
    has(machine, made_up(1))
    with pytest.raises(TipcastError, match=r"C010.*2 workers for 1 GPU\b.*cluster.n_workers=1"):
        check_workers(GPU, LocalCluster("local", n_workers=2))


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


def test_what_a_session_refuses_is_refused() -> None:
    with pytest.raises(TipcastError, match="C003.*memory_limit"):
        check_workers(CPU, LocalCluster("local", memory_limit="much"))
    with pytest.raises(TipcastError, match="C009"):
        check_workers(CPU, SchedulerCluster("scheduler", address="tcp://192.0.2.1:8786"))


def test_workers_elsewhere_are_not_started(machine: pytest.MonkeyPatch) -> None:
    finding = check_workers(CPU, ClusterSpec("slurm"))
    assert finding.state is State.ok
    assert "cluster=slurm" in finding.found
    assert not capacity.is_here(ClusterSpec("slurm"))
    assert capacity.is_here(ClusterSpec("local_cuda"))
