"""A table with dates: what trains on it scores every form of a date alike, in files and as MLflow
does it.
"""

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from tests.jobs.conftest import Ended, run_job

from tipcast.commands import compose_jobs

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # MLflow's, of its own classes, at import
    from mlflow.pyfunc.scoring_server import invocations

NAMES = ["signup_weekday", "signup_month", "signup_dayofyear", "signup_days"]


def rows(count: int, seed: int) -> pd.DataFrame:
    """Make rows whose date, which some lack, tells the value."""
    draw = np.random.default_rng(seed)
    days = np.datetime64("1900-01-01", "us") + draw.integers(0, 73_000, count) * np.timedelta64(
        86_400_000_000, "us"
    )
    signup = pd.Series(days + draw.integers(0, 86_400, count).astype("timedelta64[s]"))
    signup[draw.random(count) < 0.1] = pd.NaT
    size = draw.normal(size=count)
    value = signup.dt.weekday.fillna(9) * 3 + signup.dt.month.fillna(0) + size
    return pd.DataFrame({"signup": signup, "size": size, "value": value})


def with_texts(frame: pd.DataFrame, form: str) -> pd.DataFrame:
    """Return rows with texts for dates, empty ones where they are missing."""
    return frame.assign(signup=frame["signup"].dt.strftime(form).astype(object).fillna(""))


NEW = rows(200, seed=1)[["signup", "size"]]
FRAMES = {
    "times": NEW,
    "times of utc": NEW.assign(signup=NEW["signup"].dt.tz_localize("UTC")),
    "dates": NEW.assign(signup=NEW["signup"].dt.date),
    "days": with_texts(NEW, "%Y-%m-%d"),
    "iso": with_texts(NEW, "%Y-%m-%dT%H:%M:%S.000Z"),
    "slashes": with_texts(NEW, "%d/%m/%Y"),
    "dots": with_texts(NEW, "%d.%m.%Y"),
    "slashes and clocks": with_texts(NEW, "%d/%m/%Y %I:%M %p"),
}


@dataclass(frozen=True)
class OfDates:
    """A model that was trained on a table with dates, and the scores of a Parquet file."""

    model: str
    ended: Ended
    loaded: Any
    scores: Any

    @property
    def uri(self) -> str:
        return str(self.ended.said["model_uri"])


def scored(store: str, uri: str, path: Path) -> Any:
    """Return the scores of a file by `tipcast score`."""
    output = path.parent / f"{path.name}.scores"
    run_job(store, "score", f"model_uri={uri}", f"input={path}", f"output={output}")
    return pd.read_parquet(output)["prediction"].to_numpy()


@pytest.fixture(scope="module", params=["xgboost", "ridge"])
def of_dates(
    request: pytest.FixtureRequest, store: str, tmp_path_factory: pytest.TempPathFactory
) -> OfDates:
    folder = tmp_path_factory.mktemp("dates")
    with_texts(rows(600, seed=0), "%d/%m/%Y").to_csv(folder / "train.csv", index=False)
    words = ("data=table", f"data.train={folder}/train.csv", "data.types.signup=date")
    ended = run_job(store, "train", *words, "task.target=value", f"model={request.param}")

    NEW.to_parquet(folder / "new.parquet", index=False)
    mlflow.set_tracking_uri(store)
    uri = ended.said["model_uri"]
    loaded = mlflow.pyfunc.load_model(uri)
    return OfDates(request.param, ended, loaded, scored(store, uri, folder / "new.parquet"))


def test_a_model_learns_from_weekdays(of_dates: OfDates) -> None:
    assert of_dates.ended.run.data.metrics["test/r2"] > 0.8
    assert len(set(of_dates.scores)) > 100


@pytest.mark.parametrize("form", FRAMES)
def test_a_frame_gets_the_scores_of_a_file(of_dates: OfDates, form: str) -> None:
    predicted = of_dates.loaded.predict(FRAMES[form])
    np.testing.assert_allclose(predicted, of_dates.scores, rtol=1e-6)


@pytest.mark.parametrize("form", ["dates", "days", "iso", "slashes"])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_files_of_every_form_get_one_score(
    of_dates: OfDates, store: str, tmp_path: Path, form: str, ending: str
) -> None:
    path = tmp_path / f"new.{ending}"
    frame = FRAMES[form]
    frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path, index=False)
    np.testing.assert_allclose(scored(store, of_dates.uri, path), of_dates.scores, rtol=1e-6)


