"""Temporary folders of processes that were killed, and folders that one job writes at a time."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import filelock
import pytest

from tipcast.config import disk
from tipcast.config.errors import TipcastError
from tipcast.tracking.process import LOCK_S

USES_FOLDER = """
import multiprocessing.connection, multiprocessing.util, os, signal, sys, tempfile
from tipcast.config import disk
disk.use_own_folder()
with multiprocessing.connection.Listener(family="AF_UNIX"):
    print(tempfile.gettempdir(), multiprocessing.util.get_temp_dir(), flush=True)
    if sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)
"""


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
    folders = {
        name: shared / f"{disk.OURS}{name}" for name in ("killed", "in_use", "shared_with_others")
    }
    folders["of_another_machine"] = shared / "tipcast-elsewhere-1"
    for folder in folders.values():
        folder.mkdir(mode=0o700)
        (folder / "file").touch()
    folders["shared_with_others"].chmod(0o755)
    (shared / f"{disk.OURS}link").symlink_to(folders["of_another_machine"])
    disk.lock_file("1").touch(mode=0o600)
    holder = os.open(folders["in_use"], os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with disk.temporary_folder() as made, disk.temporary_folder():
        assert made.is_dir(), "the next one does not take it for abandoned"
    os.close(holder)
    assert [name for name, folder in folders.items() if not folder.exists()] == ["killed"]
    assert not made.exists()
    assert not disk.lock_file("1").exists()


def test_a_lock_is_taken_while_others_look_for_abandoned_ones(shared: Path) -> None:
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            disk.remove_abandoned()

    other = threading.Thread(target=look)
    other.start()
    try:
        for _ in range(100):
            with filelock.FileLock(disk.lock_file("run"), timeout=LOCK_S, mode=0o600):
                assert disk.lock_file("run").exists()
    finally:
        ended.set()
        other.join()


@pytest.mark.parametrize("length", [30, 60, 90])
def test_a_process_has_a_folder_of_its_own_however_long_the_shared_ones_path(
    tmp_path: Path, length: int
) -> None:
    """The sockets of multiprocessing, whose names may not be long, lie elsewhere; a killed process
    leaves none.
    """
    shared = Path(tempfile.mkdtemp(dir="/tmp"), "x" * length)
    shared.mkdir()
    script = tmp_path / "script.py"
    script.write_text(USES_FOLDER)
    for killed in ("", "killed"):
        command = [sys.executable, str(script), killed]
        ended = subprocess.run(
            command, env=os.environ | {"TMPDIR": str(shared)}, capture_output=True, text=True
        )
        assert ended.returncode == (-signal.SIGKILL if killed else 0), ended.stderr
        own, sockets = map(Path, ended.stdout.split())
        assert own.parent == shared
        assert own.exists() == sockets.exists() == bool(killed)
    script.write_text("from tipcast.config import disk; disk.remove_abandoned()")
    subprocess.run(
        [sys.executable, str(script)], env=os.environ | {"TMPDIR": str(shared)}, check=True
    )
    assert not list(shared.iterdir())
    assert not sockets.exists()
    shutil.rmtree(shared.parent)


def test_a_job_removes_the_empty_folders_that_it_made_alone(tmp_path: Path) -> None:
    (tmp_path / "there" / "empty").mkdir(parents=True)
    with disk.locked_folder(tmp_path / "there", "is written to"):
        (tmp_path / "there" / "made" / "deeper").mkdir(parents=True)
        with (
            pytest.raises(TipcastError, match="S011"),
            disk.locked_folder(tmp_path / "there", "is written to"),
        ):
            pass
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "there"]
    with disk.locked_folder(tmp_path / "new" / "deeper", "is written to") as locked:
        assert locked
    assert not (tmp_path / "new").exists()
