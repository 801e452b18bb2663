"""Temporary folders of processes that were killed, and folders that one job writes at a time."""

import fcntl
import os
from pathlib import Path

import pytest

from tipcast.config import disk
from tipcast.config.errors import TipcastError


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, for this test alone."""
    folder = tmp_path / "shared"
    folder.mkdir()
    monkeypatch.setattr(disk, "SHARED", folder)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_what_a_killed_process_left_goes_and_what_others_have_stays(shared: Path) -> None:
    """A process that is killed leaves its folder, and no lock on it."""
    folders = {name: shared / f"{disk.OURS}{name}" for name in ("killed", "in_use", "shared_with_others")}
    folders["of_another_machine"] = shared / "tipcast-elsewhere-1"
    for folder in folders.values():
        folder.mkdir(mode=0o700)
        (folder / "file").touch()
    folders["shared_with_others"].chmod(0o755)
    (shared / f"{disk.OURS}link").symlink_to(folders["of_another_machine"])
    (shared / disk.LOCKS).mkdir(mode=0o700)
    (shared / disk.LOCKS / "sweep-1.lock").touch(mode=0o600)
    holder = os.open(folders["in_use"], os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with disk.temporary_folder() as made, disk.temporary_folder():
        assert made.is_dir(), "the next one does not take it for abandoned"
    os.close(holder)
    assert [name for name, folder in folders.items() if not folder.exists()] == ["killed"]
    assert not made.exists()
    assert not list((shared / disk.LOCKS).iterdir())


def test_a_job_removes_the_empty_folders_that_it_made_alone(tmp_path: Path) -> None:
    (tmp_path / "there" / "empty").mkdir(parents=True)
    with disk.alone(tmp_path / "there", "is written to"):
        (tmp_path / "there" / "made" / "deeper").mkdir(parents=True)
        with pytest.raises(TipcastError, match="S011"), disk.alone(tmp_path / "there", "is written to"):
            pass
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "there"]
    with disk.alone(tmp_path / "new" / "deeper", "is written to") as locked:
        assert locked
    assert not (tmp_path / "new").exists()
