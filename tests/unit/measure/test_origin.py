"""The commit and the versions that a result comes from."""

from pathlib import Path

import pytest
from tests.conftest import git

from tipcast.measure import origin

source = origin.source.__wrapped__  # as at the first call


def test_a_checkout_and_a_tree_without_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("src/tipcast/a.py", "conf/a.yaml", "README.md"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("before\n")
    git(tmp_path, "init", "-q")
    assert source(tmp_path).tags == {}, "no commit yet"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "m")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "README.md").write_text("no result comes from it\n")
    (tmp_path / "mlflow.db").write_text("")
    clean = source(tmp_path)
    assert (clean, clean.tags["mlflow.source.git.dirty"], clean.remark) == (origin.Source(commit), "false", "")
    assert source(tmp_path / "src").tags == {}, "no checkout"
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as a hook has it
    for changed in ("src/tipcast/a.py", "conf/a.yaml", "conf/mine.yaml"):
        (tmp_path / changed).write_text("after\n")
        dirty = source(tmp_path)
        assert dirty.tags == {"mlflow.source.git.commit": commit, "mlflow.source.git.dirty": "true"}
        assert commit in dirty.remark
        git(tmp_path, "stash", "--include-untracked")
    monkeypatch.setenv("PATH", "")
    assert source(tmp_path).tags == {}, "without git there is no commit"
