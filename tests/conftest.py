"""Fixtures that every room's tests share: the real trips, a Dask client, a session of each
backend.
"""

import contextlib
import copy
import gc
import hashlib
import logging
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import scipy.special  # noqa: F401 - before MLflow and Dask, see tipcast.jobs.train

# isort: split
import dask
import filelock
import mlflow
import numpy as np
import pandas as pd
import pytest
import yaml
from distributed import Client, LocalCluster
from tests import warm
from tests.waiting import wait_until

from tipcast.compute import forkserver, gpus
from tipcast.compute.base import Frames, Session
from tipcast.compute.frames import CpuFrames
from tipcast.compute.session import open_session
from tipcast.config import conf_files, environment
from tipcast.config.schema import BackendSpec, LocalCudaCluster, ModelSpec, TrackingSpec
from tipcast.evaluation.plots import page
from tipcast.tasks.base import Task
from tipcast.tasks.kinds import BINARY
from tipcast.tracking import model_fetch
from tipcast.tracking.store import open_store

ROOT = Path(__file__).resolve().parent.parent
NO_PAGES = {"dashboard_address": "127.0.0.1:0", "scheduler_kwargs": {"dashboard": False}}
"""For a cluster of Dask's: the dashboard's pages take seconds to import."""
DRAWN: dict[tuple[str, int], bytes] = {}
TAXI = Path(os.environ.get("TIPCAST_TAXI", ROOT.parent / "shared" / "taxi"))


def python(folder: Path, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run this environment's Python in a folder, where it finds tipcast."""
    command = [sys.executable, *map(str, words)]
    environment = warm.environment() | variables
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def git(folder: Path, *words: str) -> str:
    """Run git in a folder as nobody in particular."""
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.check_output(
        ["git", *who, *words], cwd=folder, env=variables, text=True
    ).strip()


# Dask's own clusters in tests would set more variables in this process, for all later tests.
dask.config.set({"distributed.nanny.pre-spawn-environ": forkserver.SPAWN_ENVIRONMENT})

gc.disable()  # until all tests are loaded, see pytest_collection_finish

# as below nohup, or behind `&` in a script: children inherit it
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _store_made_once(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]
) -> Path:
    """Return the sqlite file of a folder that all processes of a test run share; the first of them
    makes it.
    """
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    marker = folder / "made"
    file = folder / "mlflow.db"
    with filelock.FileLock(f"{folder}.lock"):
        if not marker.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            # what is in the log: it is copied alone
            with contextlib.closing(sqlite3.connect(file)) as database:
                database.execute("pragma wal_checkpoint(truncate)")
            marker.touch()
    return file


def high_tip_task(features: Sequence[str]) -> Task:
    """Return the task of high tips, learned from these features."""
    facts = {
        "classes": ("no high tip", "high tip"),
        "columns": ("fare_amount", "tip_amount"),
        "function": "high_tip",
    }
    return Task("high_tip", BINARY, tuple(features), params={"threshold": 0.2}, **facts)


def shipped_model(name: str, fit: dict[str, Any] | None = None, **params: Any) -> ModelSpec:
    """Return a model of conf/model, with some parameters changed."""
    shipped = yaml.safe_load(
        (conf_files.conf_dir() / "model" / f"{name}.yaml").read_text(encoding="utf-8")
    )
    shipped.pop("defaults")
    shipped["params"] |= params
    shipped["fit"] |= fit or {}
    return ModelSpec(**shipped)


def without_mlflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No MLflow variable from outside, and a working folder of its own."""
    for name in os.environ.keys() - {"MLFLOW_DISABLE_TELEMETRY"}:
        if name.startswith("MLFLOW_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sqlite file with MLflow's tables, to copy: making them takes MLflow a second."""

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("MLFLOW_TRACKING_URI", raising=False)
            open_store(TrackingSpec(uri=f"sqlite:///{folder}/mlflow.db", experiment="x"))
            mlflow.set_tracking_uri(None)
            mlflow.set_registry_uri(None)
            os.environ.pop("MLFLOW_TRACKING_URI", None)

    return _store_made_once(tmp_path_factory, "tables", make)


