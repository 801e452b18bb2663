"""A Dask scheduler that is not there, does not answer, or lets only certain clients in."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import dask
import pytest
from distributed import LocalCluster
from distributed.security import Security
from tests.conftest import NO_PAGES

from tipcast.compute.cluster import connect
from tipcast.compute.session import check
from tipcast.config.errors import TipcastError
from tipcast.config.schema import BackendSpec, SchedulerCluster


@pytest.mark.parametrize(("answers", "what"), [(False, None), (True, "accepts connections but does not answer")])
def test_nobody_is_there(answers: bool, what: str | None) -> None:
    with socket.socket() as port:  # held: nobody else takes it meanwhile
        port.bind(("127.0.0.1", 0))
        if answers:
            port.listen()
        address = f"tcp://127.0.0.1:{port.getsockname()[1]}"
        spec = SchedulerCluster("scheduler", address=address, connect_timeout_s=0.5)
        with pytest.raises(TipcastError, match=what) as caught, connect(spec, "pandas"):
            raise AssertionError("not reached")
    assert (caught.value.code, caught.value.where) == ("K001", address)


def _certificates(folder: Path, security: Security) -> dict[str, str]:
    """Write what a client has into files; return Dask's configuration of them."""
    folder.mkdir()
    names = {"ca-file": "tls_ca_file", "client.cert": "tls_client_cert", "client.key": "tls_client_key"}
    for key, name in names.items():
        (folder / key).touch(mode=0o600)
        (folder / key).write_text(getattr(security, name))
    return {f"distributed.comm.tls.{key}": str(folder / key) for key in names}


def test_an_encrypted_scheduler_lets_only_its_clients_in(tmp_path: Path) -> None:
    security = Security.temporary()
    files = _certificates(tmp_path / "known", security)
    others = _certificates(tmp_path / "others", Security.temporary())
    options = {"processes": False, "n_workers": 1, "threads_per_worker": 1, **NO_PAGES}
    with LocalCluster(host="tls://127.0.0.1", security=security, **options) as cluster:
        address = cluster.scheduler_address
        assert address.startswith("tls://")
        spec = SchedulerCluster("scheduler", address=address)
        with dask.config.set(files), connect(spec, "pandas") as client:
            assert client.submit(sum, [1, 2]).result() == 3
            assert client.security.require_encryption
        open_address = address.replace("tls://", "tcp://")
        for given, refused in (
            ({}, SchedulerCluster("scheduler", address=open_address, connect_timeout_s=2)),
            (others, spec),
            (others | {"distributed.comm.tls.ca-file": files["distributed.comm.tls.ca-file"]}, spec),
        ):
            with (
                dask.config.set(given),
                pytest.raises(TipcastError) as caught,
                connect(refused, "pandas"),
            ):
                raise AssertionError("not reached")
            assert caught.value.code == "K001"
            assert not given or "TLS" in caught.value.what


def test_certificates_are_looked_at_before_anything_starts(tmp_path: Path) -> None:
    files = _certificates(tmp_path / "files", Security.temporary())
    other = _certificates(tmp_path / "other", Security.temporary())
    (tmp_path / "empty").touch()
    for wrong, code in (
        ({"ca-file": None}, "C004"),
        ({"client.cert": None}, "C004"),
        ({"client.cert": str(tmp_path / "missing")}, "C003"),
        ({"client.key": str(tmp_path)}, "C003"),
        ({"client.key": other["distributed.comm.tls.client.key"]}, "C003"),
        ({"client.key": None}, "C003"),
        ({"ca-file": str(tmp_path / "empty")}, "C003"),
        ({}, None),
    ):
        given = files | {f"distributed.comm.tls.{key}": value for key, value in wrong.items()}
        with (
            dask.config.set(given),
            pytest.raises(TipcastError) if code else contextlib.nullcontext() as caught,
        ):
            check(BackendSpec("cpu"), SchedulerCluster("scheduler", address="tls://10.1.2.3:8786"))
        assert code is None or (caught.value.code, caught.value.where) == (code, "distributed.comm.tls")


def test_an_open_scheduler_elsewhere_is_refused_unless_trusted(caplog: pytest.LogCaptureFixture) -> None:
    spec = SchedulerCluster("scheduler", address="tcp://192.0.2.1:8786", connect_timeout_s=0.2)
    with pytest.raises(TipcastError, match="C009"):
        check(BackendSpec("cpu"), spec)
    spec.insecure = True
    check(BackendSpec("cpu"), spec)
    with pytest.raises(TipcastError, match="K001"), connect(spec, "pandas"):  # nobody has an address of 192.0.2.0/24
        raise AssertionError("not reached")
    assert "without TLS" in caplog.messages[0]
