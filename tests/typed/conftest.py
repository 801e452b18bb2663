"""A folder with the files, runs and models that the documents' commands name, made once a test run."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import filelock
import pandas as pd
import pytest
from sklearn.datasets import load_iris

from .documents import ROOT

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
    """Return a user's variables: the console scripts first, published months that were downloaded before."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "PYTEST_", "TIPCAST_"))
    }
    scripts = str(Path(sys.executable).parent)
    return kept | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "TIPCAST_CACHE": str(folder / "trips")}


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
    subprocess.run(["bash", "-ec", MADE], cwd=folder, env=environment(folder), check=True, timeout=600)
    _make_files(folder)
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:
        versions = dict(store.execute("select version, run_id from model_versions where name = 'tipcast'"))
        (experiment,) = store.execute("select experiment_id from runs where run_uuid = ?", [versions[1]]).fetchone()
        store.execute("pragma wal_checkpoint(truncate)")
    ids = {"run": versions[3], "spare": versions[2], "first": versions[1], "experiment": str(experiment)}
    for name in ("sweep", "many", "gone"):
        ids[name] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8").splitlines()[-1])["run_id"]
    (folder / "ids.json").write_text(json.dumps(ids), encoding="utf-8")


def _make_files(folder: Path) -> None:
    for name in ("months", "later", "own/model"):
        (folder / name).mkdir(parents=True)
    months = {path.stem[-7:]: path for path in sorted((folder / "trips").glob("*.parquet"))}
    for month, path in months.items():
        shutil.copy(path, folder / ("later" if month == "2019-07" else "months") / f"{month}.parquet")
    howto = (ROOT / "docs" / "howto.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^    defaults:.*\n(?:    .*\n)*", howto, re.MULTILINE)
    (folder / "own" / "model" / "boosted_stumps.yaml").write_text(textwrap.dedent(block), encoding="utf-8")
    (folder / "features.py").write_text("", encoding="utf-8")
    for name, month in {"a": "2019-01", "b": "2019-02", "c": "2019-03"}.items():
        trips = pd.read_parquet(months[month])
        renamed = trips.rename(columns={"tpep_pickup_datetime": "started_at", "fare_amount": "price"})
        (trips.rename(columns={"tpep_pickup_datetime": "started_at"}) if name == "c" else renamed).to_parquet(
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
    for month, shift in {"2021-01": "2019-01", "2021-02": "2019-02"}.items():
        green = pd.read_parquet(months[shift])
        for column in ("tpep_pickup_datetime", "tpep_dropoff_datetime"):
            green[column.replace("tpep", "lpep")] = green.pop(column) + (
                pd.Timestamp(f"{month}-01") - pd.Timestamp(f"{shift}-01")
            )
        green.to_parquet(folder / f"green_tripdata_{month}.parquet")
    for name in ("MLproject", "conda.yaml"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "benchmarks" / "outside" / "conf", folder / "benchmarks" / "outside" / "conf")
    shutil.copytree(ROOT / "examples", folder / "examples")
