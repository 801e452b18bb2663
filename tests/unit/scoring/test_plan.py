"""Models that cannot be scored with, and what is due without asking the store."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tipcast.config.errors import TipcastError
from tipcast.scoring import plan
from tipcast.scoring.output_folder import Entry, Manifest, Present
from tipcast.scoring.writing import file_sha256, file_stamp
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
    entry = Entry(given, stamps[0], digests[0], recipe, 1, 1, digests[1], stamps[1])
    model = {"uri": "models:/a/1", "registry": plan.registry(config()), "manifest_sha256": "digest"}

    def unchanged(**more: Any) -> bool:
        manifest = Manifest({"a.parquet": entry}, {"recipe": recipe, "model": model | more})
        return plan.plan_unchanged(config(), Present(str(tmp_path / "scored"), manifest)) is not None

    assert unchanged()
    assert not unchanged(registry="sqlite:////other.db")
    assert not unchanged(uri="models:/a/2")
    (tmp_path / "trips" / "a.parquet").touch()
    assert not unchanged(), "it looks different"
    (tmp_path / "trips" / "a.parquet").write_text("other")
    assert not unchanged()
