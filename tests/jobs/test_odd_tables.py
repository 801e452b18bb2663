"""Small tables with columns as people call them: what trains is scored and promoted."""

from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest

from tipcast.config.errors import TipcastError

COLUMNS = ["petal length (cm)", "petal length {cm}", "income (k$)"]
TARGETS = ["two (classes)", "three [classes]", "size <mm>"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Sixty rows to train on, and ten to test on."""
    rng = np.random.default_rng(18)
    rows = pd.DataFrame(rng.normal(size=(70, 3)), columns=COLUMNS)
    size = rows[COLUMNS[0]] + rows[COLUMNS[2]]
    rows[TARGETS[0]] = np.where(size > 0, "setosa", "virginica")
    rows[TARGETS[1]] = np.array(["setosa", "versicolor", "virginica"])[np.digitize(size, [-0.7, 0.7])]
    rows[TARGETS[2]] = size
    rows[10:].to_parquet(tmp_path / "train.parquet", index=False)
    rows[:10].to_parquet(tmp_path / "test.parquet", index=False)
    return tmp_path


@pytest.mark.parametrize("target", TARGETS)
def test_ten_test_rows_are_promoted_and_rows_are_scored(job: Any, folder: Path, target: str) -> None:
    name = f"flowers {TARGETS.index(target)}"
    words = ["data=table", f"data.train={folder}/train.parquet", f"data.test={folder}/test.parquet"]
    words += [f"task.features={COLUMNS}", f"task.target='{target}'", "task.validation=0", f"tracking.register={name}"]
    trained = [job("train", *words, f"model.params.n_estimators={trees}") for trees in (3, 4)]
    assert trained[0].run.data.metrics["test/rows"] == 10
    assert job("promote", f"model_uri=models:/{name}/1").said["moved"]
    with pytest.raises(TipcastError, match="D014.*10 usable rows, at least 11"):
        job("promote", f"model_uri=models:/{name}/2", "data.limits.min_rows=11")
    assert job("promote", f"model_uri=models:/{name}/2", "margin=9").said["moved"]
    rows = pd.read_parquet(folder / "test.parquet", columns=COLUMNS)
    rows.loc[3, COLUMNS[1]] = np.inf
    rows.to_parquet(folder / "new.parquet", index=False)
    done = job("score", f"model_uri=models:/{name}/1", f"input={folder}/new.parquet", f"output={folder}/scores")
    assert done.run.data.metrics["score/rows"] == 10
    assert done.run.data.metrics["score/unscored"] == 1


def test_a_row_gets_one_score_whichever_way_it_comes(job: Any, tmp_path: Path) -> None:
    """Texts that pandas takes for missing, codes, odd texts, blanks, and numbers that are too large."""
    rng = np.random.default_rng(5)
    state, code = rng.choice(["NA", "CA", "", " "], 300), rng.choice(["007", "7", "12"], 300)
    size = rng.normal(size=300).round(3).astype(str)
    size[::30] = "?"
    y = np.where((state == "NA") | (code == "7"), 5.0, 0.0)
    texts = pd.DataFrame({"state": state, "code": code, "y": y})
    texts.to_parquet(tmp_path / "train.parquet", index=False)
    words = ["data=table", f"data.train={tmp_path}/train.parquet", "task.target=y", "task.kind=regression"]
    words += ["task.validation=0", "model.params.n_estimators=4"]
    model = job("train", *words, "data.types={state: text}", "data.types.code=category")
    texts.drop(columns="y").to_csv(tmp_path / "new.csv", index=False)
    job("score", f"model_uri={model.said['model_uri']}", f"input={tmp_path}/new.csv", f"output={tmp_path}/scores")
    scores = pd.read_parquet(tmp_path / "scores")["prediction"].to_numpy()
    assert len(set(scores)) > 1
    loaded = mlflow.pyfunc.load_model(model.said["model_uri"])
    plain = pd.read_csv(tmp_path / "new.csv", dtype=str, keep_default_na=False)
    np.testing.assert_allclose(loaded.predict(plain), scores, rtol=1e-6)
    np.testing.assert_allclose(loaded.predict(texts), scores, rtol=1e-6)
    for options, error in (
        ({"keep_default_na": False}, "'code' has lost its text: 7 may have been '007' or '7'"),
        ({"dtype": str}, "'state' has NaN, which may have been 'NA' or nothing"),
    ):
        with pytest.raises(mlflow.MlflowException, match=error):
            loaded.predict(pd.read_csv(tmp_path / "new.csv", **options))

    pd.DataFrame({"size": size, "y": y}).to_csv(tmp_path / "train.csv", index=False)
    model = job("train", *words, f"data.train={tmp_path}/train.csv")
    (tmp_path / "new.csv").write_text("size\n0.5\n \n?\n 0.5 \n1e39\nNA\n")
    job("score", f"model_uri={model.said['model_uri']}", f"input={tmp_path}/new.csv", f"output={tmp_path}/more")
    scores = pd.read_parquet(tmp_path / "more")["prediction"].to_numpy()
    assert np.isnan(scores).tolist() == [False] * 4 + [True, False]
    assert scores[0] == scores[3]
    assert scores[1] == scores[2] == scores[5]
    loaded = mlflow.pyfunc.load_model(model.said["model_uri"])
    for options in ({}, {"dtype": str, "keep_default_na": False}):
        found = loaded.predict(pd.read_csv(tmp_path / "new.csv", skip_blank_lines=False, **options))
        np.testing.assert_allclose(found, scores, rtol=1e-6)
    with pytest.raises(mlflow.MlflowException, match="'size' cannot be read"):
        loaded.predict(pd.DataFrame({"size": pd.to_datetime(["2019-01-01"])}))


def test_a_model_of_many_features_is_promoted(job: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    rows = pd.DataFrame(rng.normal(size=(80, 1200)).round(2)).add_prefix("gene ")
    rows["y"] = rows["gene 7"]
    rows.to_parquet(tmp_path / "wide.parquet", index=False)
    words = ["data=table", f"data.train={tmp_path}/wide.parquet", "task.target=y", "model=ridge", "task.validation=0"]
    trained = [job("train", *words, f"model.params.alpha={alpha}", "tracking.register=wide") for alpha in (0.1, 100)]
    assert job("promote", "model_uri=models:/wide/1").said["moved"]
    done = job("promote", "model_uri=models:/wide/2", "margin=0")
    errors = [each.run.data.metrics["test/rmse"] for each in trained]
    assert done.said["moved"] == (errors[1] < errors[0])


def test_what_a_user_may_not_expect_is_said(job: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An index without a name, rows that are dropped, dates that fit either order, a loss near 0."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=600)
    rows = pd.DataFrame({"x": x, "when": "01/02/2019", "y": np.where(x > 0, "a", np.where(x > -1, "b", "c"))})
    rows.loc[::10, "x"] = np.inf
    rows.to_csv(tmp_path / "train.csv")
    words = ["data=table", f"data.train={tmp_path}/train.csv", "task.target=y", "model.params.n_estimators=30"]
    model = job("train", *words)
    assert "60 of 600 rows of train.csv are not used: non_finite" in caplog.text
    assert "month/day/year, though all fit either order" in caplog.text
    loaded = mlflow.pyfunc.load_model(model.said["model_uri"])
    assert loaded.metadata.signature.inputs.input_names() == ["Unnamed: 0", "x"]
    assert len(loaded.predict(pd.read_csv(tmp_path / "train.csv"))) == 600
    assert model.run.data.metrics["test/log_loss_low"] >= 0
