"""What a training says of groups of rows and of single rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as reference

Job = Callable[..., Any]
ROWS = 3000


def table_of(store: str, run_id: str, name: str = "slices") -> pd.DataFrame:
    """Return a table of a run."""
    mlflow.set_tracking_uri(store)
    return pd.DataFrame(**mlflow.artifacts.load_dict(f"runs:/{run_id}/tables/{name}.json"))


def pictures(store: str, run_id: str) -> set[str]:
    """Return the names of a run's plots."""
    return {Path(file.path).stem for file in mlflow.MlflowClient(store).list_artifacts(run_id, "plots")}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with a text, a boolean and a text with missing values beside its numbers, split by its time."""
    r = np.random.default_rng(8)
    frame = pd.DataFrame({"size": r.normal(0, 1, ROWS), "fast": r.random(ROWS) < 0.2})
    frame["town"] = pd.Series(r.choice(["Aachen", "Bonn", "Cham"], ROWS), dtype=object).where(r.random(ROWS) < 0.9)
    frame["price"] = 3 * frame["size"] + 2 * frame["fast"] + r.normal(0, 1 + 2 * (frame["town"] == "Bonn"), ROWS)
    frame["when"] = pd.date_range("2024-01-01", periods=ROWS, freq="h")
    frame.to_parquet(path := tmp_path / "rows.parquet")
    return path


def test_a_table_is_sliced_by_texts_and_booleans(job: Job, store: str, table: Path) -> None:
    ended = job(
        "train", "data=table", f"data.train={table}", "data.time=when", "task.target=price", "model=linear",
        "task.features=[size,fast]",
    )  # fmt: skip
    found = table_of(store, ended.said["run_id"])
    assert [(name, set(own["group"])) for name, own in found.groupby("name")] == [
        ("fast", {"false", "true"}), ("town", {"Aachen", "Bonn", "Cham"})
    ]  # fmt: skip
    tested = pd.read_parquet(table).iloc[-int(ended.run.data.metrics["test/rows"]) :]
    model = mlflow.pyfunc.load_model(ended.said["model_uri"])
    predicted = pd.Series(model.predict(tested), index=tested.index)
    texts = tested.assign(fast=tested["fast"].map({True: "true", False: "false"}))
    for _, row in found.iterrows():
        own = texts[row["name"]] == row["group"]
        assert row["rows"] == own.sum() > 0
        rmse = reference.root_mean_squared_error(tested["price"][own], predicted[own])
        assert row["rmse"] == pytest.approx(rmse, rel=1e-5)
        assert row["bias"] == pytest.approx((predicted - tested["price"])[own].mean(), rel=1e-4)
        assert row["rmse_low"] < row["rmse"] < row["rmse_high"]
    note = ended.run.data.tags["mlflow.note.content"]
    assert "the RMSE is worst for `town` Bonn" in note
    assert "slices" in pictures(store, ended.said["run_id"])


def test_trips_are_sliced(job: Job, store: str) -> None:
    ended = job("train", "data=sample", "data.rows=6000", "model=xgboost", "model.params.n_estimators=5")
    found = table_of(store, ended.said["run_id"])
    rows = ended.run.data.metrics["test/rows"]
    assert set(found["name"]) == {"PULocationID", "pickup_hour", "pickup_weekday", "payment_type", "VendorID"}
    for name in ("pickup_weekday", "VendorID"):
        assert found.loc[found["name"] == name, "rows"].sum() == rows
    card = found[(found["name"] == "payment_type") & (found["group"] == "card")].iloc[0]
    assert 0.5 < card["auc"] < 1
    assert (found["name"] == "PULocationID").sum() == 20
    cash = found[found["group"] == "cash"].iloc[0]
    assert np.isnan(cash["auc"])
    assert 0 < cash["mean_prediction"] < 1


def test_nothing_is_said_where_there_are_no_groups(job: Job, store: str) -> None:
    ended = job(
        "train", "data=blobs", "task=target", "data.rows=3000", "data.test_rows=500", "data.centers=2", "model=logistic"
    )
    files = {file.path for file in mlflow.MlflowClient(store).list_artifacts(ended.said["run_id"], "tables")}
    assert "tables/slices.json" not in files
    assert "groups" not in ended.run.data.tags["mlflow.note.content"]


def test_contributions_are_drawn(job: Job, store: str) -> None:
    small = ("data.rows=2000", "model.params.n_estimators=4")
    assert "contributions" in pictures(store, job("train", "model=xgboost", *small).said["run_id"])
    of_forest = job("train", "model=random_forest", *small).said["run_id"]
    assert "contributions" not in pictures(store, of_forest)
