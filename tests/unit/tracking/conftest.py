"""Fresh stores, a real tracking server, and small models in MLflow."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tipcast.config.schema import TrackingSpec
from tipcast.tracking.store import open_store

START_S = 90.0


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No MLflow variable from outside, a working folder of its own, and MLflow's current store put back."""
    import mlflow

    for name in [name for name in os.environ if name.startswith("MLFLOW_") and name != "MLFLOW_DISABLE_TELEMETRY"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    yield
    mlflow.set_tracking_uri(None)
    mlflow.set_registry_uri(None)
    for name in [name for name in os.environ if name.startswith("MLFLOW_") and name != "MLFLOW_DISABLE_TELEMETRY"]:
        del os.environ[name]


@pytest.fixture(scope="session")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sqlite store with all tables and nothing in them."""
    path = tmp_path_factory.mktemp("blank") / "mlflow.db"
    open_store(TrackingSpec(uri=f"sqlite:///{path}", experiment="none"))
    return path


@pytest.fixture
def spec(blank: Path, tmp_path: Path) -> TrackingSpec:
    """Tracking in an sqlite file of this test alone."""
    copy_store(blank, tmp_path / "mlflow.db")
    return TrackingSpec(uri=f"sqlite:///{tmp_path}/mlflow.db", experiment="taxi", system_metrics=False)


def copy_store(source: Path, target: Path) -> None:
    """Copy an sqlite store, also one that is open."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """Ports of 127.0.0.1 that nobody listens on."""

    def find() -> int:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            return int(listener.getsockname()[1])

    return find


@pytest.fixture(scope="session")
def serving() -> Callable[..., Any]:
    """Start a server, wait until it answers, stop it at the end."""

    @contextmanager
    def serve(command: Sequence[str], url: str, folder: Path, **variables: str) -> Iterator[str]:
        outside = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        log = folder / "server.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", *command],
                cwd=folder,
                env={**outside, "MLFLOW_DISABLE_TELEMETRY": "true", **variables},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                _wait(process, url, log)
                yield url
            finally:
                os.killpg(process.pid, 15)  # the session that it leads: its workers too
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, 9)
                    process.wait(10)

    return serve


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"no server at {url}:\n{log.read_text()[-3000:]}")


@pytest.fixture(scope="session")
def server(blank: Path, tmp_path_factory: pytest.TempPathFactory, serving: Any, free_port: Any) -> Iterator[str]:
    """A tracking server with artifacts of its own."""
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    copy_store(blank, folder / "mlflow.db")
    command = ["server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", "sqlite:///mlflow.db", "--artifacts-destination", str(folder / "artifacts")]
    with serving(command, f"http://127.0.0.1:{port}", folder, MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false") as url:
        yield url


@pytest.fixture(scope="session")
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a Python text in a process of its own."""

    def run(text: str, folder: Path, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
        outside = {n: v for n, v in os.environ.items() if not n.startswith("MLFLOW_") and n not in {"PYTHONPATH", "CI"}}
        outside.pop("PYTEST_CURRENT_TEST", None)  # MLflow takes it for a reason to be silent
        command = [sys.executable, *flags, "-c", text]
        return subprocess.run(
            command, cwd=folder, env={**outside, **variables}, capture_output=True, text=True, timeout=120, check=False
        )

    return run
