"""Clusters: what is refused, where they listen, what their workers may see, schedulers elsewhere,
and every end.
"""

import contextlib
import json
import logging
import os
import re
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dask
import psutil
import pytest
from distributed import Client, LocalCluster, Nanny, Status
from distributed.comm.core import CommClosedError
from distributed.security import Security
from tests.conftest import NO_PAGES, python
from tests.waiting import WATCHDOG_S, wait_until

from tipcast.compute import cluster, forkserver, gpus, local_cluster
from tipcast.compute import session as sessions
from tipcast.compute.forkserver import WAITING
from tipcast.compute.frames import CpuFrames
from tipcast.compute.session import check, open_session, write_performance_report
from tipcast.config import schema
from tipcast.config.errors import TipcastError
from tipcast.config.schema import BackendSpec, ClusterSpec, LocalCudaCluster, SchedulerCluster

SECRET = "canary-of-a-token"  # noqa: S105 - of this test
HIDDEN = (
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_RUN_ID",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_S3_ENDPOINT_URL",
    "DATABRICKS_TOKEN",
)
CPU, GPU = BackendSpec("cpu"), BackendSpec("gpu")
cuda = partial(LocalCudaCluster, "local_cuda")


def one_worker(**more: Any) -> schema.LocalCluster:
    """A cluster of one worker of one thread."""
    return schema.LocalCluster(**{"kind": "local", "n_workers": 1, "threads_per_worker": 1, **more})


def _listening() -> set[tuple[str, int]]:
    """Addresses and ports that this process and its children listen on."""
    this = psutil.Process()
    sockets = [
        socket
        for one in (this, *this.children(recursive=True))
        for socket in one.net_connections("inet")
    ]
    return {tuple(socket.laddr) for socket in sockets if socket.status == psutil.CONN_LISTEN}


@dataclass(frozen=True)
class Observed:
    """What a cluster of one worker process did, which was opened with MLflow's variables set."""

    addresses: list[str]
    """On which its processes listened."""
    variables: dict[str, str]
    """Of the worker."""
    files_of_failed_report: list[Path]
    answer_without_report: int
    """Of a task whose report could not be written."""
    warnings: str
    pid: int
    pid_after_ctrl_c: int
    pid_after_restart: int
    levels_after_restart: set[int]
    """Of the loggers that the driver speaks for."""


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    variables = {"OMP_WAIT_POLICY": "active", "MINE": "3"}
    before = _listening()
    with pytest.MonkeyPatch.context() as patch:
        for name in HIDDEN:
            patch.setenv(name, SECRET)
        for name in WAITING:
            patch.delenv(name, raising=False)
        with open_session(CPU, one_worker(environment=variables, dashboard=True)) as opened:
            addresses = [address for address, _ in _listening() - before]
            return _observe(opened.client, addresses, tmp_path_factory.mktemp("report"))


def _observe(client: Client, addresses: list[str], folder: Path) -> Observed:
    (variables,) = client.run(lambda: dict(os.environ)).values()

    with pytest.raises(ZeroDivisionError), write_performance_report(client, folder / "dask.html"):
        client.submit(divmod, 1, 0).result()
    files = list(folder.iterdir())
    # a folder: it cannot be written
    with _warnings() as lines, write_performance_report(client, folder):
        answer = client.submit(sum, [1, 2]).result()

    (pid,) = client.run(os.getpid).values()
    os.kill(pid, signal.SIGINT)
    after_ctrl_c = client.submit(os.getpid, pure=False).result()
    client.restart()
    levels = client.run(
        lambda: (
            os.getpid(),
            {logging.getLogger(name).level for name in local_cluster.NOISY_LOGGERS},
        )
    )
    ((after_restart, level),) = levels.values()
    return Observed(
        addresses,
        variables,
        files,
        answer,
        "\n".join(lines),
        pid,
        after_ctrl_c,
        after_restart,
        level,
    )


@contextlib.contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect what tipcast warns of."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("tipcast")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def test_a_local_cluster_listens_on_this_machine_alone(observed: Observed) -> None:
    """Scheduler, its dashboard, nanny and worker."""
    assert len(observed.addresses) >= 4
    assert set(observed.addresses) <= {"127.0.0.1", "::1"}


