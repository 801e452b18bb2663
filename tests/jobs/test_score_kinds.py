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
CLASSES = ["blue", "green", "red"]
STAMP = ["model_name", "model_version"]
SCORING = "tracking.experiment=kinds"


def rows(seed: int) -> pd.DataFrame:
    """Make a table with a text, a class of three and a value, both to be learnt of the other columns."""
    draw = np.random.default_rng(seed)
    made = pd.DataFrame(draw.standard_normal((2000, 2)), columns=["a", "b"])
    made["size"] = draw.choice(["small", "large"], 2000)
    made["colour"] = np.array(CLASSES)[np.digitize(made["a"] + 0.3 * draw.standard_normal(2000), [-0.5, 0.5])]
    made["value"] = 2 * made["b"] + (made["size"] == "large")
    return made


@pytest.fixture
def scored(job: Job, store: str, tmp_path: Path) -> Callable[..., Any]:
    """Train a model of a target, score files; return the job's end, scores without row 2, and MLflow's predictions."""
    rows(0).to_parquet(tmp_path / "train.parquet", index=False)
    known = rows(1)
    known.loc[1, "a"], known.loc[2, "b"] = np.nan, np.inf
    (tmp_path / "new").mkdir()
    known.to_parquet(tmp_path / "new" / "known.parquet", index=False, row_group_size=700)

    def run(target: str, *words: str) -> Any:
        data = ["data=table", f"data.train={tmp_path}/train.parquet", "data.test_share=0.2", "model=xgboost"]
        task = ["task=target", f"task.target={target}", "task.features=[a,b,size]", "model.params.n_estimators=20"]
        job("train", *data, *task, SCORING, f"tracking.register={target}")
        ended = score(job, tmp_path, target)
        given, table = (pq.read_table(tmp_path / folder / "known.parquet") for folder in ("new", "scored"))
        assert table.select(given.column_names).equals(given.replace_schema_metadata(None))
        assert [at for at, value in enumerate(table["prediction"].to_pylist()) if value is None] == [2]
        mlflow.set_tracking_uri(store)
        found = table.to_pandas().drop(index=2)
        predicted = mlflow.pyfunc.load_model(f"models:/{target}/1").predict(found[["a", "b", "size"]])
        return ended, found, np.asarray(predicted)

    return run


def score(job: Job, folder: Path, model: str) -> Any:
    words = [f"model_uri=models:/{model}/1", f"input={folder}/new", f"output={folder}/scored", "block_bytes=20000"]
    return job("score", *words, SCORING)


@pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning")  # MLflow's, of its own classes, at import
def test_classes_of_a_table(scored: Job, job: Job, tmp_path: Path) -> None:
    ended, found, expected = scored("colour")
    probabilities = [f"probability_{name}" for name in CLASSES]
    assert [*found] == [*rows(0), *probabilities, "prediction", *STAMP]
    assert np.abs(found[probabilities].to_numpy() - expected).max() < 1e-6
    assert (found["prediction"].to_numpy() == np.array(CLASSES)[expected.argmax(axis=1)]).all()
    metrics = ended.run.data.metrics
    assert metrics["labelled/rows"] == len(found)
    assert metrics["labelled/accuracy"] == pytest.approx((found["prediction"] == found["colour"]).mean())
    found[["a", "b", "size"]].to_csv(tmp_path / "new" / "unknown.csv", index=False)
    assert score(job, tmp_path, "colour").said["scored"] == 1
    unknown = pq.read_table(tmp_path / "scored" / "unknown.csv.parquet")
    assert unknown.schema.field("a").type == pa.float64()
    assert unknown["prediction"].to_pylist() == found["prediction"].to_list()
    assert score(job, tmp_path, "colour").said["scored"] == 0


@pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning")
def test_values_of_a_table(scored: Job, job: Job, tmp_path: Path) -> None:
    ended, found, expected = scored("value")
    assert [*found] == [*rows(0), "prediction", *STAMP]
    assert np.abs(found["prediction"] - expected).max() < 1e-5
    error, metrics = found["prediction"] - found["value"], ended.run.data.metrics
    assert metrics["labelled/rmse"] == pytest.approx(float(np.sqrt((error**2).mean())), rel=1e-5)
    assert metrics["score/mean"] == pytest.approx(float(found["prediction"].mean()), rel=1e-5)
    file = tmp_path / "new" / "known.parquet"
    texts = pd.read_parquet(file).astype({"value": str})
    texts.to_parquet(file, index=False)
    again = score(job, tmp_path, "value").run.data.metrics
    assert again["labelled/rmse"] == metrics["labelled/rmse"], "numbers that are written as texts"
    texts.assign(a=pd.Timestamp("2020-01-01")).to_parquet(file, index=False)
    with pytest.raises(TipcastError, match="D008"):
        score(job, tmp_path, "value")
