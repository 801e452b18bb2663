"""A Dask scheduler that is there, is not there, has no workers, or lets only certain clients in."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import mlflow
import pytest
from distributed import LocalCluster
from distributed.security import Security
from tests.conftest import NO_PAGES

from tipcast import cli
from tipcast.compute.cluster import connect
from tipcast.compute.session import check
from tipcast.config.errors import TipcastError
from tipcast.config.schema import BackendSpec, SchedulerCluster
from tipcast.models import fit as fits

QUICK = (
    "train", "model=logistic", "data.rows=5000", "tracking.system_metrics=false", "cluster.performance_report=false",
    "cluster=scheduler", "print=json",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _alone(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    shutil.copy(tables, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")  # MLflow keeps stores by address
    yield
    mlflow.set_tracking_uri(None)
    mlflow.set_registry_uri(None)


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a scheduler without workers."""
    with _scheduler(tmp_path_factory.mktemp("scheduler")) as (address, _):
        yield address


@contextlib.contextmanager
def _scheduler(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    file = folder / "scheduler.json"
    words = ["scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    with _started(folder, words) as process:
        deadline = time.monotonic() + 60
        while not file.exists() or not file.read_text().endswith("}"):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield str(json.loads(file.read_text())["address"]), process


@contextlib.contextmanager
def _started(folder: Path, words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "dask", *words]
    environment = os.environ | {"PYTHONPATH": str(Path(cli.__file__).resolve().parents[1])}
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def test_no_scheduler(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    assert cli.main([*QUICK, f"cluster.address={address}", "cluster.connect_timeout_s=2"]) == 4
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error[K001] {address}: ")
    (run,) = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}").search_runs(["1"])
    assert run.info.status == "FAILED"
    assert run.data.tags["error.code"] == "K001"


def test_no_workers(scheduler: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"cluster.address={scheduler}", "cluster.n_workers=2", "cluster.wait_s=1"]
    assert cli.main([*QUICK, *words]) == 4
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error[K002] {scheduler}: 0 of 2 workers after 1 s")


def test_a_real_scheduler_and_worker(scheduler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["worker", scheduler, "--nthreads", "2", "--host", "127.0.0.1", "--no-dashboard", "--no-nanny"]
    with _started(tmp_path, words) as worker:
        assert cli.main([*QUICK, f"cluster.address={scheduler}", "cluster.wait_s=120"]) == 0
        said = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert said["metrics"]["test/auc"] > 0.52
        assert worker.poll() is None, "the cluster is not ours to end"


def test_the_scheduler_dies_while_trees_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with contextlib.ExitStack() as stack:
        address, process = stack.enter_context(_scheduler(tmp_path))
        words = ["worker", address, "--nthreads", "1", "--host", "127.0.0.1", "--no-dashboard", "--no-nanny"]
        (tmp_path / "worker").mkdir()
        stack.enter_context(_started(tmp_path / "worker", words))

        watched = fits.watched

        def killed(*given: Any) -> Any:
            process.kill()
            return watched(*given)

        monkeypatch.setattr(fits, "watched", killed)
        more = ("model=random_forest", "model.params.n_estimators=2000", f"cluster.address={address}")
        assert cli.main(["-q", *QUICK, *more]) == 4
    fix = "Fix: start it again and repeat the command"
    assert capfd.readouterr().err == f"error[K004] {address}: the scheduler is gone. {fix}\n"


def test_who_accepts_and_never_answers_is_no_scheduler() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        spec = SchedulerCluster("scheduler", address=address, connect_timeout_s=0.5)
        start = time.monotonic()
        with (
            pytest.raises(TipcastError, match="accepts connections but does not answer") as caught,
            connect(spec, "pandas"),
        ):
            raise AssertionError("not reached")
        assert time.monotonic() - start < 15
    assert caught.value.code == "K001"


def _certificates(folder: Path, security: Security) -> dict[str, str]:
    """Write what a client has into files; return the configuration's keys."""
    folder.mkdir()
    keys = {"tls_ca_file": "tls_ca_file", "tls_cert": "tls_client_cert", "tls_key": "tls_client_key"}
    for key, name in keys.items():
        (folder / key).touch(mode=0o600)
        (folder / key).write_text(getattr(security, name))
    return {key: str(folder / key) for key in keys}


def test_an_encrypted_scheduler_lets_only_its_clients_in(tmp_path: Path) -> None:
    security = Security.temporary()
    files = _certificates(tmp_path / "known", security)
    others = _certificates(tmp_path / "others", Security.temporary())
    options = {"processes": False, "n_workers": 1, "threads_per_worker": 1, **NO_PAGES}
    with LocalCluster(host="tls://127.0.0.1", security=security, **options) as cluster:
        address = cluster.scheduler_address
        assert address.startswith("tls://")
        known = SchedulerCluster("scheduler", address=address, **files)
        with connect(known, "pandas") as client:
            assert client.submit(sum, [1, 2]).result() == 3
            assert client.security.require_encryption
        for refused in (
            SchedulerCluster("scheduler", address=address.replace("tls://", "tcp://"), connect_timeout_s=2),
            SchedulerCluster("scheduler", address=address, **others),
            SchedulerCluster("scheduler", address=address, **others | {"tls_ca_file": files["tls_ca_file"]}),
        ):
            with pytest.raises(TipcastError) as caught, connect(refused, "pandas"):
                raise AssertionError("not reached")
            assert caught.value.code == "K001"
            assert "closes the connection" in caught.value.what
            assert refused.tls_cert is None or "TLS" in caught.value.what


def test_certificates_are_looked_at_before_anything_starts(tmp_path: Path) -> None:
    files = _certificates(tmp_path / "files", Security.temporary())
    other = _certificates(tmp_path / "other", Security.temporary())
    empty = str(tmp_path / "empty")
    Path(empty).touch()
    for wrong, code, where in (
        ({"tls_ca_file": None}, "C004", "cluster.tls_ca_file"),
        ({"tls_cert": None}, "C004", "cluster.tls_cert"),
        ({"tls_cert": str(tmp_path / "missing")}, "C003", "cluster.tls_cert"),
        ({"tls_key": str(tmp_path)}, "C003", "cluster.tls_key"),
        ({"tls_key": other["tls_key"]}, "C003", "cluster.tls_*"),
        ({"tls_key": None}, "C003", "cluster.tls_*"),
        ({"tls_ca_file": empty}, "C003", "cluster.tls_*"),
    ):
        with pytest.raises(TipcastError) as caught:
            check(BackendSpec("cpu"), SchedulerCluster("scheduler", address="tls://10.1.2.3:8786", **files | wrong))
        assert (caught.value.code, caught.value.where) == (code, where)
        assert "cluster.tls_ca_file" in caught.value.fix


def test_certificates_of_dasks_own_configuration(tmp_path: Path) -> None:
    files = _certificates(tmp_path / "files", Security.temporary())
    names = {"tls_ca_file": "ca-file", "tls_cert": "client.cert", "tls_key": "client.key"}
    with dask.config.set({f"distributed.comm.tls.{name}": files[key] for key, name in names.items()}):
        check(BackendSpec("cpu"), SchedulerCluster("scheduler", address="tls://10.1.2.3:8786"))


def test_an_open_scheduler_elsewhere_is_refused_unless_trusted(caplog: pytest.LogCaptureFixture) -> None:
    spec = SchedulerCluster("scheduler", address="tcp://192.0.2.1:8786", connect_timeout_s=0.2)
    with pytest.raises(TipcastError, match="C009"):
        check(BackendSpec("cpu"), spec)
    spec.insecure = True
    check(BackendSpec("cpu"), spec)
    with pytest.raises(TipcastError, match="K001"), connect(spec, "pandas"):  # nobody has an address of 192.0.2.0/24
        raise AssertionError("not reached")
    assert "without TLS" in caplog.messages[0]