def test_a_worker_process_gets_no_secret(observed: Observed) -> None:
    assert [name for name in HIDDEN if observed.variables.get(name)] == []
    assert SECRET not in observed.variables.values()


def test_a_worker_process_waits_as_configured(observed: Observed) -> None:
    configured = WAITING | {"OMP_WAIT_POLICY": "active", "MINE": "3"}
    assert configured.items() <= observed.variables.items()
    assert observed.variables["OMP_NUM_THREADS"] == "1"
    assert "MALLOC_TRIM_THRESHOLD_" not in observed.variables


def test_work_that_fails_leaves_no_report(observed: Observed) -> None:
    assert observed.files_of_failed_report == []


def test_work_goes_on_where_its_report_cannot_be_written(observed: Observed) -> None:
    assert observed.answer_without_report == 3
    assert "no Dask performance report" in observed.warnings


def test_a_worker_process_leaves_ctrl_c_to_the_driver(observed: Observed) -> None:
    assert observed.pid_after_ctrl_c == observed.pid


def test_a_worker_process_that_is_started_again_leaves_all_words_to_the_driver(
    observed: Observed,
) -> None:
    assert observed.pid_after_restart != observed.pid
    assert observed.levels_after_restart == {logging.CRITICAL}


def test_a_worker_that_dies_comes_back() -> None:
    """However long it takes, and whenever it was killed."""
    closing = dask.config.set({"distributed.deploy.lost-worker-timeout": "1 ms"})
    with closing, open_session(CPU, one_worker()) as opened:
        client = opened.client
        (nanny,) = client.cluster.workers.values()
        first = nanny.process
        (killed,) = client.run(os.getpid).values()
        os.kill(killed, signal.SIGKILL)

        def back() -> bool:
            assert client.cluster.workers, "the nanny was closed"
            return bool(set(client.run(os.getpid, on_error="ignore").values()) - {killed})

        wait_until(back)
        assert first.status is Status.stopped, (
            "a start that was cut short takes no later one's word"
        )


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (CommClosedError("gone"), "K004"),
        (RuntimeError("Error during deserialization of the task graph. This frequently"), "K005"),
        (ModuleNotFoundError("No module named 'tipcast'"), "K005"),
        (MemoryError("of the driver"), "of the driver"),
    ],
)
def test_failures_of_the_cluster_get_a_code(problem: Exception, message: str) -> None:
    spec = one_worker(threads_per_worker=2, processes=False, worker_ttl_s=45.0)
    with (
        pytest.raises(TipcastError if message[0] == "K" else type(problem), match=message),
        open_session(CPU, spec) as opened,
    ):
        assert (opened.device, opened.n_workers, opened.n_threads) == ("cpu", 1, 2)
        assert dask.config.get("dataframe.backend") == "pandas"
        assert dask.config.get("distributed.scheduler.worker-ttl") == "45.0 s"
        raise problem
    assert opened.client.status == "closed"


def _fill_memory() -> None:
    """Fail as RMM does where a device's memory is full; its text has a second line."""
    raise MemoryError(
        "std::bad_alloc: out_of_memory: CUDA error at: cuda_memory_resource.hpp:62: "
        "cudaErrorMemoryAllocation out of memory\nmaximum pool size exceeded"
    )


def test_a_gpu_whose_memory_is_full_is_named_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's text in one line; there is no GPU here, the task fails on a real worker."""
    monkeypatch.setattr(sessions, "own_gpus", lambda client: [gpus.Gpu("G", 1, 1, "1", "u")])
    monkeypatch.setattr(sessions, "GpuFrames", CpuFrames)
    with (
        pytest.raises(TipcastError) as caught,
        open_session(GPU, one_worker(processes=False)) as opened,
    ):
        opened.client.submit(_fill_memory, pure=False).result()
    assert re.fullmatch(
        r"error\[K008\] a worker's GPU: out of memory: std::bad_alloc: .* out of memory\. "
        r"Fix: use more GPUs or fewer rows, or set cluster\.rmm_managed=true",
        str(caught.value),
    )
    assert caught.value.exit_code == 4


