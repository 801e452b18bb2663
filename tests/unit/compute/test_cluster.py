"""Opening a cluster: where it listens, what its workers may see, and how it ends."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import psutil
import pytest
from distributed import Client, Status, Worker
from distributed.comm.core import CommClosedError
from tests.waiting import Turns, wait_until

from tipcast.compute import cluster, workers
from tipcast.compute.cluster import connect, shared_out
from tipcast.compute.forkserver import WAITING
from tipcast.compute.session import check, recorded, session
from tipcast.compute.workers import QUIET, at_work
from tipcast.config.errors import TipcastError
from tipcast.config.schema import BackendSpec, ClusterSpec, LocalCluster, SchedulerCluster

SECRET = "canary-of-a-token"  # noqa: S105 - of this test
HIDDEN = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI", "MLFLOW_S3_ENDPOINT_URL", "DATABRICKS_TOKEN")


def _listening() -> set[tuple[str, int]]:
    """Addresses and ports that this process and its children listen on."""
    own = psutil.Process()
    return {
        (listener.laddr.ip, listener.laddr.port)
        for process in [own, *own.children(recursive=True)]
        for listener in process.net_connections("inet")
        if listener.status == psutil.CONN_LISTEN
    }


BEFORE: set[tuple[str, int]] = set()
"""What other tests' servers listen on."""


@pytest.fixture(scope="module")
def processes() -> Iterator[Client]:
    """A cluster of one worker process, opened with MLflow's variables set."""
    BEFORE.update(_listening())
    with pytest.MonkeyPatch.context() as patch:
        for name in HIDDEN:
            patch.setenv(name, SECRET)
        for name in WAITING:
            patch.delenv(name, raising=False)
        own = {"OMP_WAIT_POLICY": "active", "MINE": "3"}
        with connect(LocalCluster("local", n_workers=1, threads_per_worker=1, environment=own), "pandas") as client:
            yield client


def test_every_listener_is_on_loopback(processes: Client) -> None:
    addresses = [address for address, _ in _listening() - BEFORE]
    assert len(addresses) >= 3, "scheduler, nanny and worker"
    assert set(addresses) <= {"127.0.0.1", "::1"}


def test_workers_know_nothing_of_mlflow_and_how_to_wait(processes: Client) -> None:
    (seen,) = processes.run(lambda: dict(os.environ)).values()
    assert [name for name in HIDDEN if seen.get(name)] == []
    assert (WAITING | {"OMP_WAIT_POLICY": "active", "MINE": "3"}).items() <= seen.items(), "the configuration's count"
    assert seen["OMP_NUM_THREADS"] == "1"
    assert "MALLOC_TRIM_THRESHOLD_" not in seen
    assert SECRET not in seen.values()


def test_workers_leave_ctrl_c_to_the_driver(processes: Client) -> None:
    (worker,) = processes.run(os.getpid).values()
    os.kill(worker, signal.SIGINT)
    assert processes.submit(os.getpid, pure=False).result() == worker


def test_workers_leave_all_words_to_the_driver(processes: Client) -> None:
    """Also one that was started again."""
    (before,) = processes.run(os.getpid).values()
    processes.restart()
    (after,) = processes.run(os.getpid).values()
    assert after != before
    levels = processes.run(lambda: [logging.getLogger(name).level for name in QUIET])
    assert list(levels.values()) == [[logging.CRITICAL] * len(QUIET)]


def test_a_worker_that_dies_comes_back() -> None:
    """However long it takes, and whenever it was killed."""
    closing = dask.config.set({"distributed.deploy.lost-worker-timeout": "1 ms"})
    with closing, connect(LocalCluster("local", n_workers=1, threads_per_worker=1), "pandas") as client:
        (nanny,) = client.cluster.workers.values()
        first = nanny.process
        (killed,) = client.run(os.getpid).values()
        os.kill(killed, signal.SIGKILL)

        def back() -> bool:
            assert client.cluster.workers, "the nanny was closed"
            return bool(set(client.run(os.getpid, on_error="ignore").values()) - {killed})

        wait_until(back)
        assert first.status is Status.stopped, "a start that was cut short takes no later one's word"


