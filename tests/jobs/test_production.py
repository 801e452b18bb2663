"""The jobs against what a team has: an MLflow server on PostgreSQL, with its artifacts in an S3
store.
"""

import contextlib
import os
import runpy
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from moto.server import ThreadedMotoServer
from tests.jobs.conftest import Ended, run_job

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


TRIPS = "yellow_tripdata_2019-04.parquet"


@dataclass(frozen=True)
class Produced:
    """A training, a sweep and their promotions, and a scoring with the champion."""

    trained: Ended
    first: dict[str, Any]
    """What promoting the training said."""
    swept: Ended
    second: dict[str, Any]
    """What promoting the sweep said."""
    trips: pd.DataFrame
    scored: Ended
    scores: pd.DataFrame


@pytest.fixture(scope="module")
def produced(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Produced]:
    """Without credentials of the store of artifacts, also while a test looks at what is there."""
    folder = tmp_path_factory.mktemp("produced")
    rows = ("data.rows=6000", "tracking.register=tips")
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        trained = run_job(store, "train", "model=logistic", *rows)
        first = run_job(store, "promote", "model_uri=models:/tips/1").said
        swept = run_job(store, "sweep", "search.trials=2", "model.params.n_estimators=20", *rows)
        uri = swept.said["model_uri"]
        second = run_job(store, "promote", f"model_uri={uri}", "margin=0.2").said

        places = {
            "tpep_pickup_datetime": pd.to_datetime(["2019-04-05 18:30:00", "2019-04-06 03:00:00"]),
            "passenger_count": [1.0, np.nan],
            "PULocationID": [132, 48],
            "DOLocationID": [230, 68],
        }
        trips = pd.DataFrame(places)
        trips.to_parquet(folder / TRIPS, index=False)
        files = (f"input={folder / TRIPS}", f"output={folder / 'scored'}")
        scored = run_job(store, "score", "model_uri=models:/tips@champion", *files)
        scores = pd.read_parquet(folder / "scored" / TRIPS)
        yield Produced(trained, first, swept, second, trips, scored, scores)


def test_the_first_version_becomes_champion(produced: Produced) -> None:
    assert produced.trained.said["model_uri"] == "models:/tips/1"
    assert (produced.first["moved"], produced.first["holder"]) == (True, None)


def test_the_model_of_a_sweep_takes_the_alias_over(produced: Produced, store: str) -> None:
    client = mlflow.MlflowClient(store)
    version = client.get_model_version_by_alias("tips", "champion").version
    tags = client.get_registered_model("tips").tags
    assert (produced.second["moved"], produced.second["holder"]) == (True, "1")
    assert (str(version), tags["alias.champion.previous"]) == ("2", "1")


def test_a_version_is_described_without_markdown_with_a_link_to_its_plot(
    produced: Produced, store: str
) -> None:
    """A list of versions shows the description as it is."""
    version = mlflow.MlflowClient(store).get_model_version("tips", "2")
    assert version.description.startswith("xgboost: test AUC ")
    assert "plots/roc.png" in version.description.replace("%2F", "/")


def test_all_runs_of_jobs_on_a_server_are_finished(produced: Produced, store: str) -> None:
    runs = mlflow.MlflowClient(store).search_runs([produced.swept.run.info.experiment_id])
    assert produced.swept.said["trials"]["finished"] == 2
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert produced.scored.run.info.status == "FINISHED"


def test_the_champion_of_a_server_scores_as_mlflow_does(produced: Produced, store: str) -> None:
    mlflow.set_tracking_uri(store)
    expected = mlflow.pyfunc.load_model("models:/tips@champion").predict(produced.trips)
    assert set(produced.scores["model_version"].astype(str)) == {"2"}
    np.testing.assert_allclose(produced.scores["probability"], expected, atol=1e-6)