@pytest.mark.parametrize("form", ["days", "iso", "slashes"])
def test_a_server_gets_the_scores_of_a_file(of_dates: OfDates, form: str) -> None:
    schema = of_dates.loaded.metadata.get_input_schema()
    frame = FRAMES[form]
    split = json.dumps({"dataframe_split": frame.to_dict("split", index=False)})
    for body, kind in ((split, "application/json"), (frame.to_csv(index=False), "text/csv")):
        answer = invocations(body, kind, of_dates.loaded, schema)
        assert answer.status == 200, answer.response
        predicted = json.loads(answer.response)["predictions"]
        np.testing.assert_allclose(predicted, of_dates.scores, rtol=1e-6)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("2021-02-30", "'2021-02-30' of row 2 is a day that does not exist"),
        ("12/31/2020", "'12/31/2020' of row 2 is a day that does not exist"),
        ("Rome", "'Rome' of row 2 is not a date"),
        (1614556800, "'1614556800' of row 2 is not a date"),
        ("2021-01-05T10:00:00+01:00", "of row 2 is a time in a zone other than UTC"),
        (pd.Timestamp("2021-01-05", tz="Europe/Berlin"), "of row 2 is a time in a zone other"),
    ],
)
def test_a_value_that_is_no_date_is_named(of_dates: OfDates, value: Any, error: str) -> None:
    frame = pd.DataFrame({"signup": pd.Series(["2021-01-05", value], dtype=object), "size": 1.0})
    with pytest.raises(MlflowException, match=f"column 'signup' cannot be read: .*{error}"):
        of_dates.loaded.predict(frame)


def test_the_signature_has_the_column_once(of_dates: OfDates) -> None:
    assert of_dates.loaded.metadata.get_input_schema().input_names() == ["signup", "size"]


def test_features_go_by_their_names(of_dates: OfDates) -> None:
    features = of_dates.loaded.predict(NEW, params={"output": "features"})
    indicator = [] if of_dates.model == "xgboost" else ["signup is missing"]
    assert [*features] == [*NAMES, "size", *indicator]
    full = NEW["signup"].notna()
    np.testing.assert_array_equal(
        features.loc[full, "signup_weekday"], NEW.loc[full, "signup"].dt.weekday
    )


def test_contributions_go_by_the_names_of_features(of_dates: OfDates) -> None:
    if of_dates.model == "xgboost":
        parts = of_dates.loaded.predict(NEW, params={"output": "contributions"})
        assert [*parts] == [*NAMES, "size", "bias"]
        np.testing.assert_allclose(parts.sum(axis=1), of_dates.scores, rtol=1e-4, atol=1e-4)


def test_one_feature_of_a_date_can_be_chosen(
    job: Callable[..., Ended], store: str, tmp_path: Path
) -> None:
    rows(300, seed=2).to_parquet(tmp_path / "train.parquet")
    words = ["data=table", f"data.train={tmp_path}/train.parquet", "data.types.signup=date"]
    words += ["task.target=value", "model=ridge", "task.features=[signup_weekday]"]
    ended = job("train", *words, "task.categorical=[signup_weekday]")
    mlflow.set_tracking_uri(store)
    loaded = mlflow.pyfunc.load_model(ended.said["model_uri"])
    NEW.to_parquet(tmp_path / "new.parquet", index=False)
    scores = scored(store, ended.said["model_uri"], tmp_path / "new.parquet")
    np.testing.assert_allclose(loaded.predict(NEW[["signup"]]), scores, rtol=1e-6)
    assert ended.run.data.metrics["test/r2"] > 0.8


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_inspect_names_columns_that_could_be_dates(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows.{ending}"
    frame = rows(100, seed=3)
    frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path)
    (composed,) = compose_jobs("inspect", [f"data.train={path}", "print=none"])
    (row, *_) = composed.run()["columns"]
    assert row["note"].endswith("; signup could be a date: data.types.signup=date")
    words = [f"data.train={path}", "data.types.signup=date", "print=none"]
    (composed,) = compose_jobs("inspect", words)
    (row, *_) = composed.run()["columns"]
    assert row["taken as"] == "date"
    assert row["note"] == f"features {', '.join(NAMES)}"


def test_a_training_names_columns_that_could_be_dates(
    job: Callable[..., Ended], tmp_path: Path, logged: list[str]
) -> None:
    rows(100, seed=3).to_parquet(tmp_path / "train.parquet")
    words = ["data=table", f"data.train={tmp_path}/train.parquet", "task.target=value"]
    job("train", *words, "model=ridge")
    assert "signup could be a date: data.types.signup=date" in logged
