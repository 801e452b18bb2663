"""The jobs against what a team has: an MLflow server on PostgreSQL, with its artifacts in an S3 store."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import psycopg
import pytest
from moto.server import ThreadedMotoServer
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
BUCKET, PASSWORD = "mlflow", "throwaway7"
START_S = 60


def _binary(name: str) -> str:
    """Return where one of PostgreSQL's programs is, which Debian keeps off the PATH; skip, or fail, where it is not."""
    kept = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    if found := shutil.which(name) or next(map(str, kept), ""):
        return found
    lack = f"no {name} here (Debian: apt-get install postgresql)"
    if os.environ.get("TIPCAST_REQUIRE_SERVERS") == "1":
        pytest.fail(lack)
    pytest.skip(lack)


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """PostgreSQL as a process of this test, on a socket in a folder of its own: the URI of its database."""
    user = "nobody" if os.getuid() == 0 else None  # it does not run as root
    folder = Path(tempfile.mkdtemp(prefix="tipcast-pg-"))
    data, secret = folder / "data", folder / "password"
    secret.write_text(PASSWORD)
    if user:
        for path in (folder, secret):
            shutil.chown(path, user)
    plain: dict[str, Any] = {"user": user, "cwd": folder, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}}
    try:
        subprocess.run(
            [
                *(_binary("initdb"), "--pgdata", str(data), "--username", "mlflow", "--pwfile", str(secret)),
                *("--auth", "scram-sha-256", "--encoding", "UTF8", "--no-sync"),
            ],
            check=True,
            capture_output=True,
            timeout=60,
            **plain,
        )
        options = {"listen_addresses": "", "unix_socket_directories": str(folder), "fsync": "off"}
        command = [_binary("postgres"), "-D", str(data)]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *(word for name, value in options.items() for word in ("-c", f"{name}={value}"))],
                stdout=log,
                stderr=subprocess.STDOUT,
                **plain,
            )
        try:
            wait_until(lambda: _accepts(process, folder), START_S)
            yield f"postgresql+psycopg://mlflow:{PASSWORD}@/postgres?host={folder}"
        finally:
            process.terminate()
            process.wait(20)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _accepts(process: subprocess.Popen[bytes], folder: Path) -> bool:
    if process.poll() is not None:
        pytest.fail(f"PostgreSQL has ended:\n{(folder / 'log').read_text()[-2000:]}")
    try:
        psycopg.connect(host=str(folder), user="mlflow", password=PASSWORD, dbname="postgres").close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    """An S3 store on this machine, with the bucket that docker/make_bucket.py makes: a server's variables for it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    variables = {
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_DEFAULT_REGION": "us-east-1",
        "MLFLOW_S3_ENDPOINT_URL": f"http://{host}:{port}",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**variables, "BUCKET": BUCKET}.items():
            patch.setenv(name, value)
        for _ in range(2):  # the second time it is there
            runpy.run_path(str(ROOT / "docker" / "make_bucket.py"))
    yield variables
    server.stop()


@pytest.fixture(scope="module")
def store(
    database: str,
    bucket: dict[str, str],
    serving: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """The server as docker/compose.yaml starts it; jobs know its address and no credentials."""
    folder = tmp_path_factory.mktemp("server")
    command = ["server", "--host", "127.0.0.1", "--port", "0", "--workers", "1"]
    variables = {
        **bucket,
        "MLFLOW_BACKEND_STORE_URI": database,
        "MLFLOW_ARTIFACTS_DESTINATION": f"s3://{BUCKET}/artifacts",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    with serving(command, "http://127.0.0.1:0", folder, **variables) as url:
        yield url


def test_train_sweep_promote_and_score(
    job: Callable[..., Any], store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    rows = ("data.rows=6000", "tracking.register=tips")
    trained = job("train", "model=logistic", *rows)
    assert trained.said["model_uri"] == "models:/tips/1"
    first = job("promote", "model_uri=models:/tips/1")
    assert first.said["moved"]
    assert first.said["holder"] is None
    swept = job("sweep", "search.trials=2", "model.params.n_estimators=20", *rows)
    assert swept.said["trials"]["finished"] == 2
    second = job("promote", f"model_uri={swept.said['model_uri']}", "margin=0.2")
    assert second.said["moved"]
    assert second.said["holder"] == "1"
    client = mlflow.MlflowClient(store)
    version = client.get_model_version_by_alias("tips", "champion")
    assert (str(version.version), client.get_registered_model("tips").tags["alias.champion.previous"]) == ("2", "1")
    assert "plots/roc.png" in version.description.replace("%2F", "/")
    assert version.description.startswith("xgboost: test AUC "), "no Markdown where it is listed as it is"
    ended = {run.info.status for run in client.search_runs([swept.run.info.experiment_id])}
    assert ended == {"FINISHED"}
    trips = tmp_path / "trips" / "yellow_tripdata_2019-04.parquet"
    trips.parent.mkdir()
    _trips().to_parquet(trips, index=False)
    out = tmp_path / "scored"
    scored = job("score", "model_uri=models:/tips@champion", f"input={trips.parent}", f"output={out}")
    assert scored.run.info.status == "FINISHED"
    found = pd.read_parquet(out / trips.name)
    assert set(found["model_version"].astype(str)) == {"2"}
    expected = mlflow.pyfunc.load_model("models:/tips@champion").predict(_trips())
    np.testing.assert_allclose(found["probability"], expected, atol=1e-6)


def _trips() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "tpep_pickup_datetime": pd.to_datetime(["2019-04-05 18:30:00", "2019-04-06 03:00:00"]),
            "passenger_count": [1.0, np.nan],
            "PULocationID": [132, 48],
            "DOLocationID": [230, 68],
        }
    )
