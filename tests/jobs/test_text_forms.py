"""A text in either Unicode form gets the same score by every way, and labels come in one form."""

import json
import unicodedata
import warnings
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from tests.jobs.conftest import run_job

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # MLflow's, of its own classes, at import
    from mlflow.pyfunc.scoring_server import invocations

TOWNS = ["Köln", "Bonn", "Nîmes", "Ulm"]
FORMS = ("NFC", "NFD")


def rows_in(form: str) -> pd.DataFrame:
    """Make rows whose town tells the class, both in a Unicode form."""
    rows = pd.DataFrame({"town": TOWNS * 20, "size": ["1.5", "2.5", "3.5", "4.5", "5.5"] * 16})
    rows.loc[::20, "size"] = "spät"
    rows["kind"] = np.where(rows["town"].isin(TOWNS[:2]), "nö", "já")
    return rows.map(lambda text: unicodedata.normalize(form, text))


@pytest.fixture(scope="module")
def model(store: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A training on rows of which each half is in another form."""
    folder = tmp_path_factory.mktemp("forms")
    pd.concat(map(rows_in, FORMS)).to_csv(folder / "rows.csv", index=False)
    words = ("data=table", f"data.train={folder}/rows.csv", "task.target=kind")
    return run_job(store, "train", *words, "model.params.n_estimators=3")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_scored_files_have_equal_scores_and_their_own_texts(
    job: Any, model: Any, tmp_path: Path, ending: str
) -> None:
    (tmp_path / "new").mkdir()
    for form in FORMS:
        path = tmp_path / "new" / f"{form}.{ending}"
        rows = rows_in(form)
        rows.to_csv(path, index=False) if ending == "csv" else rows.to_parquet(path, index=False)

    address = f"model_uri={model.said['model_uri']}"
    done = job("score", address, f"input={tmp_path}/new", f"output={tmp_path}/scores")
    one, other = (
        pq.read_table(path).to_pandas() for path in sorted((tmp_path / "scores").glob("*.parquet"))
    )
    assert one["probability"].nunique() > 1
    assert one["probability"].equals(other["probability"])
    for form, scored in zip(FORMS, (one, other), strict=True):
        assert scored["town"].tolist() == rows_in(form)["town"].tolist()
    assert done.run.data.metrics["labelled/accuracy"] == 1


@pytest.fixture
def loaded(model: Any, store: str) -> Any:
    """The model as MLflow loads it."""
    mlflow.set_tracking_uri(store)
    return mlflow.pyfunc.load_model(model.said["model_uri"])


@pytest.mark.parametrize("form", FORMS)
def test_a_loaded_model_and_its_server_give_the_same_labels(loaded: Any, form: str) -> None:
    rows = rows_in(form)
    expected = rows_in("NFC")["kind"].tolist()
    assert loaded.predict(rows, params={"output": "label"}).tolist() == expected

    sent = {"dataframe_split": rows.drop(columns="kind").to_dict(orient="split")}
    sent["params"] = {"output": "label"}
    schema = loaded.metadata.get_input_schema()
    answer = invocations(json.dumps(sent), "application/json", loaded, schema)
    assert json.loads(answer.response)["predictions"] == expected


def test_a_server_scores_csv_of_either_form_alike(loaded: Any) -> None:
    schema = loaded.metadata.get_input_schema()
    scores = []
    for form in FORMS:
        text = rows_in(form).drop(columns="kind").to_csv(index=False)
        answer = invocations(text, "text/csv", loaded, schema)
        scores.append(json.loads(answer.response)["predictions"])
    assert scores[0] == scores[1]
    assert len(set(scores[0])) > 1
