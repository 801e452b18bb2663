"""The commit and the versions that a result comes from."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tipcast.measure import origin


def test_versions_are_those_installed() -> None:
    found = origin.versions()
    assert found["numpy"] == np.__version__
    assert {"python", "mlflow", "dask"} <= set(found)
    assert "cudf-cu13" not in found or found["cudf-cu13"]


@pytest.fixture
def checkout(tmp_path: Path) -> Callable[..., str]:
    """Git in a checkout of one commit, with a file in each folder of the code and one beside them."""
    for path in ("src/tipcast/a.py", "conf/a.yaml", "README.md"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("before\n")
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=n", "-c", "user.email=e", *words]
        done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=True)
        return done.stdout

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "m")
    return git


def test_a_clean_checkout(checkout: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("no result comes from it\n")
    (tmp_path / "mlflow.db").write_text("")
    found = origin.read_source(tmp_path)
    assert found == origin.Source(checkout("rev-parse", "HEAD").strip())
    assert found.tags["mlflow.source.git.dirty"] == "false"
    assert found.remark == ""


@pytest.mark.parametrize("changed", ["src/tipcast/a.py", "conf/a.yaml", "conf/mine.yaml"])
def test_a_changed_checkout(
    checkout: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    (tmp_path / changed).write_text("after\n")
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as a hook has it
    found = origin.read_source(tmp_path)
    assert found.tags == {
        "mlflow.source.git.commit": checkout("rev-parse", "HEAD").strip(),
        "mlflow.source.git.dirty": "true",
    }
    assert found.commit is not None
    assert found.commit in found.remark


def test_a_tree_without_a_commit(checkout: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert origin.read_source(tmp_path).tags == {}, "without git there is no commit"
    monkeypatch.undo()
    assert origin.read_source(tmp_path / "src").tags == {}, "no checkout"
    checkout("update-ref", "-d", "HEAD")
    assert origin.read_source(tmp_path).tags == {}
