"""A text in either Unicode form gets the same score by every way, and labels come in one form."""

import contextlib
import json
import unicodedata
import warnings
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Scored:
    """Scores of two files of the same rows in different forms."""

    by_form: dict[str, pd.DataFrame]
    run: Any


@pytest.fixture(scope="module", params=["csv", "parquet"])
def scored(
    request: pytest.FixtureRequest,
    model: Any,
    store: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Scored:
    ending = request.param
    folder = tmp_path_factory.mktemp(ending)
    (folder / "new").mkdir()
    for form in FORMS:
        path = folder / "new" / f"{form}.{ending}"
        rows = rows_in(form)
        rows.to_csv(path, index=False) if ending == "csv" else rows.to_parquet(path, index=False)

    words = (f"input={folder}/new", f"output={folder}/scores")
    with contextlib.chdir(folder):
        ended = run_job(store, "score", f"model_uri={model.said['model_uri']}", *words)
    paths = sorted((folder / "scores").glob("*.parquet"))
    tables = [pq.read_table(path).to_pandas() for path in paths]
    return Scored(dict(zip(FORMS, tables, strict=True)), ended.run)


def test_files_of_either_form_get_equal_scores(scored: Scored) -> None:
    one, other = (scored.by_form[form]["probability"] for form in FORMS)
    assert one.nunique() > 1
    assert one.equals(other)


@pytest.mark.parametrize("form", FORMS)
def test_scores_stand_beside_texts_in_the_form_of_their_file(scored: Scored, form: str) -> None:
    assert scored.by_form[form]["town"].tolist() == rows_in(form)["town"].tolist()


def test_known_labels_of_either_form_are_judged(scored: Scored) -> None:
    assert scored.run.data.metrics["labelled/accuracy"] == 1


@pytest.fixture
def loaded(model: Any, store: str) -> Any:
    """The model as MLflow loads it."""
    mlflow.set_tracking_uri(store)
    return mlflow.pyfunc.load_model(model.said["model_uri"])


@pytest.mark.parametrize("form", FORMS)
def test_labels_of_a_loaded_model_come_in_one_form(loaded: Any, form: str) -> None:
    labels = loaded.predict(rows_in(form), params={"output": "label"})
    assert labels.tolist() == rows_in("NFC")["kind"].tolist()


@pytest.mark.parametrize("form", FORMS)
def test_labels_of_a_server_come_in_one_form(loaded: Any, form: str) -> None:
    sent = {"dataframe_split": rows_in(form).drop(columns="kind").to_dict(orient="split")}
    sent["params"] = {"output": "label"}
    schema = loaded.metadata.get_input_schema()
    answer = invocations(json.dumps(sent), "application/json", loaded, schema)
    assert json.loads(answer.response)["predictions"] == rows_in("NFC")["kind"].tolist()


def test_a_server_scores_csv_of_either_form_alike(loaded: Any) -> None:
    schema = loaded.metadata.get_input_schema()
    scores = []
    for form in FORMS:
        text = rows_in(form).drop(columns="kind").to_csv(index=False)
        answer = invocations(text, "text/csv", loaded, schema)
        scores.append(json.loads(answer.response)["predictions"])
    assert scores[0] == scores[1]
    assert len(set(scores[0])) > 1
