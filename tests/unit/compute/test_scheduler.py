"""A Dask scheduler that is not there, does not answer, or lets only certain clients in."""

import contextlib
import socket
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import LocalCluster
from distributed.security import Security
from tests.conftest import NO_PAGES

from tipcast.compute.session import check, session
from tipcast.config.errors import TipcastError
from tipcast.config.schema import BackendSpec, SchedulerCluster

CPU, TLS = BackendSpec("cpu"), "distributed.comm.tls"


def refused(address: str, timeout_s: float = 10.0, configured: Any = None, **more: Any) -> TipcastError:
    """Return the error of connecting to a scheduler."""
    spec = SchedulerCluster("scheduler", address=address, connect_timeout_s=timeout_s, **more)
    with dask.config.set(configured or {}), pytest.raises(TipcastError) as caught, session(CPU, spec):
        raise AssertionError("not reached")
    return caught.value


@pytest.mark.parametrize(("answers", "what"), [(False, ""), (True, "accepts connections but does not answer")])
def test_nobody_is_there(answers: bool, what: str) -> None:
    with socket.socket() as port:  # held: nobody else takes it meanwhile
        port.bind(("127.0.0.1", 0))
        if answers:
            port.listen()
        address = f"tcp://127.0.0.1:{port.getsockname()[1]}"
        problem = refused(address, 0.5)
    assert (problem.code, problem.where) == ("K001", address)
    assert what in problem.what


def _certificates(folder: Path) -> tuple[Security, dict[str, str]]:
    """Make what a client has, and write it into files; return Dask's configuration of them too."""
    security = Security.temporary()
    folder.mkdir()
    names = {"ca-file": "tls_ca_file", "client.cert": "tls_client_cert", "client.key": "tls_client_key"}
    for key, name in names.items():
        (folder / key).touch(mode=0o600)
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
        with dask.config.set(files), session(CPU, SchedulerCluster("scheduler", address=address)) as opened:
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
        with dask.config.set(given), pytest.raises(TipcastError) if code else contextlib.nullcontext() as caught:
            check(CPU, SchedulerCluster("scheduler", address="tls://10.1.2.3:8786"))
        assert code is None or (caught.value.code, caught.value.where) == (code, TLS)


def test_an_open_scheduler_elsewhere_is_refused_unless_trusted(caplog: pytest.LogCaptureFixture) -> None:
    spec = SchedulerCluster("scheduler", address="tcp://192.0.2.1:8786")
    with pytest.raises(TipcastError, match="C009"):
        check(CPU, spec)
    spec.insecure = True
    check(CPU, spec)
    assert refused(spec.address, 0.2, insecure=True).code == "K001"  # nobody has an address of 192.0.2.0/24
    assert "without TLS" in caplog.messages[0]
