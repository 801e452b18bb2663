"""Opening a cluster: what is refused, where it listens, what its workers may see, and how it ends."""

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

from tipcast.compute import cluster
from tipcast.compute.cluster import shared_out
from tipcast.compute.forkserver import WAITING
from tipcast.compute.session import check, recorded, session
from tipcast.config.errors import TipcastError
from tipcast.config.schema import BackendSpec, ClusterSpec, LocalCluster, LocalCudaCluster, SchedulerCluster

SECRET = "canary-of-a-token"  # noqa: S105 - of this test
HIDDEN = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI", "MLFLOW_S3_ENDPOINT_URL", "DATABRICKS_TOKEN")
CPU, GPU = BackendSpec("cpu"), BackendSpec("gpu")


def one(**more: Any) -> LocalCluster:
    """A cluster of one worker of one thread."""
    return LocalCluster(**{"kind": "local", "n_workers": 1, "threads_per_worker": 1, **more})


def _listening() -> set[tuple[str, int]]:
    """Addresses and ports that this process and its children listen on."""
    own = psutil.Process()
    return {
        (listener.laddr.ip, listener.laddr.port)
        for process in [own, *own.children(recursive=True)]
        for listener in process.net_connections("inet")
        if listener.status == psutil.CONN_LISTEN
    }


@pytest.fixture(scope="module")
def processes() -> Iterator[Client]:
    """A cluster of one worker process, opened with MLflow's variables set."""
    with pytest.MonkeyPatch.context() as patch:
        for name in HIDDEN:
            patch.setenv(name, SECRET)
        for name in WAITING:
            patch.delenv(name, raising=False)
        before = _listening()
        with session(CPU, one(environment={"OMP_WAIT_POLICY": "active", "MINE": "3"})) as opened:
            addresses = [address for address, _ in _listening() - before]
            assert len(addresses) >= 3, "scheduler, nanny and worker"
            assert set(addresses) <= {"127.0.0.1", "::1"}
            yield opened.client


def test_workers_know_nothing_of_mlflow_and_how_to_wait(processes: Client) -> None:
    (seen,) = processes.run(lambda: dict(os.environ)).values()
    assert [name for name in HIDDEN if seen.get(name)] == []
    assert (WAITING | {"OMP_WAIT_POLICY": "active", "MINE": "3"}).items() <= seen.items(), "the configuration's count"
    assert seen["OMP_NUM_THREADS"] == "1"
    assert "MALLOC_TRIM_THRESHOLD_" not in seen
    assert SECRET not in seen.values()


def test_workers_leave_ctrl_c_and_all_words_to_the_driver(processes: Client) -> None:
    """Also one that was started again."""
    (before,) = processes.run(os.getpid).values()
    os.kill(before, signal.SIGINT)
    assert processes.submit(os.getpid, pure=False).result() == before
    processes.restart()
    ((after, levels),) = processes.run(
        lambda: (os.getpid(), {logging.getLogger(name).level for name in cluster.QUIET})
    ).values()
    assert after != before
    assert levels == {logging.CRITICAL}


def test_a_worker_that_dies_comes_back() -> None:
    """However long it takes, and whenever it was killed."""
    closing = dask.config.set({"distributed.deploy.lost-worker-timeout": "1 ms"})
    with closing, session(CPU, one()) as opened:
        client = opened.client
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
    with pytest.raises(problem), session(CPU, one()) as opened:
        client = opened.client
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
        (MemoryError("of the driver"), "of the driver"),
    ],
)
def test_failures_of_the_cluster_get_a_code(problem: Exception, told: str) -> None:
    spec = one(threads_per_worker=2, processes=False, worker_ttl_s=45.0)
    with pytest.raises(TipcastError if told[0] == "K" else type(problem), match=told), session(CPU, spec) as opened:
        assert (opened.device, opened.n_workers, opened.n_threads) == ("cpu", 1, 2)
        assert dask.config.get("dataframe.backend") == "pandas"
        assert dask.config.get("distributed.scheduler.worker-ttl") == "45.0 s"
        raise problem
    assert opened.client.status == "closed"


def _pause(dask_worker: Worker) -> None:
    dask_worker.status = Status.paused


@pytest.fixture
def never_paused_by_dask() -> Iterator[None]:
    """Workers that Dask neither pauses nor wakes."""
    with dask.config.set({"distributed.worker.memory.pause": False}):
        yield


