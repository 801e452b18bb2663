"""Own names of columns, from training to scores: what the model takes, and what scoring and preparing make of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from tests.jobs.test_repeat import MONTHS, write

from tipcast.config.errors import TipcastError

OWN = {"tpep_pickup_datetime": "started_at", "PULocationID": "from zone", "fare_amount": "price"}
FILES = [f"yellow_{month}.parquet" for month in MONTHS]
COLUMNS = "columns={pickup: started_at, PULocationID: 'from zone', fare_amount: price}"


def test_the_same_model_scores_and_months_by_the_tlc_s_names_and_a_user_s_own(
    job: Callable[..., Any], store: str, tmp_path: Path
) -> None:
    tlc, mine = tmp_path / "tlc", tmp_path / "own"
    mine.mkdir()
    for month, file in zip(MONTHS, FILES, strict=True):
        write(tlc, month)
        pd.read_parquet(tlc / file).rename(columns=OWN).to_parquet(mine / file, index=False)

    def train(folder: Path, *words: str) -> Any:
        files = (f"data.train={folder / FILES[0]}", f"data.test={folder / FILES[1]}")
        return job("train", "data=files", "model.params.n_estimators=5", *files, *words)

    def scores(ended: Any, given: Path, *words: str) -> Any:
        out = tmp_path / "scored"
        job("score", f"model_uri={ended.said['model_uri']}", f"input={given}", f"output={out}", *words)
        return pq.read_table(out / FILES[1])

    usual, own = train(tlc), train(mine, f"data.{COLUMNS}", "tracking.register=own")
    assert own.said["metrics"] == usual.said["metrics"]
    assert own.run.data.params["data.columns.pickup"] == "started_at"
    mlflow.set_tracking_uri(store)
    mlflow.set_registry_uri(store)
    model, other = (mlflow.pyfunc.load_model(each.said["model_uri"]) for each in (own, usual))
    names = model.metadata.signature.inputs.input_names()
    assert names == ["started_at", "passenger_count", "from zone", "DOLocationID"]
    assert list(model.input_example) == names
    trips = pd.read_parquet(tlc / FILES[1])
    assert np.array_equal(model.predict(pd.read_parquet(mine / FILES[1])), other.predict(trips))
    with pytest.raises(mlflow.MlflowException, match="started_at"):
        model.predict(trips)

    expected = scores(usual, tlc)["probability"]
    by_training = scores(own, mine)
    assert by_training["probability"].equals(expected)
    assert by_training.column_names[:3] == pq.read_schema(mine / FILES[1]).names[:3]
    assert scores(own, tlc)["probability"].equals(expected), "the dataset's names are known, too"
    kept = scores(usual, mine, COLUMNS, "keep=[pickup,tip_amount]")
    assert kept["probability"].equals(expected)
    assert kept.column_names[:2] == ["started_at", "tip_amount"]
    for words, error in (((), r"D007.*by columns=\{"), (["columns={up: x}"], "C003.*unknown column of taxi 'up'")):
        with pytest.raises(TipcastError, match=error):
            scores(usual, mine, *words)

    job("prepare", "data=files", f"data.months={mine}", f"data.{COLUMNS}", "out=usual")
    names = pq.read_schema(tmp_path / "usual" / "yellow_tripdata_2019-01.parquet").names
    assert set(OWN) <= set(names)
    assert not set(OWN.values()) & set(names)
