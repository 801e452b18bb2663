"""Small tables with columns as people call them: what trains is scored and promoted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tipcast.config.errors import TipcastError
from tipcast.tracking.limits import name_of

COLUMNS = ["petal length (cm)", "petal length [cm]", "income (k$)"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of 50 rows, ten of which are tested on."""
    rng = np.random.default_rng(18)
    rows = pd.DataFrame(rng.normal(size=(50, 3)), columns=COLUMNS)
    rows["kind"] = np.where(rows[COLUMNS[0]] + rows[COLUMNS[2]] > 0, "setosa", "virginica")
    rows.to_parquet(tmp_path / "flowers.parquet", index=False)
    return tmp_path / "flowers.parquet"


def test_ten_test_rows_are_promoted_and_rows_are_scored(job: Any, table: Path, tmp_path: Path) -> None:
    quick = ("data=table", f"data.train={table}", "task.target=kind", "model.params.n_estimators=5")
    trained = [job("train", *quick, f"seed={seed}", "tracking.register=flowers") for seed in (0, 0)]
    assert trained[0].run.data.metrics["test/rows"] == 10
    assert job("promote", "model_uri=models:/flowers/1").said["moved"]
    said = job("promote", "model_uri=models:/flowers/2", "replicates=100", "margin=1").said
    assert said["metrics"]["test/rows"] == 10
    assert said["moved"]
    with pytest.raises(TipcastError, match="D014.*10 usable rows, at least 11"):
        job("promote", "model_uri=models:/flowers/1", "data.limits.min_rows=11")
    rows = pd.read_parquet(table).drop(columns="kind")
    rows.loc[3, COLUMNS[1]] = np.inf
    rows.to_parquet(tmp_path / "new.parquet", index=False)
    scored = job(
        "score", "model_uri=models:/flowers/1", f"input={tmp_path / 'new.parquet'}", f"output={tmp_path / 'scores'}"
    )
    unscored = {name: value for name, value in scored.run.data.metrics.items() if name.startswith("unscored/")}
    assert {name_of(f"unscored/{name}") for name in COLUMNS} <= set(unscored)
    assert sum(unscored.values()) == scored.run.data.metrics["score/unscored"]
