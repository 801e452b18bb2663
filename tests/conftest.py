"""Fixtures that every room's tests share: the real trips, a Dask client, a session of each backend."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from distributed import Client, LocalCluster

from tipcast.backends import gpus
from tipcast.backends.base import Frames, Session
from tipcast.backends.cpu import CpuFrames
from tipcast.backends.session import session
from tipcast.config.schema import BackendSpec, LocalCudaCluster

ROOT = Path(__file__).resolve().parent.parent
START_S = 90.0
"""How long a server may take to answer."""
TAXI = Path(os.environ.get("TIPCAST_TAXI", ROOT.parent / "shared" / "taxi"))


@pytest.fixture(autouse=True)
def _own_registry() -> Iterator[None]:
    """MLflow keeps a store in the environment of the process; the next test has another one."""
    yield
    os.environ.pop("MLFLOW_REGISTRY_URI", None)


@pytest.fixture(scope="session")
def taxi() -> Path:
    """Real TLC trip files, which the project does not contain."""
    if not (TAXI / "yellow").is_dir():
        pytest.skip("real taxi trips are not here: set TIPCAST_TAXI to their folder")
    return TAXI


def program(name: str, package: str, folders: str = "/usr/sbin") -> str:
    """Return where a server's program is, which Debian may keep off the PATH; skip, or fail, where it is not."""
    found = shutil.which(name) or next((str(at / name) for at in sorted(Path("/").glob(folders[1:]), reverse=True)), "")
    if Path(found).is_file():
        return found
    lack = f"no {name} here (Debian: apt-get install {package})"
    if os.environ.get("TIPCAST_REQUIRE_SERVERS") == "1":
        pytest.fail(lack)
    pytest.skip(lack)


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
        outside["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{outside['PATH']}"  # it starts uvicorn by name
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
                for signal in (15, 9):  # to the session that it leads: its workers too
                    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                        os.killpg(process.pid, signal)
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


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An object store on this machine, with an empty bucket `trips`."""
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    for name, value in {
        "AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_ENDPOINT_URL": endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    urllib.request.urlopen(
        f"{endpoint}/moto-api/reset", data=b""
    ).close()  # servers of one process share what they hold
    s3fs.S3FileSystem.clear_instance_cache()
    store = s3fs.S3FileSystem()
    store.mkdir("trips")
    yield store
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    """Two threads of one in-process worker."""
    with (
        LocalCluster(processes=False, n_workers=1, threads_per_worker=2, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as connected,
    ):
        yield connected


@pytest.fixture(scope="session")
def frames() -> Frames:
    """The frame library of the CPU."""
    return CpuFrames()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let RAPIDS' libraries, which the project does not write, warn of what they do."""
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def cpu_session(client: Client) -> Session:
    """Two threads of one in-process worker and NumPy."""
    return Session(client=client, device="cpu", frames=CpuFrames(), n_workers=1, n_threads=2)


@pytest.fixture(scope="session")
def gpu() -> None:
    """Skip without a GPU; fail where TIPCAST_REQUIRE_GPU=1 asks for one."""
    missing = gpus.missing_packages()
    lack = f"no {', '.join(missing)}" if missing else "" if gpus.visible() else "no NVIDIA GPU"
    if lack and os.environ.get("TIPCAST_REQUIRE_GPU") == "1":
        pytest.fail(f"TIPCAST_REQUIRE_GPU=1, but {lack}")
    if lack:
        pytest.skip(lack)


@pytest.fixture(scope="session")
def gpu_session(gpu: None) -> Iterator[Session]:
    """A worker for each GPU and CuPy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fixture has no marker of its own
        opening = session(BackendSpec("gpu"), LocalCudaCluster("local_cuda"))
        opened = opening.__enter__()
    yield opened
    opening.__exit__(None, None, None)


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> Session:
    """The session of each device."""
    opened: Session = request.getfixturevalue(f"{request.param}_session")
    return opened


@pytest.fixture(scope="session")
def placed() -> Callable[[Session, Sequence[tuple[pd.DataFrame, pd.Series]]], tuple[list[Any], list[Any]]]:
    """Put features and labels on a session's workers, as frames of its device: futures of each."""

    def place(opened: Session, parts: Sequence[tuple[pd.DataFrame, pd.Series]]) -> tuple[list[Any], list[Any]]:
        def x(values: Any, names: list[str], frames: Frames) -> Any:  # nested, so that they travel by value
            matrix = frames.xp.empty(values.shape, dtype="float32", order="F")
            matrix[...] = frames.xp.asarray(values)
            return frames.frame(matrix, names)

        def y(values: Any, frames: Frames) -> Any:
            return frames.series(frames.xp.asarray(values, dtype="int32"), "target")

        workers = sorted(opened.client.nthreads())
        futures: tuple[list[Any], list[Any]] = ([], [])
        for at, (features, labels) in enumerate(parts):
            where = {"workers": [workers[at % len(workers)]], "pure": False}
            futures[0].append(
                opened.client.submit(x, features.to_numpy(), list(features.columns), opened.frames, **where)
            )
            futures[1].append(opened.client.submit(y, labels.to_numpy(), opened.frames, **where))
        return futures

    return place
