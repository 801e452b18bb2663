"""A registered model behind `mlflow models serve`: every form of raw trips, and mistakes refused
with status 400.
"""

import json
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import requests

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # MLflow's, of its own classes, at import
    from mlflow.pyfunc.scoring_server.client import ScoringServerClient

TIME = "tpep_pickup_datetime"
ROWS = [0, 1, 2, 5, 10, 11]
"""One without its time, some without passengers."""


@pytest.fixture(scope="module")
def url(saved: Any, serving: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a server for yellow trips and return its address."""
    command = ["models", "serve", "-m", "models:/xgboost-ubj@champion", "--env-manager", "local"]
    command += ["--host", "127.0.0.1", "-p", "0"]  # of which MLflow does not tell uvicorn
    variables = {"MLFLOW_TRACKING_URI": saved["xgboost-ubj"].run.store_uri, "UVICORN_PORT": "0"}
    with serving(
        command, "http://127.0.0.1:0", tmp_path_factory.mktemp("serving"), **variables
    ) as address:
        yield address


def _ask(url: str, body: str | bytes, kind: str, expected: int = 200) -> Any:
    """Return the predictions, or what is wrong with the rows."""
    answer = requests.post(
        f"{url}/invocations", data=body, headers={"Content-Type": kind}, timeout=300
    )
    assert answer.status_code == expected, answer.text
    return answer.json()["predictions" if expected == 200 else "message"]


def _forms(sent: pd.DataFrame) -> Iterator[tuple[str | bytes, str]]:
    """Yield body and content type of the same trips in every form."""
    records = json.loads(sent.to_json(orient="records", date_format="iso"))
    split = json.loads(sent.to_json(orient="split", date_format="iso"))
    yield json.dumps({"dataframe_split": split}), "application/json"
    yield json.dumps({"dataframe_records": records}), "application/json; charset=utf-8"
    yield (
        json.dumps({"inputs": {name: [record[name] for record in records] for name in sent}}),
        "application/json",
    )
    yield json.dumps({"instances": records}), "application/json"
    yield sent.to_csv(index=False), "text/csv"
    reordered = sent.assign(VendorID=1)[["VendorID", *sent.columns[::-1]]]
    # as the TLC's
    yield reordered.to_csv(index=False, date_format="%Y-%m-%d %H:%M:%S"), "text/csv; charset=utf-8"
    yield sent.to_parquet(), "application/vnd.apache.parquet"


def test_every_form_gives_the_same_probabilities(
    url: str, natives: Any, trips: pd.DataFrame
) -> None:
    """Null where a value cannot be; and labels, where MLflow's client of its server asks for
    them.
    """
    expected = natives["xgboost-ubj"][1]
    lacking = trips.iloc[[10, 20]].drop(columns="passenger_count")  # they are missing in the trips
    odd = trips.iloc[[0, 1]].assign(PULocationID=[300, trips["PULocationID"][1]])
    whole = (trips.iloc[ROWS], expected[ROWS])
    null = (odd, [np.nan, expected[1]])
    for sent, scores in (whole, (lacking, expected[[10, 20]]), null):
        for body, kind in _forms(sent):
            np.testing.assert_allclose(
                np.array(_ask(url, body, kind), float), scores, atol=1e-6, err_msg=kind
            )
    client = ScoringServerClient(*url.removeprefix("http://").split(":"))
    labels = client.invoke(
        trips.iloc[ROWS], params={"output": "label", "threshold": 0.5}
    ).get_predictions()[0]
    assert labels.tolist() == (expected[ROWS] >= 0.5).astype(int).tolist()


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("DOLocationID", "JFK", "'JFK' of row 2 is not a number"),
        ("PULocationID", 1e300, "'1e+300' of row 2 is too large"),
        (TIME, "soon", "'soon' of row 2 is not a time"),
    ],
)
def test_a_value_that_cannot_be_read_is_refused(
    url: str, trips: pd.DataFrame, column: str, value: Any, says: str
) -> None:
    times = trips[TIME].dt.strftime("%Y-%m-%dT%H:%M:%S")
    sent = trips.assign(**{TIME: times}).iloc[:4].astype({column: object})
    sent.loc[1, column] = value
    records = {"dataframe_records": sent.to_dict("records")}
    for body, kind in ((json.dumps(records), "application/json"), (sent.to_csv(), "text/csv")):
        assert f"column '{column}' cannot be read: {says}. Fix: " in _ask(url, body, kind, 400)


@pytest.mark.parametrize("column", ["DOLocationID", "PULocationID", TIME])
def test_a_column_that_is_missing_is_refused(url: str, trips: pd.DataFrame, column: str) -> None:
    for body, kind in _forms(trips.head(3).drop(columns=column)):
        assert f"missing inputs ['{column}'" in _ask(url, body, kind, 400)
