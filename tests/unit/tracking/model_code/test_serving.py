"""A registered model behind `mlflow models serve`: every form of raw trips, and mistakes refused with status 400."""

import io
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

TIME = "tpep_pickup_datetime"
ROWS = [0, 1, 2, 5, 10, 11]
"""One without its time, some without passengers."""


@pytest.fixture(scope="module")
def url(saved: Any, serving: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a server for yellow trips and return its address."""
    command = ["models", "serve", "-m", "models:/xgboost-ubj@champion", "--env-manager", "local"]
    command += ["--host", "127.0.0.1", "-p", "0"]  # of which MLflow does not tell uvicorn
    variables = {"MLFLOW_TRACKING_URI": saved["xgboost-ubj"].run.store, "UVICORN_PORT": "0"}
    with serving(command, "http://127.0.0.1:0", tmp_path_factory.mktemp("serving"), **variables) as address:
        yield address


def _ask(url: str, body: str | bytes, kind: str = "application/json") -> tuple[int, Any]:
    content = body if isinstance(body, bytes) else body.encode()
    request = urllib.request.Request(f"{url}/invocations", data=content, headers={"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.load(refusal)


def _forms(sent: pd.DataFrame) -> dict[str, tuple[str | bytes, str]]:
    """Form -> body and content type of the same trips."""
    records = json.loads(sent.to_json(orient="records", date_format="iso"))
    split = json.loads(sent.to_json(orient="split", date_format="iso", index=False))
    columns = {name: [record[name] for record in records] for name in sent}
    blanks = sent.assign(**{name: sent[name].dt.strftime("%Y-%m-%d %H:%M:%S") for name in sent if "datetime" in name})
    parquet = io.BytesIO()
    sent.to_parquet(parquet)
    return {
        "dataframe_split": (json.dumps({"dataframe_split": split}), "application/json"),
        "dataframe_records": (json.dumps({"dataframe_records": records}), "application/json"),
        "inputs, columns": (json.dumps({"inputs": columns}), "application/json"),
        "inputs, records": (json.dumps({"inputs": records}), "application/json; charset=utf-8"),
        "instances": (json.dumps({"instances": records}), "application/json"),
        "csv": (sent.to_csv(index=False), "text/csv"),
        "csv, another order and more columns": (
            sent.assign(VendorID=1)[["VendorID", *sent.columns[::-1]]].to_csv(index=False),
            "text/csv; charset=utf-8",
        ),
        "csv, times as the TLC's": (blanks.to_csv(index=False), "text/csv"),
        "parquet": (parquet.getvalue(), "application/vnd.apache.parquet"),
    }


def test_every_form_gives_the_same_probabilities(url: str, natives: Any, trips: pd.DataFrame) -> None:
    """Null where a value cannot be; labels where they are asked for."""
    expected = natives["xgboost-ubj"][1]
    lacking = trips.iloc[[10, 20]].drop(columns="passenger_count")  # they are missing in the trips
    odd = trips.iloc[[0, 1]].assign(PULocationID=[300, trips["PULocationID"][1]])
    for sent, scores in (
        (trips.iloc[ROWS], expected[ROWS]),
        (lacking, expected[[10, 20]]),
        (odd, [np.nan, expected[1]]),
    ):
        for name, (body, kind) in _forms(sent).items():
            status, answer = _ask(url, body, kind)
            assert status == 200, (name, answer)
            np.testing.assert_allclose(np.array(answer["predictions"], float), scores, atol=1e-6, err_msg=name)
    split = json.loads(trips.iloc[ROWS].to_json(orient="split", date_format="iso", index=False))
    labels = {"dataframe_split": split, "params": {"output": "label", "threshold": 0.5}}
    assert _ask(url, json.dumps(labels)) == (200, {"predictions": (expected[ROWS] >= 0.5).astype(int).tolist()})
    _refused(url, json.dumps(labels | {"params": {"output": "odds"}}))


def _refused(url: str, body: str | bytes, kind: str = "application/json") -> str:
    status, answer = _ask(url, body, kind)
    assert status == 400, answer
    return str(answer["message"])


def test_a_value_that_cannot_be_read(url: str, trips: pd.DataFrame) -> None:
    times = trips[TIME].dt.strftime("%Y-%m-%dT%H:%M:%S")
    for column, value, says in (
        ("DOLocationID", "JFK", "'JFK' of row 2 is no number"),
        ("PULocationID", 1e300, "'1e+300' of row 2 is too large"),
        (TIME, "soon", "'soon' of row 2 is no time"),
    ):
        sent = trips.assign(**{TIME: times}).iloc[:4].astype({column: object})
        sent.loc[1, column] = value
        records = {"dataframe_records": sent.to_dict("records")}
        for body, kind in ((json.dumps(records), "application/json"), (sent.to_csv(), "text/csv")):
            assert f"column '{column}' cannot be read: {says}. Fix: " in _refused(url, body, kind)


@pytest.mark.parametrize("column", [TIME, "PULocationID", "DOLocationID"])
def test_a_column_that_is_missing(url: str, trips: pd.DataFrame, column: str) -> None:
    for name, (body, kind) in _forms(trips.head(3).drop(columns=column)).items():
        assert f"missing inputs ['{column}'" in _refused(url, body, kind), name
