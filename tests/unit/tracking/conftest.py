"""Fresh stores, a real tracking server, and small models in MLflow."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import treelite.sklearn
import xgboost
from sklearn.ensemble import RandomForestClassifier

from tipcast.config.schema import TrackingSpec
from tipcast.data import features
from tipcast.data.raw import to_frame
from tipcast.tracking.portable import Logged, log_model
from tipcast.tracking.run import Run, open_run
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

    def run(
        text: str, folder: Path, *flags: str, arguments: Sequence[str] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        outside = {n: v for n, v in os.environ.items() if not n.startswith("MLFLOW_") and n not in {"PYTHONPATH", "CI"}}
        outside.pop("PYTEST_CURRENT_TEST", None)  # MLflow takes it for a reason to be silent
        command = [sys.executable, *flags, "-c", text, *arguments]
        return subprocess.run(
            command, cwd=folder, env={**outside, **variables}, capture_output=True, text=True, timeout=120, check=False
        )

    return run


@dataclass(frozen=True)
class Saved:
    """A model in MLflow, and what it should say."""

    folder: Path
    """The logged model's files."""
    run: Run
    logged: Logged
    expected: np.ndarray
    """(rows,) scores of ``trips`` by the estimator."""


@pytest.fixture(scope="session")
def columns() -> dict[str, np.ndarray]:
    """Canonical columns of 300 trips; some lack their passengers, one its time."""
    rng = np.random.default_rng(7)
    pickup = 1_551_398_400_000_000 + rng.integers(0, 31 * 86_400, 300) * 1_000_000
    pickup[5] = features.NULL_TIME
    passengers = rng.integers(0, 7, 300).astype(np.float64)
    passengers[::10] = np.nan
    zones = rng.integers(1, 266, (2, 300))
    return {"pickup": pickup, "passenger_count": passengers, "PULocationID": zones[0], "DOLocationID": zones[1]}


@pytest.fixture(scope="session")
def trips(columns: dict[str, np.ndarray]) -> pd.DataFrame:
    """The same trips as a user has them."""
    return to_frame(columns, "yellow")


@pytest.fixture(scope="session")
def natives(columns: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Format -> a small model's native file, and its scores of the trips."""
    folder = tmp_path_factory.mktemp("native")
    x = features.compute(columns, features.BASE_FEATURES)
    y = (x[:, 1] + x[:, 5] / 20 > 18).astype(np.int32)
    booster = xgboost.train({"max_depth": 3, "objective": "binary:logistic"}, xgboost.DMatrix(x, y, missing=-1.0), 5)
    booster.set_attr(missing="-1.0")
    booster.feature_names = list(features.BASE_FEATURES)
    booster.save_model(folder / "model.ubj")
    forest = RandomForestClassifier(5, max_depth=4, random_state=0).fit(x, y)
    treelite.sklearn.import_model(forest).serialize(folder / "model.tl")
    weights = {"coef": np.linspace(-1, 1, 7), "intercept": 0.1, "mean": x.mean(axis=0), "scale": x.std(axis=0)}
    np.savez(folder / "model.npz", **weights)
    margin = (x - weights["mean"]) / weights["scale"] @ weights["coef"] + weights["intercept"]
    return {
        "xgboost-ubj": (folder / "model.ubj", booster.inplace_predict(x, missing=-1.0)),
        "treelite": (folder / "model.tl", forest.predict_proba(x)[:, 1]),
        "npz-logistic": (folder / "model.npz", 1 / (1 + np.exp(-margin))),
    }


@pytest.fixture(scope="session")
def saved(blank: Path, natives: Any, trips: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Saved]:
    """Format -> a small model as logged; read only."""
    folder = tmp_path_factory.mktemp("saved")
    copy_store(blank, folder / "mlflow.db")
    spec = TrackingSpec(uri=f"sqlite:///{folder}/mlflow.db", experiment="taxi", system_metrics=False)
    found = {}
    with contextlib.chdir(folder), open_run(spec, name="n", tags={}, params={}) as run:
        for format, (file, expected) in natives.items():
            logged = log_model(run, file, format, {"features": features.BASE_FEATURES}, "yellow", trips.head(5))
            (path,) = folder.glob(f"mlruns/*/models/{logged.uri.removeprefix('models:/')}/artifacts")
            found[format] = Saved(path, run, logged, expected)
    return found