def scheduler(address: str) -> SchedulerCluster:
    return SchedulerCluster("scheduler", address=address)


@pytest.mark.parametrize(
    ("backend", "spec", "message"),
    [
        (CPU, scheduler("tcp://10.1.2.3:8786"), "C009"),
        (CPU, scheduler("tcp://127.0.0.1"), ""),
        (CPU, scheduler("localhost:8786"), ""),
        (CPU, scheduler("tcp://[::1]:8786"), ""),
        (CPU, scheduler("tls://10.1.2.3:8786"), "C004"),
        (BackendSpec("abacus"), one_worker(), "C003.*unknown backend 'abacus'"),
        (
            CPU,
            one_worker(memory_limit="8 gigs"),
            r"memory_limit: must be a share or a size, got '8 gigs'\. Fix: .*8GiB",
        ),
        (
            CPU,
            one_worker(processes=False, environment={"A": "1"}),
            r"C003.*cluster\.environment: cannot be combined with",
        ),
        (CPU, one_worker(n_workers=100_000), r"C003.*cluster\.n_workers: must be at most"),
        (CPU, ClusterSpec("cloud"), r"C003.*cluster\.kind"),
        (
            CPU,
            one_worker(kind="nope"),
            r"C003.*cluster\.kind.*must be local, got nope.*cluster=local",
        ),
        (CPU, cuda(), "C003.*cluster=local_cuda.*use cluster=local"),
        (GPU, one_worker(), "C003.*cluster=local.*use cluster=local_cuda"),
        (
            GPU,
            cuda(n_workers=2, rmm_pool_size="8GiB", device_memory_limit=None, memory_limit="64GiB"),
            "",
        ),
        (GPU, cuda(rmm_pool_size=0.5), ""),
        (GPU, cuda(n_workers=3), "K006.*cluster.n_workers.*3 workers.*2 are visible"),
        (GPU, cuda(rmm_pool_size=1.5), "C003.*cluster.rmm_pool_size"),
        (GPU, cuda(rmm_pool_size=0.95), "K008.*takes 153.0 GB, but GPU-1 has only 150.3 GB.*null"),
        (GPU, cuda(rmm_pool_size="145GiB"), "K008.*cluster.rmm_pool_size.*nvidia-smi"),
        (GPU, cuda(rmm_pool_size=0.95, n_workers=1), ""),
        (GPU, cuda(rmm_pool_size=0.95, rmm_managed=True), ""),
        (GPU, cuda(device_memory_limit=0.0), "C003.*cluster.device_memory_limit"),
    ],
)
def test_what_is_refused(
    backend: BackendSpec, spec: ClusterSpec, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine of two GPUs, where the second is partly in use."""
    idle = gpus.Gpu("NVIDIA H0", 150 << 30, 149 << 30, "600.1", "GPU-0")
    busy = replace(idle, free_bytes=140 << 30, uuid="GPU-1")
    monkeypatch.setattr(gpus, "visible", lambda: [idle, busy])
    monkeypatch.setattr(gpus, "missing_packages", list)
    with pytest.raises(TipcastError, match=message) if message else contextlib.nullcontext():
        check(backend, spec)


def test_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for here, n_workers, threads, expected in (
        (2, None, None, (1, 2)),
        (16, None, None, (1, 16)),
        (17, None, None, (2, 8)),
        (64, None, None, (4, 16)),
        (2, 4, None, (4, 1)),
        (8, None, 3, (1, 3)),
    ):
        monkeypatch.setattr(cluster, "cores", lambda here=here: here)
        spec = schema.LocalCluster("local", n_workers=n_workers, threads_per_worker=threads)
        assert cluster.shared_out(spec) == expected


@pytest.mark.parametrize(
    ("n_workers", "cores", "loaded"),
    [(1, 64, False), (2, 1, True), (None, 16, False), (None, 17, True)],
)
def test_xgboost_dask_is_preloaded_for_several_workers(
    n_workers: int | None, cores: int, loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    modules = forkserver._preloaded(one_worker(n_workers=n_workers), ["tipcast.models.xgboost"])
    assert ("xgboost.dask" in modules) == loaded


# A scheduler that is not there, does not answer, or lets only certain clients in

TLS = "distributed.comm.tls"


def refused(
    address: str, timeout_s: float = 10.0, configured: Any = None, **more: Any
) -> TipcastError:
    """Return the error of connecting to a scheduler."""
    spec = SchedulerCluster("scheduler", address=address, connect_timeout_s=timeout_s, **more)
    with (
        dask.config.set(configured or {}),
        pytest.raises(TipcastError) as caught,
        open_session(CPU, spec),
    ):
        raise AssertionError("not reached")
    return caught.value


@pytest.mark.parametrize(
    ("answers", "what"), [(False, ""), (True, "accepts connections but does not answer")]
)
def test_nobody_is_there(answers: bool, what: str, caplog: pytest.LogCaptureFixture) -> None:
    """Elsewhere only one that is trusted is asked without TLS."""
    with socket.socket() as port:  # held: nobody else takes it meanwhile
        port.bind(("127.0.0.1", 0))
        if answers:
            port.listen()
        address = f"tcp://127.0.0.1:{port.getsockname()[1]}"
        problem = refused(address, 2.0 if answers else 0.5)
    assert (problem.code, problem.where) == ("K001", address)
    assert what in problem.what
    # nobody has an address of 192.0.2.0/24
    assert refused("tcp://192.0.2.1:8786", 0.2, insecure=True).code == "K001"
    assert "without TLS" in "".join(caplog.messages)


def _certificates(folder: Path) -> tuple[Security, dict[str, str]]:
    """Make what a client has, and write it into files; return Dask's configuration of them too."""
    security = Security.temporary()
    folder.mkdir()
    names = {
        "ca-file": "tls_ca_file",
        "client.cert": "tls_client_cert",
        "client.key": "tls_client_key",
    }
    for key, name in names.items():
        (folder / key).write_text(getattr(security, name))
    return security, {f"{TLS}.{key}": str(folder / key) for key in names}


def test_an_encrypted_scheduler_lets_only_its_clients_in(tmp_path: Path) -> None:
    """Certificates are looked at before anything starts."""
    security, files = _certificates(tmp_path / "known")
    _, others = _certificates(tmp_path / "others")
    options = {"processes": False, "n_workers": 1, "threads_per_worker": 1, **NO_PAGES}
    with LocalCluster(host="tls://127.0.0.1", security=security, **options) as cluster:
        address = cluster.scheduler_address
        assert address.startswith("tls://")
        with (
            dask.config.set(files),
            open_session(CPU, SchedulerCluster("scheduler", address=address)) as opened,
        ):
            assert opened.client.submit(sum, [1, 2]).result() == 3
            assert opened.client.security.require_encryption
        assert refused(address.replace("tls://", "tcp://"), 2).code == "K001"
        for configured in (others, others | {f"{TLS}.ca-file": files[f"{TLS}.ca-file"]}):
            problem = refused(address, configured=configured)
            assert problem.code == "K001"
            assert "TLS" in problem.what
    (tmp_path / "empty").touch()
    for wrong, code in (
        ({"ca-file": None}, "C004"),
        ({"client.cert": None}, "C004"),
        ({"client.cert": str(tmp_path / "missing")}, "C003"),
        ({"client.key": str(tmp_path)}, "C003"),
        ({"client.key": others[f"{TLS}.client.key"]}, "C003"),
        ({"client.key": None}, "C003"),
        ({"ca-file": str(tmp_path / "empty")}, "C003"),
        ({}, None),
    ):
        given = files | {f"{TLS}.{key}": value for key, value in wrong.items()}
        with (
            dask.config.set(given),
            pytest.raises(TipcastError) if code else contextlib.nullcontext() as caught,
        ):
            check(CPU, SchedulerCluster("scheduler", address="tls://10.1.2.3:8786"))
        assert code is None or (caught.value.code, caught.value.where) == (code, TLS)


# How a cluster ends


@dataclass(frozen=True)
class Closed:
    """A cluster of one worker process, whose end something came between."""

    surviving: list[psutil.Process]
    """Worker processes that have not ended."""
    closes_at_exit: bool
    """Python closes it once more when this process ends."""


@pytest.fixture(
    scope="module", params=[False, True], ids=["worker_died_while_it_started", "ctrl_c"]
)
def closed(request: pytest.FixtureRequest) -> Closed:
    interrupted = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_cluster, "CLOSE_S", 1.0)
        patch.setattr(local_cluster.Nanny, "kill", Nanny.kill)
        with (
            pytest.raises(KeyboardInterrupt) if interrupted else contextlib.nullcontext(),
            cluster.opened(one_worker()) as client,
        ):
            cluster.wait_for_workers(client, one_worker())
            started = client.cluster
            (nanny,) = started.workers.values()
            worker = psutil.Process(nanny.pid)
            close = started.close
            if interrupted:
                patch.setattr(started, "close", Mock(side_effect=KeyboardInterrupt))
            else:
                nanny.process.status = Status.starting
                nanny.process.running.clear()
        _, surviving = psutil.wait_procs([worker], timeout=WATCHDOG_S)
        closes_at_exit = started.shutdown_on_close
        if interrupted:
            close(timeout=10)
    return Closed(surviving, closes_at_exit)


