"""What a run is called."""

from __future__ import annotations

import pytest

from tipcast.jobs.opening import LONGEST_NAME, told_apart


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("tipcast train", "xgboost"),
        ("tipcast train model=xgboost task=tip_amount print=json", "xgboost task=tip_amount"),
        ("tipcast train model.params.max_depth=8 +model.params.max_leaves=64", "xgboost max_depth=8 max_leaves=64"),
        ("mlflow run . --env-manager local -P seed=1 -P tracking.register=mine", "xgboost seed=1"),
        ("tipcast train data=files 'data.train=trips/2018-*.parquet'", "xgboost data=files"),
    ],
)
def test_runs_are_told_apart_by_what_was_overridden(command: str, expected: str) -> None:
    assert told_apart("xgboost", command) == expected


def test_a_name_stays_short() -> None:
    words = " ".join(f"model.params.parameter_{at}=0.125" for at in range(20))
    assert len(told_apart("xgboost", f"tipcast train {words}")) <= LONGEST_NAME
