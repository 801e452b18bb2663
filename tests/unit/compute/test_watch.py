"""What ends a wait for Dask: a scheduler or worker that is frozen, workers all paused or gone."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import CancelledError, Client, LocalCluster, Status, Variable, Worker, wait
from tests.conftest import NO_PAGES
from tests.waiting import Turns, wait_until

from tipcast.compute import cluster, scheduler_cluster, watch
from tipcast.compute.scheduler_cluster import open_scheduler
from tipcast.compute.session import open_session
from tipcast.config import schema
from tipcast.config.errors import TipcastError
from tipcast.config.schema import BackendSpec

CPU = BackendSpec("cpu")


def one_worker(**more: Any) -> schema.LocalCluster:
    """A cluster of one worker of one thread."""
    return schema.LocalCluster(**{"kind": "local", "n_workers": 1, "threads_per_worker": 1, **more})


def elsewhere(address: str, **more: Any) -> schema.SchedulerCluster:
    """A cluster that this job has not started."""
    return schema.SchedulerCluster("scheduler", address=address, **more)


def none_at_work(client: Client) -> object:
    """Ask the scheduler, which need not load this module for it."""
    return client.run_on_scheduler(lambda dask_scheduler: watch._none_at_work(dask_scheduler))


def _pause(dask_worker: Worker) -> None:
    dask_worker.status = Status.paused


def test_a_task_runs_elsewhere_after_all_workers_were_gone() -> None:
    """Dask would leave it waiting for a worker that never comes back."""
    with (
        LocalCluster(n_workers=0, processes=False, **NO_PAGES) as local,
        Client(local) as client,
        watch.at_work(client, wait_s=60, worker_ttl_s=60),
    ):
        gone = ["tcp://127.0.0.1:1"]
        task = client.submit(abs, -3, workers=gone, allow_other_workers=True)
        wait_until(lambda: client.run_on_scheduler(_unrunnable) == 1)
        local.scale(1)
        assert task.result(timeout=30) == 3


def test_a_lost_worker_is_named(short_lived: Client, caplog: pytest.LogCaptureFixture) -> None:
    killed, retired = cluster.worker_names(short_lived)
    process = short_lived.run(os.getpid, workers=[killed])[killed]
    with watch.naming_lost_workers(short_lived):
        short_lived.retire_workers([retired])
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: "worker lost" in caplog.text)
    lines = [record.getMessage() for record in caplog.records if record.name == "tipcast"]
    assert lines == [f"worker lost: {killed}"]


def _unrunnable(dask_scheduler: Any) -> int:
    return len(dask_scheduler.unrunnable)


@pytest.fixture
def never_paused_by_dask() -> Iterator[None]:
    """Workers that Dask neither pauses nor wakes."""
    with dask.config.set({"distributed.worker.memory.pause": False}):
        yield


def test_workers_that_stay_paused_end_the_job(
    monkeypatch: pytest.MonkeyPatch, never_paused_by_dask: None
) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.02)
    with (
        # whoever notices first, Dask or we
        pytest.raises(TipcastError, match="K003.*paused because memory is low"),
        open_session(CPU, one_worker(n_workers=2, wait_s=1.0, processes=False)) as opened,
    ):
        opened.client.run(_pause)
        opened.client.submit(sum, [1, 2], pure=False).result()


def test_paused_workers_are_given_up_when_tasks_wait_for_long(
    never_paused_by_dask: None, tmp_path: Path
) -> None:
    """Not while a task runs on."""

    def at(dask_scheduler: Any) -> tuple[str, bool]:
        (worker,) = dask_scheduler.workers.values()
        return worker.status.name, bool(worker.executing)

    turns = Turns()
    seconds = [0.0]
    gate = tmp_path / "gate"
    with open_session(CPU, one_worker(processes=False)) as opened:
        local = opened.client
        running = local.submit(lambda: wait_until(gate.exists), pure=False)
        wait_until(lambda: local.run_on_scheduler(at) == ("running", True))
        local.run(_pause)
        wait_until(lambda: local.run_on_scheduler(at)[0] == "paused")
        with (
            pytest.raises(TipcastError, match="for 10 s"),
            watch.at_work(local, 10, 60, lambda: seconds[0], turns.wait),
        ):
            waiting = local.submit(sum, [1, 2], pure=False)
            seconds[0] = 100
            turns.take()
            assert local.status == "running", "it is at work"
            gate.touch()
            assert running.result()
            wait_until(lambda: none_at_work(local))
            seconds[0] = 109
            turns.take()
            assert local.status == "running", "not for long"
            assert not waiting.done()
            seconds[0] = 111
            turns.give()
            waiting.result()


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str]]:
    """The process of a scheduler without workers, and its address."""
    file = tmp_path_factory.mktemp("scheduler") / "scheduler.json"
    words = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    command = [sys.executable, "-m", "dask", "scheduler", *words]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: file.exists() and file.read_text().endswith("}"))
            yield process.pid, json.loads(file.read_text())["address"]
        finally:
            process.kill()


@pytest.fixture
def frozen(scheduler: tuple[int, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of a scheduler that has then been frozen, and is soon given up."""
    monkeypatch.setattr(watch, "LOOK_S", 0.02)
    monkeypatch.setattr(watch, "SILENT_S", 1.0)
    process, address = scheduler
    try:
        with open_scheduler(elsewhere(address)) as client:
            os.kill(process, signal.SIGSTOP)
            yield client
    finally:
        os.kill(process, signal.SIGCONT)


