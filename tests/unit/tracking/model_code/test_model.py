"""A logged model without tipcast: raw trips of any type in, the estimator's scores out; changed
files refused.
"""

import datetime
import decimal
import importlib.util
import json
import py_compile
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from tests.conftest import python

TIME = "tpep_pickup_datetime"
ZONES = ["PULocationID", "DOLocationID"]
FORMATS = ("xgboost-ubj", "treelite", "skops")
ISOLATED = """
import json, sys
sys.modules["tipcast"] = None  # to import it fails, as where it is not installed
import mlflow, pandas
folders, trips = json.loads(sys.argv[1]), pandas.read_parquet(sys.argv[2])
print(json.dumps([mlflow.pyfunc.load_model(folder).predict(trips).tolist() for folder in folders]))
assert not {"hydra", "distributed"} & set(sys.modules)  # scikit-learn loads dask where it is
"""


@pytest.fixture(scope="session")
def models(saved: Any) -> dict[str, Any]:
    """Format -> the model as loaded from its files alone."""
    return {format: mlflow.pyfunc.load_model(str(one.folder)) for format, one in saved.items()}


@pytest.fixture
def rows(trips: pd.DataFrame) -> pd.DataFrame:
    """Trips that lack nothing."""
    return trips.dropna().head(20).reset_index(drop=True)


def test_models_need_no_tipcast(saved: Any, trips: pd.DataFrame, tmp_path: Path) -> None:
    trips.to_parquet(tmp_path / "trips.parquet")
    folders = json.dumps([str(saved[format].folder) for format in FORMATS])
    done = python(tmp_path, "-I", "-c", ISOLATED, folders, tmp_path / "trips.parquet")
    assert done.returncode == 0, done.stderr
    for format, scores in zip(FORMATS, json.loads(done.stdout.splitlines()[-1]), strict=True):
        np.testing.assert_allclose(scores, saved[format].expected, atol=1e-6)


def _types(trips: pd.DataFrame) -> Iterator[pd.DataFrame]:
    passengers = trips["passenger_count"]
    zones = trips[ZONES]
    yield trips
    yield trips.astype({"PULocationID": "float64", "DOLocationID": "float32"})
    yield trips.astype({"PULocationID": "int32", "DOLocationID": "int16"})
    yield trips.assign(
        passenger_count=passengers.astype("Int64"),
        PULocationID=trips["PULocationID"].astype("Int64"),
    )
    yield trips.assign(passenger_count=passengers.astype("float32"), **zones.astype(np.uint16))
    yield (
        trips.copy(deep=True)
        .convert_dtypes(dtype_backend="pyarrow")
        .astype({TIME: "datetime64[us]"})
    )
    yield trips.assign(passenger_count=passengers.astype(object).where(passengers.notna(), None))
    yield trips.astype({TIME: "datetime64[ns]"}).assign(**zones.map(decimal.Decimal))
    yield trips.astype({TIME: "datetime64[ms]"}).assign(**zones.astype(str))
    yield trips[trips.columns[::-1]].assign(VendorID=1, Airport_fee=None).set_index(trips.index + 7)


@pytest.mark.parametrize("format", FORMATS)
def test_types_of_raw_columns_do_not_matter(
    saved: Any, models: Any, trips: pd.DataFrame, format: str
) -> None:
    for frame in _types(trips):
        scores = models[format].predict(frame)
        assert scores.dtype == np.float64
        np.testing.assert_allclose(
            scores, saved[format].expected, atol=1e-6, err_msg=str(frame.dtypes)
        )


def test_forms_that_are_the_same_rows(models: Any, rows: pd.DataFrame) -> None:
    """As MLflow's own tests of a column-based signature with names ask."""
    model = models["xgboost-ubj"]
    arrays = {name: rows[name].to_numpy() for name in rows}
    expected = model.predict(rows)
    for form in (
        rows.to_dict("records"),
        rows.to_dict("list"),
        arrays,
        arrays | {"matrix": np.zeros((len(rows), 2))},  # of more dimensions
        rows.astype(object),
        rows.assign(**{TIME: rows[TIME].astype(str)}),
        rows.assign(**{TIME: pd.Series(list(rows[TIME].dt.to_pydatetime()), dtype=object)}),
    ):
        np.testing.assert_allclose(
            model.predict(form), expected, atol=1e-6, err_msg=str(form)[:500]
        )
    one = {**rows.iloc[0].to_dict(), TIME: str(rows[TIME][0])}
    np.testing.assert_allclose(model.predict(one), expected[:1], atol=1e-6)


def test_times_of_a_zone_are_its_wall_clock_times(models: Any, trips: pd.DataFrame) -> None:
    code = models["skops"].unwrap_python_model()
    zoned = trips.assign(
        **{TIME: trips[TIME].dt.tz_localize("America/New_York", ambiguous=True, nonexistent="NaT")}
    )
    plain = zoned.assign(**{TIME: zoned[TIME].dt.tz_localize(None)})
    np.testing.assert_array_equal(code.predict(None, zoned), code.predict(None, plain))


