"""Temporary folders: gone with their block, and after kill -9 by the next process that looks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tipcast
from tipcast.config import disk
from tipcast.config.disk import remove_abandoned, temporary_folder

HOLD = """
import time
from tipcast.config.disk import temporary_folder
with temporary_folder() as folder:
    (folder / "model").write_text("x")
    print(folder, flush=True)
    time.sleep(120)
"""


@pytest.fixture(autouse=True)
def _own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk.tempfile, "tempdir", str(tmp_path))


def aged(folder: Path) -> Path:
    """Let a folder look as if it was made long ago."""
    os.utime(folder, (time.time() - 2 * disk.NEW_S,) * 2)
    return folder


def test_of_a_process_that_is_killed(tmp_path: Path) -> None:
    variables = {**os.environ, "PYTHONPATH": str(Path(tipcast.__file__).parents[1]), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", HOLD], env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        folder = aged(Path(process.stdout.readline().strip()))
        remove_abandoned()
        assert (folder / "model").exists(), "it lives"
        process.kill()
    remove_abandoned()
    assert not folder.exists()


def test_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "tipcast-work-new").mkdir()
    (tmp_path / "tipcast-1000").mkdir()
    aged(tmp_path / "tipcast-1000")
    target = tmp_path / "elsewhere"
    target.mkdir()
    aged(target)
    (tmp_path / "tipcast-work-link").symlink_to(target)
    with temporary_folder() as folder:
        aged(folder)
        remove_abandoned()
        assert folder.is_dir()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"tipcast-work-new", "tipcast-1000", "elsewhere", "tipcast-work-link"}


def test_of_another_machine_that_shares_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(disk.socket, "gethostname", lambda: "elsewhere")
        with temporary_folder() as folder:
            kept = tmp_path / folder.name.replace("work-", "work-of")
    aged_folders = [tmp_path / f"tipcast-work-a.{disk.socket.gethostname()}", kept]
    for folder in aged_folders:
        folder.mkdir()
        aged(folder)
    remove_abandoned()
    assert list(tmp_path.iterdir()) == [kept], "its lock may not be seen here"
