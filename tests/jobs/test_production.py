"""The jobs against what a team has: an MLflow server on PostgreSQL, with its artifacts in an S3
store.
"""

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
import pytest
from moto.server import ThreadedMotoServer

ROOT = Path(__file__).resolve().parents[2]
BUCKET = "mlflow"
PASSWORD = "throwaway7"


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """PostgreSQL on a socket in a folder of its own: the URI of its database."""
    # Debian keeps it off the PATH
    kept = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), reverse=True)
    if not (control := shutil.which("pg_ctl") or next(map(str, kept), "")):
        lack = "no pg_ctl here (Debian: apt-get install postgresql)"
        pytest.fail(lack) if os.environ.get("TIPCAST_REQUIRE_SERVERS") == "1" else pytest.skip(lack)
    user = "nobody" if os.getuid() == 0 else None  # it does not run as root
    folder = Path(tempfile.mkdtemp(prefix="tipcast-pg-"))
    (folder / "password").write_text(PASSWORD)
    for path in (folder, folder / "password"):
        if user:
            shutil.chown(path, user)

    def run(action: str, *words: str) -> None:
        variables = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
        command = [
            control,
            action,
            "--pgdata",
            f"{folder}/data",
            "--log",
            f"{folder}/log",
            "--wait",
            *words,
        ]
        done = subprocess.run(
            command, user=user, cwd=folder, env=variables, stdout=subprocess.DEVNULL, timeout=60
        )
        assert done.returncode == 0, (folder / "log").read_text() if action == "start" else action

    try:
        run(
            "initdb",
            "--options",
            f"-U mlflow --pwfile {folder}/password -A scram-sha-256 -E UTF8 --no-sync",
        )
        run(
            "start",
            "--options",
            f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off",
        )
        try:
            yield f"postgresql+psycopg://mlflow:{PASSWORD}@/postgres?host={folder}"
        finally:
            run("stop", "--mode", "immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def store(
    database: str, serving: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The server as docker/compose.yaml starts it, on a store of S3; jobs know its address and no
    credentials.
    """
    s3 = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    s3.start()
    host, port = s3.get_host_and_port()
    variables = {
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    variables["MLFLOW_S3_ENDPOINT_URL"] = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**variables, "BUCKET": BUCKET}.items():
            patch.setenv(name, value)
        for _ in range(2):  # the second time it is there
            runpy.run_path(str(ROOT / "docker" / "make_bucket.py"))
    variables["MLFLOW_BACKEND_STORE_URI"] = database
    variables["MLFLOW_ARTIFACTS_DESTINATION"] = f"s3://{BUCKET}/artifacts"
    variables["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    command = ["server", "--host", "127.0.0.1", "--port", "0", "--workers", "1"]
    with serving(
        command, "http://127.0.0.1:0", tmp_path_factory.mktemp("server"), **variables
    ) as url:
        yield url
    s3.stop()


def test_train_sweep_promote_and_score(
    job: Callable[..., Any], store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    rows = ("data.rows=6000", "tracking.register=tips")
    trained = job("train", "model=logistic", *rows)
    assert trained.said["model_uri"] == "models:/tips/1"
    first = job("promote", "model_uri=models:/tips/1").said
    assert (first["moved"], first["holder"]) == (True, None)
    swept = job("sweep", "search.trials=2", "model.params.n_estimators=20", *rows)
    assert swept.said["trials"]["finished"] == 2
    second = job("promote", f"model_uri={swept.said['model_uri']}", "margin=0.2").said
    assert (second["moved"], second["holder"]) == (True, "1")
    client = mlflow.MlflowClient(store)
    version = client.get_model_version_by_alias("tips", "champion")
    assert (
        str(version.version),
        client.get_registered_model("tips").tags["alias.champion.previous"],
    ) == ("2", "1")
    assert "plots/roc.png" in version.description.replace("%2F", "/")
    assert version.description.startswith("xgboost: test AUC "), (
        "no Markdown where it is listed as it is"
    )
    ended = {run.info.status for run in client.search_runs([swept.run.info.experiment_id])}
    assert ended == {"FINISHED"}
    trips = tmp_path / "yellow_tripdata_2019-04.parquet"
    out = tmp_path / "scored"
    times = pd.to_datetime(["2019-04-05 18:30:00", "2019-04-06 03:00:00"])
    places = {
        "passenger_count": [1.0, np.nan],
        "PULocationID": [132, 48],
        "DOLocationID": [230, 68],
    }
    rows = pd.DataFrame({"tpep_pickup_datetime": times, **places})
    rows.to_parquet(trips, index=False)
    scored = job("score", "model_uri=models:/tips@champion", f"input={trips}", f"output={out}")
    assert scored.run.info.status == "FINISHED"
    scores = pd.read_parquet(out / trips.name)
    assert set(scores["model_version"].astype(str)) == {"2"}
    expected = mlflow.pyfunc.load_model("models:/tips@champion").predict(rows)
    np.testing.assert_allclose(scores["probability"], expected, atol=1e-6)
