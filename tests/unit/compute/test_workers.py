"""A cluster that does not close by itself is left behind in time, and its workers are gone."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
from distributed import Client, LocalCluster, Status
from tests.conftest import NO_PAGES, python
from tests.waiting import WATCHDOG_S, wait_until

from tipcast.compute import workers as worker_processes
from tipcast.compute.forkserver import WAITING, waiting


def cluster() -> LocalCluster:
    return LocalCluster(n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0")


def workers(started: LocalCluster) -> list[psutil.Process]:
    return [psutil.Process(nanny.pid) for nanny in started.workers.values()]


def gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=WATCHDOG_S)[1]


def test_workers_are_known_whenever_the_client_looks_by_itself() -> None:
    """Its own look, at its own times, asks for none of them."""
    with LocalCluster(processes=False, n_workers=2, **NO_PAGES) as started, Client(started) as client:
        assert not client.scheduler_info(n_workers=0)["workers"]
        assert set(worker_processes.known(client)) == set(client.nthreads())


def test_closing_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_processes, "CLOSE_S", 1.0)
    with worker_processes.closed(cluster, "here") as (started, _):
        processes = workers(started)
        (nanny,) = started.workers.values()
        nanny.process.status = Status.starting  # as one is left whose worker dies while it starts
        nanny.process.running.clear()
    assert gone(processes)
    assert not started.shutdown_on_close


def test_failure_starts_no_other_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nanny that heard of its worker's death before it is closed would start one, and closing wait for it."""
    kill = worker_processes._kill

    def heard(cluster: LocalCluster) -> None:
        kill(cluster)
        (nanny,) = cluster.workers.values()

        def ended() -> bool:
            assert nanny.status is not Status.starting
            return nanny.status is Status.closed

        wait_until(ended)

    monkeypatch.setattr(worker_processes, "_kill", heard)
    with pytest.raises(RuntimeError, match="mine"), worker_processes.closed(cluster, "here"):
        raise RuntimeError("mine")


def test_ctrl_c_while_it_closes_leaves_nothing_to_close_later() -> None:
    with pytest.raises(KeyboardInterrupt), worker_processes.closed(cluster, "here") as (started, _):
        processes = workers(started)
        close = started.close

        def interrupted(timeout: float) -> None:
            del started.close
            raise KeyboardInterrupt

        started.close = interrupted
    assert gone(processes)
    assert not started.shutdown_on_close
    close(timeout=10)


@pytest.mark.parametrize(
    "given",
    [{}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "", "GOMP_SPINCOUNT": "7"}],
)
def test_what_the_user_says_counts(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WAITING:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert waiting() == (given or WAITING)


def test_the_fork_server_leaves_out_secrets_and_the_driver_s_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a process of its own, as the server stays with whoever has started it."""
    program = (
        "import importlib, os\n"
        "from pathlib import Path\n"
        "from tipcast.compute import forkserver\n"
        "from tipcast.compute.cluster import connect\n"
        "from tipcast.config.schema import LocalCluster\n"
        "if __name__ == '__main__':\n"
        "    for name in forkserver.LIBRARIES:\n"
        "        importlib.import_module(name)\n"
        "    before = dict(os.environ)\n"
        "    spec = LocalCluster('local', n_workers=2, threads_per_worker=1, environment={'MALLOC_ARENA_MAX': '2'})\n"
        "    forkserver.own_process = True\n"
        "    forkserver.start_ahead(spec, ['no.such.module'])\n"
        "    assert dict(os.environ) == before\n"
        "    with connect(spec, 'pandas') as client:\n"
        "        seen = client.run(lambda: (os.getppid(), dict(os.environ)))\n"
        "        (server,) = {Path(f'/proc/{parent}/environ').read_text() for parent, _ in seen.values()}\n"
        "    assert 'MALLOC_ARENA_MAX=2' in server.split(chr(0)), 'what is read when a library is loaded'\n"
        "    parents, environments = zip(*seen.values())\n"
        "    assert len(set(parents)) == 1 and parents[0] != os.getpid(), 'both are children of the server'\n"
        "    for environment in environments:\n"
        "        assert 'secret' not in environment.values(), environment\n"
        "        assert environment['OMP_NUM_THREADS'] == '1' and environment['MALLOC_ARENA_MAX'] == '2'\n"
    )
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    ended = python(tmp_path, "-c", program)
    assert ended.returncode == 0, ended.stderr


def test_clusters_within_each_other_leave_the_main_module_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)  # as of a script
    with worker_processes._main_not_run():
        assert main.__spec__.name == "tipcast.__main__", "workers would run the script"
        with worker_processes._main_not_run():
            pass
        assert main.__spec__ is not None, "the second would run the script"
    assert main.__spec__ is None
