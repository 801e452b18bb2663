"""Files of conf/ that cannot be read: named with line and column."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tipcast.config import conf_files
from tipcast.config.compose import compose
from tipcast.config.conf_files import unreadable
from tipcast.config.errors import TipcastError

GLOBAL = b"# @package _global_\n"


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of conf/ that a user edits."""
    copy = tmp_path / "conf"
    shutil.copytree(conf_files.conf_dir(), copy)
    monkeypatch.setattr(conf_files, "conf_dir", lambda: copy)
    monkeypatch.chdir(tmp_path)
    return copy


@pytest.mark.parametrize(
    ("content", "place", "words"),
    [
        (GLOBAL + b"seed: [1\nprint: 2\n", ", line 3, column 6", "expected ',' or ']'"),
        (GLOBAL + b"model:\n\tparams: 1\n", ", line 3, column 1", "indent with blanks"),
        (GLOBAL + b"seed: 1\nseed: 2\n", ", line 3, column 1", "duplicate key seed"),
        (GLOBAL + b"name: caf\xe9\n", "", "no YAML in UTF-8: 'utf-8' codec can't decode byte 0xe9 in position 29"),
        (GLOBAL + b"seed: \0\n", "", "character #x0000"),
        (b"\xef\xbb\xbf" + GLOBAL + b"seed: 1\n", "", "# @package _global_"),
        ((GLOBAL + b"seed: 1\n").decode().encode("utf-16"), "", "no YAML in UTF-8"),
        (b"- a\n", "", "no keys and values"),
        (b"just words\n", "", "no keys and values"),
        (b"seed: 4\n", "", "# @package _global_"),
        (b"defaults:\n  - override /model: knn\n", "", "# @package _global_"),
        (GLOBAL + b"defaults: knn\n", "", "defaults"),
    ],
)
def test_a_users_experiment(conf: Path, content: bytes, place: str, words: str) -> None:
    (conf / "experiment" / "mine.yaml").write_bytes(content)
    with pytest.raises(TipcastError) as caught:
        compose("train", ["experiment=mine"])
    assert caught.value.code == "C012", str(caught.value)
    assert caught.value.where == f"conf/experiment/mine.yaml{place}"
    assert words in str(caught.value)


def test_a_folder_in_a_files_place_is_no_option(conf: Path) -> None:
    (conf / "experiment" / "mine.yaml").mkdir()
    with pytest.raises(TipcastError, match="C002.*experiment=mine.*categorical_zones"):
        compose("train", ["experiment=mine"])


def test_what_the_system_refuses(conf: Path) -> None:
    problem = unreadable(PermissionError(13, "Permission denied", str(conf / "train.yaml")))
    assert str(problem) == (
        "error[C012] conf/train.yaml: cannot be read: Permission denied. Fix: check its permissions"
    )
