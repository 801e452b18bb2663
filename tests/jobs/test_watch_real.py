"""`tipcast watch` of real months of green trips: how near the estimate comes, and what is flagged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

Job = Callable[..., Any]
LONG = pytest.mark.long
NEAR = 0.015
"""How far the estimated AUC may be from the real one of the month after the test month."""
OCTOBER = "no_repo_license/green_tripdata_2020-10.csv.gz"


@pytest.fixture(scope="session")
def green(taxi: Path) -> Callable[[str], Path]:
    """A whole month of green trips."""

    def path(month: str) -> Path:
        if month == "2020-10":
            return taxi / OCTOBER
        above = taxi / "no_repo_license"
        found = above / "green_months" / f"green_tripdata_{month}.parquet"
        found = found if found.exists() else above / found.name
        if not found.exists():
            pytest.skip(f"no {found.name} below {taxi}")
        return found

    return path


def watched(job: Job, green: Callable[[str], Path], out: Path, task: str, train: str, test: str, month: str) -> Any:
    """Train on a month, test on another, and watch a third."""
    name = f"{task}-{train}-{test}"
    where = [f"data.train={green(train)}", f"data.test={green(test)}", f"tracking.register={name}"]
    uri = job("train", "data=files", f"task={task}", *where).said["model_uri"]
    return job("watch", f"model_uri={uri}", f"input={green(month)}", f"output={out / 'scored'}").said


@pytest.mark.parametrize(
    ("train", "test", "month"),
    [
        pytest.param("2020-10", "2021-01", "2021-02", marks=LONG),
        pytest.param("2021-02", "2022-01", "2022-02", marks=LONG),
        pytest.param("2021-01", "2022-01", "2022-02", marks=LONG),
        ("2022-02", "2023-01", "2023-02"),
        pytest.param("2022-01", "2023-01", "2023-02", marks=LONG),
        pytest.param("2022-01", "2023-02", "2023-12", marks=LONG),
    ],
)
@pytest.mark.parametrize("task", ["high_tip_card", pytest.param("high_tip", marks=LONG)])
def test_the_estimate_is_near(
    job: Job, green: Callable[[str], Path], tmp_path: Path, task: str, train: str, test: str, month: str
) -> None:
    said = watched(job, green, tmp_path, task, train, test, month)
    assert abs(said["metrics"]["watch/estimated_auc"] - said["metrics"]["watch/auc"]) <= NEAR
    if train >= "2022":
        assert said["passed"] == {}


@pytest.mark.parametrize("task", ["high_tip_card", pytest.param("high_tip", marks=LONG)])
def test_what_is_flagged(job: Job, green: Callable[[str], Path], tmp_path: Path, task: str) -> None:
    near = watched(job, green, tmp_path / "near", task, "2022-01", "2022-02", "2022-02")
    assert (near["passed"], near["exit_code"]) == ({}, 0)
    bare = tmp_path / "green_tripdata_2022-02.parquet"
    pd.read_parquet(green("2022-02")).drop(columns=["tip_amount", "payment_type"]).to_parquet(bare)
    without = job("watch", f"model_uri={near['model_uri']}", f"input={bare}", f"output={tmp_path / 'bare'}").said
    assert (without["passed"], without["exit_code"]) == ({}, 0)
    assert without["metrics"]["watch/labelled_rows"] == 0
    far = watched(job, green, tmp_path / "far", task, "2021-01", "2021-02", "2023-01")
    assert "auc_drop" in far["passed"]
    assert far["exit_code"] == 11
    metrics = far["metrics"]
    assert metrics["watch/estimated_auc"] < metrics["watch/reference_auc"] - 0.02, "without answers too"