WAITS: dict[str, Callable[[Client], object]] = {
    "for_workers": lambda client: cluster.wait(client, 1, 60, "start one"),
    "result": lambda client: client.submit(sum, [1], pure=False).result(),
    "gather": lambda client: client.gather(client.map(abs, [1, 2], pure=False)),
    "wait": lambda client: wait(client.map(abs, [1, 2], pure=False)),
    "completed": lambda client: list(cluster.completed(client, client.map(abs, [1], pure=False))),
    "worker_info": cluster.worker_info,
    "run": lambda client: client.run(os.getpid),
    "variable": lambda client: Variable("checkpoint", client).get(),
    "much_to_send": lambda client: client.submit(len, os.urandom(50_000_000)).result(),
}


@pytest.mark.filterwarnings("ignore:Sending large graph")
@pytest.mark.parametrize("name", WAITS)
def test_a_frozen_scheduler_ends_every_wait(name: str, frozen: Client) -> None:
    with (
        pytest.raises(TipcastError, match="K004.* has not answered for 1 s"),
        watch.at_work(frozen, 60, 60),
    ):
        WAITS[name](frozen)
    assert frozen.status == "closed"


@pytest.mark.filterwarnings("ignore:Sending large graph")
def test_a_client_closes_though_its_scheduler_is_frozen(
    frozen: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it has much to send."""
    monkeypatch.setattr(scheduler_cluster, "CLOSE_S", 1.0)
    task = frozen.submit(len, os.urandom(50_000_000))
    scheduler_cluster._close(frozen)
    assert (frozen.status, task.status) == ("closed", "cancelled")


def test_ctrl_c_does_not_wait_for_a_frozen_scheduler(
    frozen: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails while it unwinds does not replace it."""
    monkeypatch.setattr(watch, "SILENT_S", 1e9)
    monkeypatch.setattr(watch, "ENDING_S", 1.0)
    with pytest.raises(KeyboardInterrupt), watch.at_work(frozen, 60, 60):
        try:
            raise KeyboardInterrupt
        finally:
            frozen.run(os.getpid)


@pytest.fixture
def frozen_worker() -> Iterator[tuple[Client, str]]:
    """A client of a scheduler elsewhere, and the address of its one worker, which is frozen."""
    options = {"n_workers": 1, "threads_per_worker": 1, **NO_PAGES}
    with (
        LocalCluster(processes=True, host="127.0.0.1", **options) as local,
        Client(local.scheduler_address, set_as_default=False) as client,
    ):
        ((address, process),) = client.run(os.getpid).items()
        os.kill(process, signal.SIGSTOP)
        yield client, address


def test_a_frozen_worker_is_replaced(
    frozen_worker: tuple[Client, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Though the scheduler itself would wait for minutes."""
    monkeypatch.setattr(watch, "LOOK_S", 0.02)
    client, address = frozen_worker
    with watch.at_work(client, 60, 1):
        assert client.submit(sum, [1, 2], pure=False).result() == 3
    assert f"no heartbeat for 1 s, restarted: {address}" in caplog.messages
    assert address not in cluster.worker_info(client)


def test_a_worker_that_computes_for_others_is_left_to_them(
    frozen_worker: tuple[Client, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that holds Python's lock silences a worker too."""
    monkeypatch.setattr(watch, "HEARTBEATS", 0)
    client, address = frozen_worker
    task = client.submit(sum, [1, 2], pure=False)
    wait_until(lambda: any(client.processing().values()))
    with Client(client.scheduler.address, set_as_default=False) as other:
        look = other.run_on_scheduler(watch._look, other.id, 0.0)
        assert look == (False, [])
        assert client.run_on_scheduler(watch._look, client.id, 0.0) == (False, [address])
    assert task.result() == 3


def test_no_worker_is_at_work_where_all_are_gone(scheduler: tuple[int, str]) -> None:
    """Dask itself would wait for ever, unless its scheduler was told otherwise."""
    turns = Turns()
    seconds = [0.0]
    with (
        open_scheduler(elsewhere(scheduler[1])) as client,
        pytest.raises(TipcastError, match="K003.*no worker at work for 10 s.*gone, or paused"),
        watch.at_work(client, 10, 60, lambda: seconds[0], turns.wait),
    ):
        task = client.submit(sum, [1, 2], pure=False)
        wait_until(lambda: none_at_work(client))
        turns.take()
        seconds[0] = 11
        turns.give()
        task.result()


def test_what_waits_for_an_abandoned_client_ends_even_if_closing_fails(
    scheduler: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(fast: bool) -> None:
        raise RuntimeError("while it closes")

    with open_scheduler(elsewhere(scheduler[1])) as client:
        task = client.submit(sum, [1, 2], pure=False)
        with monkeypatch.context() as patch:
            patch.setattr(client, "_close", fail)
            scheduler_cluster.abandon(client)
        with pytest.raises(CancelledError):
            task.result(timeout=30)