def test_the_report_is_one_file_of_what_went_well(
    processes: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that cannot be written fails nothing."""
    with pytest.raises(ZeroDivisionError), recorded(processes, tmp_path / "dask.html"):
        processes.submit(divmod, 1, 0).result()
    assert not list(tmp_path.iterdir())
    with recorded(processes, tmp_path / "dask.html"):
        processes.submit(sum, [1, 2]).result()
    assert "<script" in (tmp_path / "dask.html").read_text()
    with caplog.at_level("WARNING", logger="tipcast"), recorded(processes, tmp_path):
        assert processes.submit(sum, [1, 2]).result() == 3
    assert "no Dask performance report" in caplog.text


@pytest.mark.parametrize("problem", [RuntimeError, KeyboardInterrupt])
def test_a_busy_worker_does_not_hold_up_a_failure(problem: type[BaseException]) -> None:
    spec = LocalCluster("local", n_workers=1, threads_per_worker=1)
    with pytest.raises(problem), connect(spec, "pandas") as client:
        (pid,) = client.run(os.getpid).values()
        future = client.submit(lambda: threading.Event().wait())
        wait_until(lambda: future.key in next(iter(client.processing().values()), ()))
        raise problem
    assert not psutil.pid_exists(pid)
    assert client.cluster.status is Status.closed


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (CommClosedError("gone"), "K004"),
        (RuntimeError("Error during deserialization of the task graph. This frequently"), "K005"),
        (ModuleNotFoundError("No module named 'tipcast'"), "K005"),
        (RuntimeError("of something else"), "of something else"),
    ],
)
def test_failures_of_the_cluster_get_a_code(problem: Exception, told: str) -> None:
    spec = LocalCluster("local", n_workers=1, threads_per_worker=1, processes=False)
    with pytest.raises(TipcastError if told[0] == "K" else RuntimeError, match=told), connect(spec, "pandas"):
        raise problem


def _pause(dask_worker: Worker) -> None:
    dask_worker.status = Status.paused


@pytest.fixture
def never_paused_by_dask() -> Iterator[None]:
    """Workers that Dask neither pauses nor wakes."""
    with dask.config.set({"distributed.worker.memory.pause": False}):
        yield


def test_workers_that_stay_paused_end_the_job(monkeypatch: pytest.MonkeyPatch, never_paused_by_dask: None) -> None:
    monkeypatch.setattr(workers, "PAUSED_LOOK_S", 0.02)
    spec = LocalCluster("local", n_workers=2, threads_per_worker=1, wait_s=1.0, processes=False)
    with pytest.raises(TipcastError) as caught, connect(spec, "pandas") as client:
        client.run(_pause)
        client.submit(sum, [1, 2], pure=False).result()
    assert caught.value.code == "K003"
    assert "paused for lack of memory" in caught.value.what  # whoever notices first, Dask or we


@pytest.fixture
def local(never_paused_by_dask: None) -> Iterator[Client]:
    """One thread of a worker in this process."""
    with connect(LocalCluster("local", n_workers=1, threads_per_worker=1, processes=False), "pandas") as client:
        yield client


def test_paused_workers_are_given_up_when_tasks_have_waited_for_long(local: Client) -> None:
    turns, seconds = Turns(), [0.0]
    local.run(_pause)
    with pytest.raises(TipcastError, match="since 10 s"), at_work(local, 10, lambda: seconds[0], turns.wait):
        seconds[0] = 100
        turns.take()
        assert local.status == "running", "nothing is waited for"
        waiting = local.submit(sum, [1, 2], pure=False)
        wait_until(lambda: local.run_on_scheduler(workers._all_paused))
        seconds[0] = 109
        turns.take()
        assert local.status == "running", "not for long"
        seconds[0] = 111
        turns.give()
        waiting.result()


def test_paused_workers_finish_the_tasks_that_run(local: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    running = local.submit(lambda: wait_until(gate.exists), pure=False)

    def at(dask_scheduler: Any) -> tuple[str, bool]:
        (worker,) = dask_scheduler.workers.values()
        return worker.status.name, bool(worker.executing)

    wait_until(lambda: local.run_on_scheduler(at) == ("running", True))
    local.run(_pause)
    waiting = local.submit(sum, [1, 2], pure=False)
    wait_until(lambda: local.run_on_scheduler(at)[0] == "paused")
    assert not local.run_on_scheduler(workers._all_paused), "it is at work"
    gate.touch()
    assert running.result()
    wait_until(lambda: local.run_on_scheduler(workers._all_paused))
    assert not waiting.done()


def test_a_session_says_what_it_has() -> None:
    spec = LocalCluster("local", n_workers=1, threads_per_worker=2, processes=False, worker_ttl_s=45.0)
    with session(BackendSpec("cpu"), spec) as opened:
        assert (opened.device, opened.n_workers, opened.n_threads) == ("cpu", 1, 2)
        assert dask.config.get("dataframe.backend") == "pandas"
        assert dask.config.get("distributed.scheduler.worker-ttl") == "45.0 s"
    assert opened.client.status == "closed"


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("tcp://10.1.2.3:8786", "C009"),
        ("10.1.2.3", "C009"),
        ("tcp://127.0.0.1", None),
        ("localhost:8786", None),
        ("tcp://[::1]:8786", None),
        ("tls://10.1.2.3:8786", "C004"),
    ],
)
def test_only_the_loopback_goes_without_tls(address: str, code: str | None) -> None:
    spec = SchedulerCluster("scheduler", address=address)
    with pytest.raises(TipcastError) if code else contextlib.nullcontext() as caught:
        check(BackendSpec("cpu"), spec)
    assert code is None or caught.value.code == code


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(TipcastError, match=r"C003.*unknown backend 'abacus'"):
        check(BackendSpec("abacus"), LocalCluster("local"))
    with pytest.raises(TipcastError, match=r"memory_limit: must be a share or a size, got '8 gigs'\. Fix: .*8GiB"):
        check(BackendSpec("cpu"), LocalCluster("local", memory_limit="8 gigs"))
    with pytest.raises(TipcastError, match=r"C003.*cluster\.environment: cannot be combined with"):
        check(BackendSpec("cpu"), LocalCluster("local", processes=False, environment={"A": "1"}))
    with pytest.raises(TipcastError, match=r"C003.*cluster\.kind"):
        check(BackendSpec("cpu"), ClusterSpec("cloud"))


def test_cores_are_those_of_this_process() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cluster.cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert 1 <= cluster.cores() <= len(before), "a container may be granted fewer"


@pytest.mark.parametrize(
    ("there", "n_workers", "threads", "expected"),
    [
        (2, None, None, (1, 2)),
        (16, None, None, (1, 16)),
        (17, None, None, (2, 8)),
        (64, None, None, (4, 16)),
        (2, 4, None, (4, 1)),
        (8, 2, None, (2, 4)),
        (8, None, 3, (1, 3)),
        (8, 2, 16, (2, 16)),
    ],
)
def test_cores_are_shared_out(
    monkeypatch: pytest.MonkeyPatch, there: int, n_workers: int | None, threads: int | None, expected: tuple[int, int]
) -> None:
    monkeypatch.setattr(cluster, "cores", lambda: there)
    assert shared_out(LocalCluster("local", n_workers=n_workers, threads_per_worker=threads)) == expected
