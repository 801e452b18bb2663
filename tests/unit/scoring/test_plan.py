"""Models that cannot be scored with, and files that are due, passed over or refused."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from tipcast.config.errors import TipcastError
from tipcast.datasets.base import RawColumn
from tipcast.scoring import plan
from tipcast.scoring.writing import Scores
from tipcast.tasks.base import Task


def config(**more: Any) -> Any:
    tracking = SimpleNamespace(uri="sqlite:///mlflow.db")
    given = {"model_uri": "models:/a/1", "input": ["trips"], "storage_options": {}, "columns": {}, "facts": {}}
    return SimpleNamespace(**{**given, "keep": None, "compression": "zstd", "tracking": tracking, **more})


def test_a_model_that_does_not_tell_what_it_predicts() -> None:
    task = Task("t", "classification", ("x0",), classes=("no", "yes")).facts()
    whole = {"task": task, "features": ["x0"], "threshold": 0.5}
    plan.check_model(SimpleNamespace(uri="u", manifest=whole), config())  # type: ignore[arg-type]
    with pytest.raises(TipcastError, match=r"C003.*probability"):
        plan.check_model(SimpleNamespace(uri="u", manifest=whole), config(keep=["probability"]))  # type: ignore[arg-type]
    for lacking in ({"task": {**task, "kind": "ranking"}}, {"task": {"kind": "regression"}}, {"threshold": None}):
        with pytest.raises(TipcastError, match="M006"):
            plan.check_model(SimpleNamespace(uri="u", manifest=whole | lacking), config())  # type: ignore[arg-type]


def test_parts_without_rows_are_passed_over_and_partitions_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"a": [1.0, 2.0], "region": ["n", "s"]})
    (tmp_path / "parts").mkdir()
    for name, part in (("a", frame), ("b", frame[:0])):
        part.to_parquet(f"parts/{name}.parquet")
    frame.to_parquet("hive", partition_cols=["region"])
    task = Task("t", "regression", ("a",)).facts()
    manifest = {"dataset": "table", "table": [asdict(RawColumn("a", ("a",)))], "task": task, "features": ["a"]}
    model = SimpleNamespace(uri="u", manifest=manifest, manifest_sha256="m")
    present = Scores(str(tmp_path / "scored"))
    found = plan.plan_files(config(input="parts", block_bytes=1 << 20), present, model)  # type: ignore[arg-type]
    assert [item.name for item in found.due] == ["a.parquet"]
    assert not found.refused
    assert [item.notes for item in found.due] == [("1 file without rows passed over",)]
    with pytest.raises(TipcastError, match="D009"):
        plan.plan_files(config(input="parts/b.parquet", block_bytes=1 << 20), present, model)  # type: ignore[arg-type]
    with pytest.raises(TipcastError, match="D025.*column region"):
        plan.plan_files(config(input="hive", block_bytes=1 << 20), present, model)  # type: ignore[arg-type]
    frame.to_parquet("mine.parquet")
    (tmp_path / "link").symlink_to("parts")
    inside = Scores(str(tmp_path / "parts"))
    with pytest.raises(TipcastError, match="C011.*holds all files of the input"):
        plan.plan_files(config(input="link", block_bytes=1 << 20), inside, model)  # type: ignore[arg-type]
    again = plan.plan_files(config(input=["link", "mine.parquet"], block_bytes=1 << 20), inside, model)  # type: ignore[arg-type]
    assert [item.name for item in again.due] == ["mine.parquet"], "scores are not scored"
