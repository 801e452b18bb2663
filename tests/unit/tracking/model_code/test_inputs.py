"""What MLflow's enforcement of a signature does with raw rows that come in other forms than a data frame.

The behaviours are those that MLflow's own tests of it ask of a column-based signature with names.
"""

import datetime
import decimal
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException

TIME, ZONES = "tpep_pickup_datetime", ["PULocationID", "DOLocationID"]


@pytest.fixture(scope="module")
def model(saved: Any) -> Any:
    return mlflow.pyfunc.load_model(str(saved["xgboost-ubj"].folder))


@pytest.fixture(scope="module")
def rows(trips: pd.DataFrame) -> pd.DataFrame:
    """Trips that lack nothing."""
    return trips.dropna().head(20).reset_index(drop=True)


def _forms(rows: pd.DataFrame) -> dict[str, Any]:
    """Form -> the same rows in it."""
    numbers = rows[ZONES]
    return {
        "a list of records": rows.to_dict("records"),
        "a dictionary of lists": rows.to_dict("list"),
        "a dictionary of arrays": {name: rows[name].to_numpy() for name in rows},
        "arrays of more dimensions beside them": {
            **{name: rows[name].to_numpy() for name in rows},
            "matrix": np.zeros((len(rows), 2)),
        },
        "another order and more columns": rows.assign(VendorID=1, more="x")[["more", *rows.columns[::-1], "VendorID"]],
        "unsigned": rows.assign(**numbers.astype(np.uint16)),
        "text": rows.assign(**numbers.astype(str), **{TIME: rows[TIME].astype(str)}),
        "decimals": rows.assign(**numbers.map(decimal.Decimal)),
        "Python's objects": rows.astype(object),
        "Python's times": rows.assign(**{TIME: pd.Series(list(rows[TIME].dt.to_pydatetime()), dtype=object)}),
    }


def test_forms_that_are_the_same_rows(model: Any, rows: pd.DataFrame) -> None:
    expected = model.predict(rows)
    for name, form in _forms(rows).items():
        np.testing.assert_allclose(model.predict(form), expected, atol=1e-6, err_msg=name)


def test_one_row_as_a_dictionary_and_days_without_a_time(model: Any, rows: pd.DataFrame) -> None:
    one = {**rows.iloc[0].to_dict(), TIME: str(rows[TIME][0])}
    np.testing.assert_allclose(model.predict(one), model.predict(rows.head(1)), atol=1e-6)
    midnight = model.predict(rows.assign(**{TIME: rows[TIME].dt.normalize()}))
    days: list[datetime.date] = list(rows[TIME].dt.date)
    for given in (days, [str(day) for day in days], np.array(days, dtype="datetime64[s]")):
        np.testing.assert_allclose(model.predict(rows.assign(**{TIME: given})), midnight, atol=1e-6)


@pytest.mark.parametrize(
    ("give", "says"),
    [
        (lambda rows: rows.drop(columns=TIME), rf"Model is missing inputs \['{TIME}'\]"),
        (lambda rows: rows.rename(columns={"DOLocationID": "dropoff"}), "were extra inputs: .*dropoff"),
        (lambda rows: rows.rename(columns=str.lower), "missing inputs .*'PULocationID', 'DOLocationID'"),
        (lambda rows: {name: [rows[name].tolist()] for name in rows}, "cannot be read: "),
        (lambda rows: rows.assign(PULocationID=[{"zone": 1}] * len(rows)), "'PULocationID' cannot be read: "),
        (lambda rows: rows.assign(PULocationID=rows[TIME]), "'PULocationID' cannot be read: "),
        (lambda rows: rows.assign(**{TIME: True}), "a time is a number"),
    ],
)
def test_what_is_refused(model: Any, rows: pd.DataFrame, give: Any, says: str) -> None:
    with pytest.raises(MlflowException, match=f"(?s){says}") as caught:
        model.predict(give(rows))
    assert caught.value.get_http_status_code() == 400