def test_workers_end_though_closing_is_disturbed(closed: Closed) -> None:
    assert not closed.surviving


def test_a_cluster_that_was_closed_is_not_closed_again_at_exit(closed: Closed) -> None:
    assert not closed.closes_at_exit


def test_what_the_user_says_of_waiting_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for given in (
        {},
        {"OMP_WAIT_POLICY": "active"},
        {"OMP_WAIT_POLICY": "", "GOMP_SPINCOUNT": "7"},
    ):
        for name in WAITING:
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        assert forkserver.waiting() == (given or WAITING)


PROGRAM = """
import importlib, json, os
from pathlib import Path
from tipcast.compute import forkserver
from tipcast.compute.session import open_session
from tipcast.config.schema import BackendSpec, LocalCluster
if __name__ == '__main__':
    for name in forkserver.LIBRARIES:
        importlib.import_module(name)
    before = dict(os.environ)
    environment = {'MALLOC_ARENA_MAX': '2'}
    spec = LocalCluster('local', n_workers=2, threads_per_worker=1, environment=environment)
    forkserver.own_process = True
    forkserver.start_ahead(spec, ['no.such.module'])
    changed = dict(os.environ) != before
    with open_session(BackendSpec('cpu'), spec) as opened:
        seen = opened.client.run(lambda: (os.getppid(), dict(os.environ)))
        parents, environments = zip(*seen.values())
        server = Path(f'/proc/{parents[0]}/environ').read_text()
    print(json.dumps({
        'driver': os.getpid(),
        'driver_changed': changed,
        'parents': parents,
        'server': server.split(chr(0)),
        'workers': environments,
    }))
"""


