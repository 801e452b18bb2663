"""Every shipped question of every dataset, from the command to a saved model that answers it for raw rows."""

from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from sklearn import datasets

from tipcast.config import conf_files
from tipcast.datasets.taxi.sample import sample_block

SMALL = ("model=xgboost", "model.params.n_estimators=20", "model.params.max_depth=3")
MAY = (1_556_668_800_000_000, 1_559_347_200_000_000)
"""Of 2019, in microseconds."""


def raw(dataset: str, rows: int = 50) -> pd.DataFrame:
    """Rows as a user of the model has them."""
    if dataset == "sample":
        made = pd.DataFrame(sample_block(MAY, 0, 1, rows, "yellow"))
        times = [name for name in made if name.endswith("_datetime")]
        return made.assign(**{name: made[name].to_numpy().view("datetime64[us]") for name in times})
    return pd.DataFrame(np.random.default_rng(0).normal(size=(rows, 8)), columns=[f"x{at}" for at in range(8)])


WORDS = [
    (["task=high_tip_card"], "auc", (0.5, 0.6)),
    (["data=regression", "data.columns=8", "task=target"], "rmse", (10.0, 150.0)),
]


@pytest.mark.parametrize(("words", "headline", "bound"), WORDS, ids=["high_tip_card", "regression"])
def test_a_shipped_question(job: Any, store: str, words: list[str], headline: str, bound: Any) -> None:
    done = job("train", *SMALL, *words, "data.rows=4000")
    assert next(iter(done.said["metrics"])) == f"test/{headline}"
    assert bound[0] < done.said["metrics"][f"test/{headline}"] <= bound[1]
    assert done.run.data.metrics["parity/max_abs_diff"] <= 1e-5
    mlflow.set_tracking_uri(store)
    given = raw("sample" if words[0].startswith("task") else "made")
    answers = np.asarray(mlflow.pyfunc.load_model(done.said["model_uri"]).predict(given))
    assert len(answers) == len(given)
    assert np.isfinite(answers).all()


def test_random_sides_of_one_table_come_of_one_reading(job: Any, tmp_path: Path) -> None:
    frame = datasets.load_breast_cancer(as_frame=True).frame
    frame.to_parquet(tmp_path / "all.parquet")
    words = ("data=table", f"data.train={tmp_path / 'all.parquet'}", "task=target", "task.target=target")
    metrics = job("train", *SMALL, *words).run.data.metrics
    sides = [metrics[f"{side}/rows"] for side in ("train", "validation", "test")]
    assert metrics["train/rows_read"] == len(frame) == sum(sides)
    assert not {"validation/rows_read", "test/rows_read"} & set(metrics)


COURSE = Path(__file__).parents[2] / "benchmarks" / "outside" / "conf"
GREEN = "no_repo_license/green_months/green_tripdata_{}.parquet"


def test_a_course_s_published_number(job: Any, taxi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mlops-zoomcamp, module 1: least squares on the pair of zones, one-hot, and the distance."""
    monkeypatch.setenv(conf_files.OWN, "")  # set back at the end
    train, test = (taxi / GREEN.format(month) for month in ("2021-01", "2021-02"))
    if not train.exists() or not test.exists():
        pytest.skip(f"no months of green trips below {taxi}")
    files = ["data=files", f"data.train={train}", f"data.test={test}", "data.limits.stray=null"]
    words = ["task=zoomcamp_duration", "model=linear", "model.fit.standardize=false"]
    done = job("train", f"--config-dir={COURSE}", *words, *files)
    assert done.run.data.metrics["test/rmse"] == pytest.approx(7.7587152, abs=1e-6)
    assert done.run.data.metrics["test/rows"] == 61_921
    assert done.run.data.metrics["parity/max_abs_diff"] <= 1e-5


@pytest.mark.parametrize("model", ["ridge", "extra_trees"])
def test_categories_of_a_library_s_model(job: Any, store: str, model: str) -> None:
    words = ["task=tip_amount", "task.categorical=[PULocationID,DOLocationID]", f"model={model}"]
    done = job("train", *words, "data.rows=4000")
    assert done.run.data.metrics["parity/max_abs_diff"] <= 1e-5
    mlflow.set_tracking_uri(store)
    assert np.isfinite(mlflow.pyfunc.load_model(done.said["model_uri"]).predict(raw("sample"))).all()
