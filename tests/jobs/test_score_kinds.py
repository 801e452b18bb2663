"""`tipcast score` with models of every kind of task: what is written, and metrics where answers are known."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tipcast.config.errors import TipcastError

Job = Callable[..., Any]
FEATURES = ["a", "b", "size"]
CLASSES = ["blue", "green", "red"]
STAMP = ["model_name", "model_version"]
SCORING = "tracking.experiment=kinds"


def rows(seed: int, number: int = 2000) -> pd.DataFrame:
    """Make a table with a text, a class of three and a value, both to be learnt of the other columns."""
    draw = np.random.default_rng(seed)
    made = pd.DataFrame(draw.standard_normal((number, 2)), columns=["a", "b"])
    made["size"] = draw.choice(["small", "large"], number)
    made["colour"] = np.array(CLASSES)[np.digitize(made["a"] + 0.3 * draw.standard_normal(number), [-0.5, 0.5])]
    made["value"] = 2 * made["b"] + (made["size"] == "large")
    return made


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a training file and, below `new`, files to be scored."""
    folder = tmp_path_factory.mktemp("tables")
    rows(0).to_parquet(folder / "train.parquet", index=False)
    (folder / "new").mkdir()
    known = rows(1)
    known.loc[1, "a"], known.loc[2, "b"] = np.nan, np.inf
    known.to_parquet(folder / "new" / "known.parquet", index=False, row_group_size=700)
    known.drop(columns=["colour", "value"]).drop(index=2).to_csv(folder / "new" / "unknown.csv", index=False)
    return folder


def trained(job: Job, name: str, *words: str) -> None:
    job("train", *words, SCORING, f"tracking.register={name}", "model=xgboost", "model.params.n_estimators=20")


def of_table(job: Job, name: str, files: Path, target: str) -> None:
    words = [f"data.train={files}/train.parquet", "data.test_share=0.2", "task=target", f"task.target={target}"]
    trained(job, name, "data=table", *words, f"task.features=[{','.join(FEATURES)}]")


def by_mlflow(store: str, name: str, frame: pd.DataFrame) -> Any:
    mlflow.set_tracking_uri(store)
    return mlflow.pyfunc.load_model(f"models:/{name}/1").predict(frame)


@pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning")  # MLflow's, of its own classes, at import
def test_classes_of_a_table(job: Job, store: str, files: Path, tmp_path: Path) -> None:
    of_table(job, "colours", files, "colour")
    words = ["model_uri=models:/colours/1", f"input={files}/new", f"output={tmp_path}/scored", SCORING]
    ended = job("score", *words, "block_bytes=20000")
    given, scored = (pq.read_table(folder / "known.parquet") for folder in (files / "new", tmp_path / "scored"))
    probabilities = [f"probability_{name}" for name in CLASSES]
    assert scored.column_names == [*given.column_names, *probabilities, "prediction", *STAMP]
    assert scored.select(given.column_names).equals(given.replace_schema_metadata(None))
    assert [at for at, value in enumerate(scored["prediction"].to_pylist()) if value is None] == [2]
    found = scored.to_pandas().drop(index=2)
    expected = by_mlflow(store, "colours", given.to_pandas()[FEATURES].drop(index=2))
    assert np.abs(found[probabilities].to_numpy() - np.asarray(expected)).max() < 1e-6
    assert (found["prediction"].to_numpy() == np.array(CLASSES)[np.asarray(expected).argmax(axis=1)]).all()
    metrics = ended.run.data.metrics
    assert metrics["labelled/rows"] == given.num_rows - 1
    right = found["prediction"] == given.to_pandas()["colour"].drop(index=2)
    assert metrics["labelled/accuracy"] == pytest.approx(right.mean())
    unknown = pq.read_table(tmp_path / "scored" / "unknown.csv.parquet")
    assert unknown.schema.field("a").type == pa.float64()
    assert unknown["prediction"].to_pylist() == found["prediction"].to_list()
    assert job("score", *words, "block_bytes=20000").said["scored"] == 0


@pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning")
def test_values_of_a_table(job: Job, store: str, files: Path, tmp_path: Path) -> None:
    of_table(job, "values", files, "value")
    words = ["model_uri=models:/values/1", f"output={tmp_path}/scored", SCORING]
    ended = job("score", *words, f"input={files}/new/known.parquet")
    scored = pq.read_table(tmp_path / "scored" / "known.parquet")
    assert scored.column_names == [*rows(0, 1).columns, "prediction", *STAMP]
    found = scored.to_pandas().drop(index=2)
    assert np.abs(found["prediction"] - by_mlflow(store, "values", found[FEATURES])).max() < 1e-5
    error = found["prediction"] - found["value"]
    metrics = ended.run.data.metrics
    assert metrics["labelled/rmse"] == pytest.approx(float(np.sqrt((error**2).mean())), rel=1e-5)
    assert metrics["score/mean"] == pytest.approx(float(found["prediction"].mean()), rel=1e-5)
    texts = pq.read_table(files / "new" / "known.parquet").to_pandas().astype({"value": str})
    texts.to_parquet(tmp_path / "texts.parquet", index=False)
    ended = job("score", *words, f"input={tmp_path}/texts.parquet")
    assert ended.run.data.metrics["labelled/rmse"] == metrics["labelled/rmse"], "numbers that are written as texts"
    texts.assign(a=pd.Timestamp("2020-01-01")).to_parquet(tmp_path / "texts.parquet", index=False)
    with pytest.raises(TipcastError) as caught:
        job("score", *words, f"input={tmp_path}/texts.parquet")
    assert caught.value.code == "D008"