@pytest.fixture(scope="module")
def forked_cluster(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two workers have of which a fork server was started ahead, and what the server has.

    In a process of its own, as the server stays with whoever has started it.
    """
    folder = tmp_path_factory.mktemp("forked")
    ended = python(folder, "-c", PROGRAM, MLFLOW_TRACKING_TOKEN="secret")
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result


def test_a_fork_server_changes_no_variable_of_the_driver(forked_cluster: dict[str, Any]) -> None:
    assert not forked_cluster["driver_changed"]


def test_the_fork_server_is_started_with_the_variables_of_the_cluster(
    forked_cluster: dict[str, Any],
) -> None:
    assert "MALLOC_ARENA_MAX=2" in forked_cluster["server"]


def test_all_workers_are_children_of_one_fork_server(forked_cluster: dict[str, Any]) -> None:
    (server,) = set(forked_cluster["parents"])
    assert server != forked_cluster["driver"]


def test_a_forked_worker_gets_no_secret(forked_cluster: dict[str, Any]) -> None:
    for environment in forked_cluster["workers"]:
        assert "secret" not in environment.values(), environment


def test_a_forked_worker_has_the_variables_of_its_cluster(forked_cluster: dict[str, Any]) -> None:
    for environment in forked_cluster["workers"]:
        assert environment["OMP_NUM_THREADS"] == "1"
        assert environment["MALLOC_ARENA_MAX"] == "2"