def test_days_are_midnights(models: Any, rows: pd.DataFrame) -> None:
    midnight = models["skops"].predict(rows.assign(**{TIME: rows[TIME].dt.normalize()}))
    days: list[datetime.date] = list(rows[TIME].dt.date)
    for given in (days, [str(day) for day in days], np.array(days, dtype="datetime64[s]")):
        np.testing.assert_allclose(
            models["skops"].predict(rows.assign(**{TIME: given})), midnight, atol=1e-6
        )


@pytest.mark.parametrize(
    ("give", "says"),
    [
        (lambda rows: rows.drop(columns=TIME), rf"Model is missing inputs \['{TIME}'\]"),
        (
            lambda rows: rows.rename(columns={"DOLocationID": "dropoff"}),
            "were extra inputs: .*dropoff",
        ),
        (lambda rows: {name: [rows[name].tolist()] for name in rows}, "cannot be read: "),
        (
            lambda rows: rows.assign(PULocationID=[{"zone": 1}] * len(rows)),
            "'PULocationID' cannot be read: ",
        ),
        (lambda rows: rows.assign(PULocationID=rows[TIME]), "'PULocationID' cannot be read: "),
        (lambda rows: rows.assign(**{TIME: True}), "times are numbers"),
    ],
)
def test_what_is_refused(models: Any, rows: pd.DataFrame, give: Any, says: str) -> None:
    with pytest.raises(MlflowException, match=f"(?s){says}") as caught:
        models["xgboost-ubj"].predict(give(rows))
    assert caught.value.get_http_status_code() == 400
    for name in (TIME, *ZONES):  # as called without MLflow's own check
        with pytest.raises(
            MlflowException,
            match=f"^[^\n]*missing column '{name}'; the model needs raw rows[^\n]*$",
        ):
            models["skops"].unwrap_python_model().predict(None, rows.drop(columns=name))


@pytest.mark.parametrize("format", FORMATS)
def test_a_column_that_may_lack_counts_as_missing_values(
    models: Any, trips: pd.DataFrame, format: str
) -> None:
    expected = models[format].predict(trips.assign(passenger_count=np.nan))
    scores = models[format].predict(trips.drop(columns="passenger_count"))
    np.testing.assert_allclose(scores, expected, atol=1e-12)


@pytest.mark.parametrize("format", FORMATS)
def test_no_rows_get_no_scores(models: Any, trips: pd.DataFrame, format: str) -> None:
    assert models[format].predict(trips.head(0)).shape == (0,)


@pytest.mark.parametrize("format", FORMATS)
def test_rows_that_cannot_be_get_no_score(
    saved: Any, models: Any, trips: pd.DataFrame, format: str
) -> None:
    odd = trips.astype({"PULocationID": "float64"})
    odd.loc[[1, 2], "PULocationID"] = [300.0, np.nan]
    odd.loc[3, "passenger_count"] = 1e8
    odd.loc[[4, 6], TIME] = [pd.Timestamp("2090-01-01"), pd.NaT]
    scores = models[format].predict(odd)
    assert np.flatnonzero(np.isnan(scores)).tolist() == [1, 3, 4], "what is missing is scored"
    np.testing.assert_allclose(scores[7:], saved[format].expected[7:], atol=1e-6)


def test_a_model_of_xgboost_gives_contributions(models: Any, trips: pd.DataFrame) -> None:
    contributions = models["xgboost-ubj"].predict(trips, params={"output": "contributions"})
    assert len(contributions) == len(trips)


@pytest.mark.parametrize("format", ["treelite", "skops"])
def test_a_model_that_has_no_contributions_says_so(
    models: Any, trips: pd.DataFrame, format: str
) -> None:
    says = f"'contributions' is not available for this {format} model. Fix: use probability"
    with pytest.raises(MlflowException, match=says):
        models[format].predict(trips, params={"output": "contributions"})


def test_what_runs_are_the_bytes_that_were_checked(
    saved: Any, tmp_path: Path, trips: pd.DataFrame
) -> None:
    """Python would run a compiled file that lies beside the source."""
    folder = tmp_path / "model"
    shutil.copytree(saved["skops"].folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "artifacts" / "features.py"
    (planted := tmp_path / "planted.py").write_text("raise RuntimeError('planted')")
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(
        str(planted), importlib.util.cache_from_source(str(path)), invalidation_mode=unchecked
    )
    scores = mlflow.pyfunc.load_model(str(folder)).predict(trips)
    np.testing.assert_allclose(scores, saved["skops"].expected, atol=1e-6)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["model", "features.py", "native.py", "manifest.json"])
def test_a_changed_file_is_refused_before_it_is_read(
    saved: Any, tmp_path: Path, format: str, name: str
) -> None:
    shutil.copytree(saved[format].folder, tmp_path / "model")
    (path,) = (tmp_path / "model" / "artifacts").glob("model.*" if name == "model" else name)
    content = bytearray(path.read_bytes())
    if path.suffix == ".py":
        content = bytearray(b"open('ran', 'w').close()\n") + content
    else:
        content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        MlflowException, match=rf"{path.name} is not the file that was logged: SHA-256 \w+, not \w+"
    ):
        mlflow.pyfunc.load_model(str(tmp_path / "model"))
    assert not (tmp_path / "ran").exists()