@pytest.fixture(scope="session")
def registered(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sqlite file with the registered model `tipcast`, to copy."""

    def make(folder: Path) -> None:
        shutil.copy(tables, folder)
        words = [
            "train",
            "data.rows=20000",
            "model.params.n_estimators=20",
            "tracking.register=tipcast",
        ]
        words += ["cluster.processes=false", "tracking.system_metrics=false"]
        code = warm.start(words, folder, warm.environment()).wait(300)
        assert code == 0, (folder / "stderr").read_text()

    return _store_made_once(tmp_path_factory, "registered", make)


@pytest.fixture(scope="session", autouse=True)
def _parsed_once() -> Iterator[None]:
    """A model file is parsed in a process of its own once a session, however often it is scored
    with.
    """
    seen: dict[tuple[bytes, str], dict[str, Any]] = {}
    parsed = model_fetch._parsed

    def remembered(path: Path, format: str, where: str) -> dict[str, Any]:
        key = (hashlib.sha256(path.read_bytes()).digest(), format)
        if key not in seen:
            seen[key] = parsed(path, format, where)
        return seen[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_fetch, "_parsed", remembered)
        yield


@pytest.fixture(scope="module")
def small_pictures() -> Iterator[None]:
    """Pictures of 60 pixels, of each kind the first for all: half of a small job is drawing."""
    png = page.png

    def draw(figure: Any) -> bytes:
        kind = figure.texts[0].get_text(), page.DPI  # the title
        if kind not in DRAWN:
            DRAWN[kind] = png(figure)
        return DRAWN[kind]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "DPI", 10)
        patch.setattr(page, "png", draw)
        yield


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """What a test changes in its process is put back, so that tests pass in any order."""
    variables = dict(os.environ)
    path = list(sys.path)
    levels = {
        logger: logger.level for logger in map(logging.getLogger, (None, "tipcast", "distributed"))
    }
    configured = copy.deepcopy(dask.config.config)
    method = forkserver.method
    own_process = forkserver.own_process
    yield
    mlflow.set_tracking_uri(None)
    mlflow.set_registry_uri(None)
    for name in (os.environ.keys() | variables.keys()) - {"PYTEST_CURRENT_TEST"}:
        if name not in variables:
            del os.environ[name]
        elif os.environ.get(name) != variables[name]:
            os.environ[name] = variables[name]
    sys.path[:] = path
    for logger, level in levels.items():
        logger.setLevel(level)
    if "scheduler" in dask.config.config:  # a client that the whole session has may have come
        configured["scheduler"] = dask.config.config["scheduler"]
    if dask.config.config != configured:
        dask.config.config.clear()
        dask.config.config.update(configured)
    forkserver.method = method
    forkserver.own_process = own_process
    environment._read.clear()
    environment._written.clear()
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")  # MLflow's evaluator leaves its own


@pytest.fixture(scope="session")
def taxi() -> Path:
    """Real TLC trip files, which the project does not contain."""
    if not (TAXI / "yellow").is_dir():
        pytest.skip("real taxi trips are not here: set TIPCAST_TAXI to their folder")
    return TAXI


@pytest.fixture
def own_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an option of one's own, which is not chosen yet."""
    monkeypatch.setenv(conf_files.OWN, "")  # set back at the end
    file = tmp_path / "own" / "task" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(
        "# Is it mine?\ndefaults:\n  - high_tip\n  - _self_\n\nname: mine\n# above\nthreshold: "
        "0.3\n"
    )
    return tmp_path / "own"


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of 127.0.0.1 that refuses connections, and that nobody else can take meanwhile."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        yield silent.getsockname()[1]


@pytest.fixture(scope="session")
def serving() -> Callable[..., Any]:
    """Start a server, wait until it answers, stop it at the end; of port 0 its log tells which."""

    @contextlib.contextmanager
    def serve(
        command: Sequence[str], url: str, folder: Path, health: str = "health", **variables: str
    ) -> Iterator[str]:
        scripts = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        log = folder / "server.log"
        words = [sys.executable, "-m", "mlflow", *command]
        environment = (
            warm.environment() | scripts | {"MLFLOW_DISABLE_TELEMETRY": "true"} | variables
        )
        with log.open("wb") as out:
            process = subprocess.Popen(
                words,
                cwd=folder,
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

        def address() -> str | None:
            assert process.poll() is None, f"the server has ended:\n{log.read_text()[-3000:]}"
            where = re.search(
                rf"Uvicorn running on ({re.escape(url.removesuffix(':0'))}\S*)", log.read_text()
            )
            with contextlib.suppress(OSError):
                if where:
                    urllib.request.urlopen(f"{where[1]}/{health}", timeout=90).close()
                    return where[1]
            return None

        try:
            yield str(wait_until(address, 300, log.read_text))
        finally:
            end_session(process)

    return serve


def end_session(process: subprocess.Popen[bytes]) -> None:
    """End a process and all of the session that it leads."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(20)


@contextlib.contextmanager
def object_store() -> Iterator[Any]:
    """Serve an object store on this machine, with an empty bucket `trips`, and set the variables
    that lead to it.
    """
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    variables = {
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        # moto keeps one store a process
        urllib.request.urlopen(f"{endpoint}/moto-api/reset", data=b"").close()
        s3fs.S3FileSystem.clear_instance_cache()
        store = s3fs.S3FileSystem()
        store.mkdir("trips")
        try:
            yield store
        finally:
            s3fs.S3FileSystem.clear_instance_cache()
            server.stop()


@pytest.fixture
def bucket() -> Iterator[Any]:
    """An object store on this machine, with an empty bucket `trips`."""
    with object_store() as store:
        yield store


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    """Two threads of one in-process worker."""
    with (
        LocalCluster(processes=False, n_workers=1, threads_per_worker=2, **NO_PAGES) as cluster,
        Client(cluster) as connected,
    ):
        yield connected


@pytest.fixture(scope="session")
def forked() -> Iterator[None]:
    """Worker processes of Dask are forked from one that has loaded their libraries."""
    warm.serve()  # before Dask names modules of its own, which a server that runs does not load
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        yield


@pytest.fixture(scope="module")
def forked_workers(forked: None) -> Iterator[None]:
    """Worker processes of jobs in this process are forked likewise, as a command's are; else they
    are spawned.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forkserver, "method", "forkserver")
        yield


@contextlib.contextmanager
def two_processes() -> Iterator[Client]:
    """Two worker processes of one thread."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, **NO_PAGES, host="127.0.0.1") as cluster,
        Client(cluster, set_as_default=False) as connected,
    ):
        yield connected


@pytest.fixture(scope="session")
def pair(forked: None) -> Iterator[Client]:
    """Two worker processes that all tests share."""
    with two_processes() as connected:
        yield connected


@pytest.fixture
def short_lived(forked: None) -> Iterator[Client]:
    """Two workers that a test may kill."""
    with two_processes() as connected:
        yield connected


@pytest.fixture(scope="session")
def frames() -> Frames:
    """The frame library of the CPU."""
    return CpuFrames()


def pytest_collection_finish() -> None:
    """Leave what is loaded by now to no later garbage collection: it stays, and is a million
    objects.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start servers; let RAPIDS' libraries, which the project does not write, warn
    of what they do.
    """
    for item in items:
        if {"bucket", "stored", "database"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("servers")
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


@pytest.fixture(autouse=True)
def _where_marked(request: pytest.FixtureRequest) -> None:
    """Who is marked `gpu` need not ask for it."""
    if request.node.get_closest_marker("gpu"):
        request.getfixturevalue("gpu")


@pytest.fixture(scope="session")
def gpu_session(gpu: None) -> Iterator[Session]:
    """A worker for each GPU and CuPy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fixture has no marker of its own
        opening = open_session(BackendSpec("gpu"), LocalCudaCluster("local_cuda"))
        opened = opening.__enter__()
    yield opened
    opening.__exit__(None, None, None)


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> Session:
    """The session of each device."""
    opened: Session = request.getfixturevalue(f"{request.param}_session")
    return opened


@pytest.fixture(scope="session")
def placed() -> Callable[
    [Session, Sequence[tuple[pd.DataFrame, pd.Series]]], tuple[list[Any], list[Any]]
]:
    """Put features and labels on a session's workers, as frames of its device: futures of each."""

    def place(
        opened: Session, parts: Sequence[tuple[pd.DataFrame, pd.Series]]
    ) -> tuple[list[Any], list[Any]]:
        # nested, so that they travel by value
        def x(values: Any, names: list[str], frames: Frames) -> Any:
            matrix = frames.xp.empty(values.shape, dtype="float32", order="F")
            matrix[...] = frames.xp.asarray(values)
            return frames.frame(matrix, names)

        def y(values: Any, frames: Frames) -> Any:
            return frames.series(frames.xp.asarray(values, dtype="int32"), "target")

        workers = sorted(opened.client.nthreads())
        futures = ([], [])
        for at, (features, labels) in enumerate(parts):
            put = partial(opened.client.submit, workers=[workers[at % len(workers)]], pure=False)
            futures[0].append(put(x, features.to_numpy(), list(features.columns), opened.frames))
            futures[1].append(put(y, labels.to_numpy(), opened.frames))
        return futures

    return place


def spread(
    client: Client, values: np.ndarray, cuts: Sequence[int] = (0, 1, 1000), wrap: Any = np.array
) -> list[Any]:
    """Put rows on the workers in uneven parts, some of them empty."""
    return [client.submit(wrap, part, pure=False) for part in np.split(values, cuts)]
