"""A cluster that does not close by itself is left behind in time, and its workers are gone."""

import sys
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest
from distributed import Client, LocalCluster, Nanny, Status
from tests.conftest import NO_PAGES, python
from tests.waiting import WATCHDOG_S, wait_until

from tipcast.compute import cluster, forkserver
from tipcast.compute.forkserver import WAITING
from tipcast.config import schema


def opened() -> AbstractContextManager[Client]:
    """A cluster of one worker process."""
    return cluster.opened(schema.LocalCluster("local", n_workers=1, threads_per_worker=1))


def processes(client: Client) -> list[psutil.Process]:
    return [psutil.Process(nanny.pid) for nanny in client.cluster.workers.values()]


def gone(of_workers: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(of_workers, timeout=WATCHDOG_S)[1]


def test_workers_are_known_whenever_the_client_looks_by_itself() -> None:
    """Its own look, at its own times, asks for none of them."""
    with LocalCluster(processes=False, n_workers=2, **NO_PAGES) as started, Client(started) as client:
        assert not client.scheduler_info(n_workers=0)["workers"]
        assert set(cluster.known(client)) == set(client.nthreads())


def test_closing_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CLOSE_S", 1.0)
    monkeypatch.setattr(cluster.Nanny, "kill", Nanny.kill)
    with opened() as client:
        of_workers, started = processes(client), client.cluster
        (nanny,) = started.workers.values()
        nanny.process.status = Status.starting  # as one is left whose worker dies while it starts
        nanny.process.running.clear()
    assert gone(of_workers)
    assert not started.shutdown_on_close


def test_failure_starts_no_other_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nanny that heard of its worker's death before it is closed would start one, and closing wait for it."""
    kill = cluster._kill

    def heard(started: LocalCluster) -> None:
        kill(started)
        (nanny,) = started.workers.values()

        def ended() -> bool:
            assert nanny.status is not Status.starting
            return nanny.status is Status.closed

        wait_until(ended)

    monkeypatch.setattr(cluster, "_kill", heard)
    with pytest.raises(RuntimeError, match="mine"), opened():
        raise RuntimeError("mine")


def test_ctrl_c_while_it_closes_leaves_nothing_to_close_later() -> None:
    with pytest.raises(KeyboardInterrupt), opened() as client:
        of_workers, started = processes(client), client.cluster
        close = started.close

        def interrupted(timeout: float) -> None:
            del started.close
            raise KeyboardInterrupt

        started.close = interrupted
    assert gone(of_workers)
    assert not started.shutdown_on_close
    close(timeout=10)


@pytest.mark.parametrize("given", [{}, {"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "", "GOMP_SPINCOUNT": "7"}])
def test_what_the_user_says_counts(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WAITING:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert forkserver.waiting() == (given or WAITING)


PROGRAM = """
import importlib, os
from pathlib import Path
from tipcast.compute import forkserver
from tipcast.compute.session import session
from tipcast.config.schema import BackendSpec, LocalCluster
if __name__ == '__main__':
    for name in forkserver.LIBRARIES:
        importlib.import_module(name)
    before = dict(os.environ)
    spec = LocalCluster('local', n_workers=2, threads_per_worker=1, environment={'MALLOC_ARENA_MAX': '2'})
    forkserver.own_process = True
    forkserver.start_ahead(spec, ['no.such.module'])
    assert dict(os.environ) == before
    with session(BackendSpec('cpu'), spec) as opened:
        seen = opened.client.run(lambda: (os.getppid(), dict(os.environ)))
        (server,) = {Path(f'/proc/{parent}/environ').read_text() for parent, _ in seen.values()}
    assert 'MALLOC_ARENA_MAX=2' in server.split(chr(0)), 'what is read when a library is loaded'
    parents, environments = zip(*seen.values())
    assert len(set(parents)) == 1 and parents[0] != os.getpid(), 'both are children of the server'
    for environment in environments:
        assert 'secret' not in environment.values(), environment
        assert environment['OMP_NUM_THREADS'] == '1' and environment['MALLOC_ARENA_MAX'] == '2'
"""


def test_the_fork_server_leaves_out_secrets_and_the_driver_s_environment(tmp_path: Path) -> None:
    """In a process of its own, as the server stays with whoever has started it."""
    ended = python(tmp_path, "-c", PROGRAM, MLFLOW_TRACKING_TOKEN="secret")
    assert ended.returncode == 0, ended.stderr


def test_clusters_within_each_other_leave_the_main_module_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)  # as of a script
    with cluster._main_not_run():
        assert main.__spec__.name == "tipcast.__main__", "workers would run the script"
        with cluster._main_not_run():
            pass
        assert main.__spec__ is not None, "the second would run the script"
    assert main.__spec__ is None
