"""The code on a registered version's page loads that version, and predicts rows when it is run."""

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from tests.jobs.conftest import Ended

FEW = "model.params.n_estimators=3"
Write = Callable[[pd.DataFrame, Path], None]


def write_german(rows: pd.DataFrame, path: Path) -> None:
    rows.to_csv(path, index=False, sep=";", decimal=",", encoding="cp1252")


GERMAN = ("data.decimal=','", "data.encoding=cp1252")
WRITE: dict[str, tuple[Write, tuple[str, ...], str]] = {
    "rows.parquet": (pd.DataFrame.to_parquet, (), 'read_parquet("rows.parquet")'),
    "rows.feather": (pd.DataFrame.to_feather, (), 'read_feather("rows.feather")'),
    "rows.jsonl": (
        lambda rows, path: rows.to_json(path, orient="records", lines=True),
        (),
        'read_json("rows.jsonl", lines=True)',
    ),
    "rows.csv": (
        lambda rows, path: rows.to_csv(path, index=False),
        (),
        'read_csv("rows.csv")',
    ),
    "rows.tsv": (
        lambda rows, path: rows.to_csv(path, index=False, sep="\t"),
        (),
        r'read_csv("rows.csv", sep="\t")',
    ),
    "german.csv": (
        write_german,
        GERMAN,
        'read_csv("rows.csv", sep=";", decimal=",", encoding="cp1252")',
    ),
    "codes.csv": (
        lambda rows, path: rows.replace({"Bonn": "053", "Ulm": "089"}).to_csv(path, index=False),
        (),
        'read_csv("rows.csv", dtype={"town": str})',
    ),
}
"""File of the training rows -> how it is written, the keys that read it, and what the page says."""


def usage_of(store: str, model_uri: str) -> str:
    """Return the code on a version's page."""
    name, number = model_uri.removeprefix("models:/").split("/")
    page = mlflow.MlflowClient(store).get_model_version(name, number).description
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    return str(code)


def predicted(code: str, store: str) -> Any:
    """Run the code with a store as MLflow's current one; return what its last line predicts."""
    *lines, last = code.splitlines()
    names: dict[str, Any] = {}
    mlflow.set_tracking_uri(store)
    try:
        exec("\n".join(lines), names)
        return eval(last, names)
    finally:
        mlflow.set_tracking_uri(None)


def houses() -> pd.DataFrame:
    rows = pd.DataFrame({"size": np.arange(400) / 4, "town": ["Köln", "Bonn", "Ulm", "Aue"] * 100})
    return rows.assign(sold=rows["size"].mul(7).mod(5).gt(2).map({True: "yes", False: "no"}))


@pytest.mark.parametrize("file", WRITE)
def test_rows_of_a_file_are_read_as_it_was_written(
    job: Callable[..., Ended], store: str, tmp_path: Path, file: str
) -> None:
    write, keys, reading = WRITE[file]
    write(houses(), tmp_path / file)
    words = ("data=table", f"data.train={tmp_path / file}", "task.target=sold", *keys)
    name = f"houses_{file.replace('.', '_')}"
    uri = job("train", *words, FEW, f"tracking.register={name}").said["model_uri"]

    code = usage_of(store, uri)
    assert f'load_model("models:/{name}/1")' in code
    assert reading in code

    # The same file under the name that the code has.
    (named,) = re.findall(r'"(rows\.\w+)"', reading)
    with contextlib.suppress(FileExistsError):
        (tmp_path / named).hardlink_to(tmp_path / file)
    scores = predicted(code, store)
    assert scores.shape == (400,)
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("data", ["sample", "blobs"])
def test_made_rows_are_the_input_example(job: Callable[..., Ended], store: str, data: str) -> None:
    words = ("data.rows=3000", f"tracking.register=made_{data}")
    if data == "blobs":
        words = (*words, "data=blobs", "task=target")
    uri = job("train", *words, FEW).said["model_uri"]
    code = usage_of(store, uri)
    assert f'load_model("{uri}")' in code
    assert len(predicted(code, store)) == 5
