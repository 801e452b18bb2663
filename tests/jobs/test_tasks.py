"""Every shipped question of every dataset, from the command to a saved model that answers it for raw rows."""

from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest

from tipcast.config import conf_files
from tipcast.datasets.taxi.sample import sample_block

MAY = (1_556_668_800_000_000, 1_559_347_200_000_000)
"""Of 2019, in microseconds."""
CATEGORIES = "task.categorical=[PULocationID,DOLocationID]"


@pytest.mark.parametrize(
    ("words", "headline", "bound"),
    [
        (("task=high_tip_card", "model.params.n_estimators=20", "model.params.max_depth=3"), "auc", (0.5, 0.6)),
        (("data=regression", "data.columns=8", "task=target", "model.params.n_estimators=20"), "rmse", (10.0, 150.0)),
        (("task=tip_amount", CATEGORIES, "model=ridge"), "rmse", (1.0, 5.0)),
    ],
    ids=["cards", "made rows", "categories of a library's model"],
)
def test_a_shipped_question(job: Any, store: str, words: tuple[str, ...], headline: str, bound: Any) -> None:
    done = job("train", *words, "data.rows=4000")
    assert next(iter(done.said["metrics"])) == f"test/{headline}"
    assert bound[0] < done.said["metrics"][f"test/{headline}"] <= bound[1]
    assert done.run.data.metrics["parity/max_abs_diff"] <= 1e-5
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(50, 8))).add_prefix("x")
    if words[0].startswith("task"):
        rows = pd.DataFrame(sample_block(MAY, 0, 1, 50, "yellow"))
        times = [name for name in rows if name.endswith("_datetime")]
        rows = rows.assign(**{name: rows[name].to_numpy().view("datetime64[us]") for name in times})
    mlflow.set_tracking_uri(store)
    answers = np.asarray(mlflow.pyfunc.load_model(done.said["model_uri"]).predict(rows))
    assert len(answers) == len(rows)
    assert np.isfinite(answers).all()


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
