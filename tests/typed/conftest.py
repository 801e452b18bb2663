"""A shell, and a folder with the files, runs and models that the documents' commands name, made
once a test run.
"""

import contextlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import filelock
import pandas as pd
import pytest
from sklearn.datasets import load_iris
from tests.conftest import end_session

from .documents import ROOT

WATCHDOG_S = 600.0
MADE = """
tipcast prepare data=sample data.months=2018-11..2019-07 data.rows=18000 out=trips/
for seed in 1 2 3; do
  tipcast train -q seed=$seed data.rows=10000 model.params.n_estimators=20 tracking.register=tipcast
done
tipcast promote -q model_uri=models:/tipcast/1
tipcast promote -q model_uri=models:/tipcast/2 alias=challenger force=true
tipcast sweep -q data.rows=2000 search.trials=2 print=json > sweep.json
tipcast train -q -m model=xgboost,random_forest seed=1,2 data.rows=2000 print=json > many.json
tipcast train -q seed=4 data.rows=2000 model.params.n_estimators=5 print=json > gone.json
"""


def environment(folder: Path) -> dict[str, str]:
    """Return a user's variables: the console scripts first, published months that were downloaded
    before.
    """
    outside = {
        name: os.environ[name]
        for name in os.environ
        if not name.startswith(("MLFLOW_", "PYTEST_", "TIPCAST_"))
    }
    scripts = str(Path(sys.executable).parent)
    return outside | {
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "TIPCAST_CACHE": str(folder / "trips"),
    }


@contextlib.contextmanager
def started(
    command: str, folder: Path, variables: dict[str, str], output: str = "servers"
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command in a shell, which writes to a file; all of its session ends at the end."""
    with (folder / output).open("ab") as file:
        process = subprocess.Popen(
            ["bash", "-ec", command],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end_session(process)


def run(command: str, folder: Path, variables: dict[str, str]) -> str:
    """Return what a command prints, which ends with 0."""
    (folder / "output").unlink(missing_ok=True)
    with started(command, folder, variables, "output") as process:
        code = process.wait(WATCHDOG_S)
    text = (folder / "output").read_text(encoding="utf-8", errors="replace")
    assert code == 0, f"{command}\nended with {code}:\n{text[-6000:]}"
    return text


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to copy; `ids.json` in it has the ids of its runs."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "typed"
    with filelock.FileLock(f"{folder}.lock"):
        if not (folder / "ids.json").exists():  # the last that is written
            folder.mkdir()
            _make(folder)  # in its place: the store has absolute paths
    return folder


def _make(folder: Path) -> None:
    run(MADE, folder, environment(folder))
    _make_files(folder)
    with contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as store:
        versions = dict(
            store.execute("select version, run_id from model_versions where name = 'tipcast'")
        )
        (experiment,) = store.execute(
            "select experiment_id from runs where run_uuid = ?", [versions[1]]
        ).fetchone()
        store.execute("pragma wal_checkpoint(truncate)")
    ids = {
        "run": versions[3],
        "spare": versions[2],
        "first": versions[1],
        "experiment": str(experiment),
    }
    for name in ("sweep", "many", "gone"):
        ids[name] = json.loads(
            (folder / f"{name}.json").read_text(encoding="utf-8").splitlines()[-1]
        )["run_id"]
    (folder / "ids.json").write_text(json.dumps(ids), encoding="utf-8")


def _make_files(folder: Path) -> None:
    for name in ("months", "later", "own/model"):
        (folder / name).mkdir(parents=True)
    months = {path.stem[-7:]: path for path in sorted((folder / "trips").glob("*.parquet"))}
    for month, path in months.items():
        shutil.copy(
            path, folder / ("later" if month == "2019-07" else "months") / f"{month}.parquet"
        )
    howto = (ROOT / "docs" / "howto.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^    defaults:.*\n(?:    .*\n)*", howto, re.MULTILINE)
    (folder / "own" / "model" / "boosted_stumps.yaml").write_text(
        textwrap.dedent(block), encoding="utf-8"
    )
    (folder / "features.py").write_text("", encoding="utf-8")
    renamed = {"tpep_pickup_datetime": "started_at", "fare_amount": "price"}
    for name, month in {"a": "2019-01", "b": "2019-02", "c": "2019-03"}.items():
        trips = pd.read_parquet(months[month]).rename(columns=renamed)
        trips.rename(columns={"price": "fare_amount"} if name == "c" else {}).to_parquet(
            folder / f"{name}.parquet"
        )
    trips = pd.read_parquet(months["2019-04"]).head(50)
    trips.to_csv(folder / "trips.csv", index=False)
    trips = trips.astype({name: str for name in trips.select_dtypes("datetime").columns})
    split = trips.to_dict("split", index=False)
    (folder / "trips.json").write_text(json.dumps({"dataframe_split": split}), encoding="utf-8")
    iris = load_iris(as_frame=True).frame
    iris["species"] = iris.pop("target").map(dict(enumerate(["setosa", "versicolor", "virginica"])))
    iris.to_parquet(folder / "iris.parquet")
    houses = pd.DataFrame({"rooms": range(1000), "age": [year % 90 for year in range(1000)]})
    houses.assign(price=houses["rooms"] * 3 - houses["age"]).to_parquet(folder / "houses.parquet")
    for month, source in {"2021-01": "2019-01", "2021-02": "2019-02"}.items():
        green = pd.read_parquet(months[source])
        later = pd.Timestamp(f"{month}-01") - pd.Timestamp(f"{source}-01")
        for column in ("tpep_pickup_datetime", "tpep_dropoff_datetime"):
            green[column.replace("tpep", "lpep")] = green.pop(column) + later
        green.to_parquet(folder / f"green_tripdata_{month}.parquet")
    for name in ("MLproject", "conda.yaml"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(
        ROOT / "benchmarks" / "outside" / "conf", folder / "benchmarks" / "outside" / "conf"
    )
    shutil.copytree(ROOT / "examples", folder / "examples")
