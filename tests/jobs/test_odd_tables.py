"""Small tables with columns as people call them: what trains is scored and promoted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    assert job("promote", f"model_uri=models:/{name}/2", "replicates=100", "margin=9").said["moved"]
    rows = pd.read_parquet(folder / "test.parquet", columns=COLUMNS)
    rows.loc[3, COLUMNS[1]] = np.inf
    rows.to_parquet(folder / "new.parquet", index=False)
    done = job("score", f"model_uri=models:/{name}/1", f"input={folder}/new.parquet", f"output={folder}/scores")
    assert done.run.data.metrics["score/rows"] == 10
    assert done.run.data.metrics["score/unscored"] == 1
