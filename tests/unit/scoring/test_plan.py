"""Models that cannot be scored with, and what is due without asking the store."""

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
from tipcast.scoring.writing import Entry, Scores, file_sha256, file_stamp
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


def test_a_version_of_the_same_registry_is_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("trips/a.parquet", "scored/a.parquet"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(name)
    given, scored = (str(tmp_path / folder / "a.parquet") for folder in ("trips", "scored"))
    recipe = plan.recipe_of(config(), "models:/a/1", "digest")
    stamps = [file_stamp(path, {}) or "" for path in (given, scored)]
    digests = [file_sha256(path, {}) for path in (given, scored)]
    entry = Entry(
        input=given,
        input_stamp=stamps[0],
        input_sha256=digests[0],
        recipe=recipe,
        rows=1,
        bytes=1,
        sha256=digests[1],
        stamp=stamps[1],
        unscored={},
    )
    model = {"uri": "models:/a/1", "registry": plan.registry(config()), "manifest_sha256": "digest"}

    def unchanged(**more: Any) -> bool:
        present = Scores(str(tmp_path / "scored"), {"a.parquet": entry}, {"recipe": recipe, "model": model | more})
        return plan.plan_unchanged(config(), present) is not None

    assert unchanged()
    assert not unchanged(registry="sqlite:////other.db")
    assert not unchanged(uri="models:/a/2")
    (tmp_path / "trips" / "a.parquet").touch()
    assert not unchanged(), "it looks different"
    (tmp_path / "trips" / "a.parquet").write_text("other")
    assert not unchanged()


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
    assert found.notes == ("1 file without rows passed over",)
    with pytest.raises(TipcastError, match="D009"):
        plan.plan_files(config(input="parts/b.parquet", block_bytes=1 << 20), present, model)  # type: ignore[arg-type]
    with pytest.raises(TipcastError, match="D025.*column region"):
        plan.plan_files(config(input="hive", block_bytes=1 << 20), present, model)  # type: ignore[arg-type]
