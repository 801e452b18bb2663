"""A Dask scheduler that is not there, does not answer, or lets only certain clients in."""

from __future__ import annotations

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