def test_workers_that_stay_paused_end_the_job(monkeypatch: pytest.MonkeyPatch, never_paused_by_dask: None) -> None:
    monkeypatch.setattr(cluster, "PAUSED_LOOK_S", 0.02)
    with (
        pytest.raises(TipcastError, match="K003.*paused for lack of memory"),  # whoever notices first, Dask or we
        session(CPU, one(n_workers=2, wait_s=1.0, processes=False)) as opened,
    ):
        opened.client.run(_pause)
        opened.client.submit(sum, [1, 2], pure=False).result()


def test_paused_workers_are_given_up_when_tasks_have_waited_for_long(
    never_paused_by_dask: None, tmp_path: Path
) -> None:
    """Not while a task runs on."""

    def at(dask_scheduler: Any) -> tuple[str, bool]:
        (worker,) = dask_scheduler.workers.values()
        return worker.status.name, bool(worker.executing)

    turns, seconds, gate = Turns(), [0.0], tmp_path / "gate"
    with session(CPU, one(processes=False)) as opened:
        local = opened.client
        running = local.submit(lambda: wait_until(gate.exists), pure=False)
        wait_until(lambda: local.run_on_scheduler(at) == ("running", True))
        local.run(_pause)
        wait_until(lambda: local.run_on_scheduler(at)[0] == "paused")
        with (
            pytest.raises(TipcastError, match="since 10 s"),
            cluster.at_work(local, 10, lambda: seconds[0], turns.wait),
        ):
            waiting = local.submit(sum, [1, 2], pure=False)
            seconds[0] = 100
            turns.take()
            assert local.status == "running", "it is at work"
            gate.touch()
            assert running.result()
            wait_until(lambda: local.run_on_scheduler(cluster._all_paused))
            seconds[0] = 109
            turns.take()
            assert local.status == "running", "not for long"
            assert not waiting.done()
            seconds[0] = 111
            turns.give()
            waiting.result()


def scheduler(address: str) -> SchedulerCluster:
    return SchedulerCluster("scheduler", address=address)


@pytest.mark.parametrize(
    ("backend", "spec", "told"),
    [
        (CPU, scheduler("tcp://10.1.2.3:8786"), "C009"),
        (CPU, scheduler("10.1.2.3"), "C009"),
        (CPU, scheduler("tcp://127.0.0.1"), None),
        (CPU, scheduler("localhost:8786"), None),
        (CPU, scheduler("tcp://[::1]:8786"), None),
        (CPU, scheduler("tls://10.1.2.3:8786"), "C004"),
        (BackendSpec("abacus"), one(), "C003.*unknown backend 'abacus'"),
        (CPU, one(memory_limit="8 gigs"), r"memory_limit: must be a share or a size, got '8 gigs'\. Fix: .*8GiB"),
        (CPU, one(processes=False, environment={"A": "1"}), r"C003.*cluster\.environment: cannot be combined with"),
        (CPU, one(n_workers=100_000), r"C003.*cluster\.n_workers: must be at most"),
        (CPU, ClusterSpec("cloud"), r"C003.*cluster\.kind"),
        (CPU, one(kind="nope"), r"C003.*cluster\.kind.*must be local, got nope.*cluster=local"),
        (CPU, LocalCudaCluster("local_cuda"), "C003.*cluster=local_cuda.*use cluster=local"),
        (GPU, one(), "C003.*cluster=local.*use cluster=local_cuda"),
    ],
)
def test_what_is_refused(backend: BackendSpec, spec: ClusterSpec, told: str | None) -> None:
    with pytest.raises(TipcastError, match=told) if told else contextlib.nullcontext():
        check(backend, spec)


@pytest.mark.parametrize(
    ("there", "n_workers", "threads", "expected"),
    [
        (2, None, None, (1, 2)),
        (16, None, None, (1, 16)),
        (17, None, None, (2, 8)),
        (64, None, None, (4, 16)),
        (2, 4, None, (4, 1)),
        (8, None, 3, (1, 3)),
        (8, 2, 16, (2, 16)),
    ],
)
def test_cores_are_shared_out(
    monkeypatch: pytest.MonkeyPatch, there: int, n_workers: int | None, threads: int | None, expected: tuple[int, int]
) -> None:
    monkeypatch.setattr(cluster, "cores", lambda: there)
    assert shared_out(LocalCluster("local", n_workers=n_workers, threads_per_worker=threads)) == expected
