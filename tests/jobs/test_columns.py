"""Own names of columns, from training to scores: what the model takes, and what scoring and preparing make of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from tests.jobs.conftest import run_job
from tests.jobs.test_repeat import write

from tipcast.config.errors import TipcastError

Job = Callable[..., Any]
OWN = {"tpep_pickup_datetime": "started_at", "PULocationID": "from zone", "fare_amount": "price"}
SIDES = (("train", "01"), ("test", "02"))
COLUMNS = "columns={pickup: started_at, PULocationID: 'from zone', fare_amount: price}"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Months of trips by the TLC's names, and the same by a user's own."""
    base = tmp_path_factory.mktemp("months")
    (base / "own").mkdir()
    for month in ("2019-01", "2019-02"):
        write(base / "tlc", month)
        trips = pd.read_parquet(base / "tlc" / f"yellow_{month}.parquet").rename(columns=OWN)
        trips.to_parquet(base / "own" / f"yellow_{month}.parquet", index=False)
    return base / "tlc", base / "own"


@pytest.fixture(scope="module")
def models(store: str, folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """A model of trips by the TLC's names, and one of the same by a user's own."""
    trained = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("models"))
        for folder, words in zip(folders, ([], [f"data.{COLUMNS}", "tracking.register=own"]), strict=True):
            words += [f"data.{side}={folder}/yellow_2019-{month}.parquet" for side, month in SIDES]
            trained.append(run_job(store, "train", "data=files", "model.params.n_estimators=5", *words))
        mlflow.set_tracking_uri(None)
        mlflow.set_registry_uri(None)
    return trained


def test_the_same_model_that_takes_rows_by_the_user_s_names(
    models: list[Any], folders: tuple[Path, Path], store: str
) -> None:
    usual, own = models
    assert own.said["metrics"] == usual.said["metrics"]
    assert own.run.data.params["data.columns.pickup"] == "started_at"
    mlflow.set_tracking_uri(store)
    mlflow.set_registry_uri(store)
    model = mlflow.pyfunc.load_model(own.said["model_uri"])
    names = model.metadata.signature.inputs.input_names()
    assert names == ["started_at", "passenger_count", "from zone", "DOLocationID"]
    assert list(model.input_example) == names
    trips = pd.read_parquet(folders[1] / "yellow_2019-02.parquet")
    found = model.predict(trips)
    other = mlflow.pyfunc.load_model(usual.said["model_uri"])
    assert np.array_equal(found, other.predict(pd.read_parquet(folders[0] / "yellow_2019-02.parquet")))
    with pytest.raises(mlflow.MlflowException, match="started_at"):
        model.predict(pd.read_parquet(folders[0] / "yellow_2019-02.parquet"))


def scores(job: Job, uri: str, given: Path, out: Path, *words: str) -> Any:
    job("score", f"model_uri={uri}", f"input={given}", f"output={out}", *words)
    return pq.read_table(out / "yellow_2019-02.parquet")


def test_files_are_scored_by_the_names_of_the_training_the_dataset_or_the_command(
    job: Job, models: list[Any], folders: tuple[Path, Path], tmp_path: Path
) -> None:
    usual, own = (each.said["model_uri"] for each in models)
    expected = scores(job, usual, folders[0], tmp_path / "a")["probability"]
    by_training = scores(job, own, folders[1], tmp_path / "b")
    assert by_training["probability"].equals(expected)
    assert by_training.column_names[:3] == pq.read_schema(folders[1] / "yellow_2019-02.parquet").names[:3]
    assert scores(job, own, folders[0], tmp_path / "c")["probability"].equals(expected)
    kept = scores(job, usual, folders[1], tmp_path / "d", COLUMNS, "keep=[pickup,tip_amount]")
    assert kept["probability"].equals(expected)
    assert kept.column_names[:2] == ["started_at", "tip_amount"]
    for words, error in (((), r"D007.*by columns=\{"), (["columns={up: x}"], "C003.*unknown column of taxi 'up'")):
        with pytest.raises(TipcastError, match=error):
            scores(job, usual, folders[1], tmp_path / "e", *words)


def test_prepared_months_have_the_usual_names(job: Job, folders: tuple[Path, Path], tmp_path: Path) -> None:
    job("prepare", "data=files", f"data.months={folders[1]}", f"data.{COLUMNS}", "out=usual")
    names = pq.read_schema(tmp_path / "usual" / "yellow_tripdata_2019-01.parquet").names
    assert {"tpep_pickup_datetime", "PULocationID", "fare_amount"} <= set(names)
    assert not set(OWN.values()) & set(names)
