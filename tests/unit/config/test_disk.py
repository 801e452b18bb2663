"""Temporary folders of processes that were killed, and folders that one job writes at a time."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import filelock
import pytest

from tipcast.config import disk
from tipcast.config.errors import TipcastError
from tipcast.tracking.run_lease import LOCK_S

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


@pytest.fixture
def left_folders(shared: Path) -> Iterator[dict[str, Path]]:
    """Temporary folders that are there when a process starts, by what they are.

    A process that was killed has left its folder, and no lock on it.
    """
    folders = {
        name: shared / f"{disk.OURS}{name}" for name in ("killed", "in_use", "shared_with_others")
    }
    folders["of_another_machine"] = shared / "tipcast-elsewhere-1"
    for folder in folders.values():
        folder.mkdir(mode=0o700)
        (folder / "file").touch()
    folders["shared_with_others"].chmod(0o755)
    (shared / f"{disk.OURS}link").symlink_to(folders["of_another_machine"])
    holder = os.open(folders["in_use"], os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    yield folders
    os.close(holder)


def test_the_folder_of_a_killed_process_is_removed(left_folders: dict[str, Path]) -> None:
    with disk.temporary_folder():
        assert not left_folders["killed"].exists()


def test_folders_of_living_processes_are_kept(left_folders: dict[str, Path]) -> None:
    """Also those that others may enter, and those of other machines, to which a link leads."""
    del left_folders["killed"]
    with disk.temporary_folder():
        assert [name for name, folder in left_folders.items() if not folder.exists()] == []


def test_a_temporary_folder_is_not_taken_for_abandoned(shared: Path) -> None:
    with disk.temporary_folder() as folder, disk.temporary_folder():
        assert folder.is_dir()


def test_a_temporary_folder_is_removed_with_its_block(shared: Path) -> None:
    with disk.temporary_folder() as folder:
        pass
    assert not folder.exists()


def test_a_lock_file_that_nobody_holds_is_removed(shared: Path) -> None:
    disk.lock_file("1").touch(mode=0o600)
    with disk.temporary_folder():
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
        folder, sockets = map(Path, ended.stdout.split())
        assert folder.parent == shared
        assert folder.exists() == sockets.exists() == bool(killed)
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
