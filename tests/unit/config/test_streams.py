"""Closed streams, full disks and ASCII terminals, as a process meets them."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests import warm

TABLE = "größe,y\n" + "".join(f"{row % 7},{'pn'[row % 2]}\n" for row in range(60))
INSPECT = "-m tipcast inspect data.train=t.csv task.target=y"
MISSING = "-m tipcast inspect data.train=no.csv task.target=y"


def shell(
    folder: Path, words: str, before: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with words and redirections of a shell, beside a table."""
    (folder / "t.csv").write_text(TABLE, encoding="utf-8")
    command = f"{before}exec {sys.executable} {words}"
    environment = warm.environment() | variables
    return subprocess.run(  # noqa: S602 - fixed words
        command,
        shell=True,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_an_ascii_terminal_gets_escaped_names(tmp_path: Path) -> None:
    ended = shell(tmp_path, INSPECT, PYTHONIOENCODING="ascii")
    assert ended.returncode == 0, ended.stderr
    assert "gr\\xf6\\xdfe" in ended.stdout


@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [(INSPECT, ""), ("-m tipcast --version", "1"), ("-m tipcast train --cfg job", "")],
)
def test_a_full_disk_for_the_output_is_told(words: str, unbuffered: str, tmp_path: Path) -> None:
    ended = shell(tmp_path, f"{words} >/dev/full", PYTHONUNBUFFERED=unbuffered)
    assert ended.returncode == 5
    (line,) = ended.stderr.splitlines()
    assert line.startswith(
        "error[T010] standard output: cannot be written: No space left on device. Fix: "
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (f"{MISSING} 2>/dev/full", 3),
        (f"{INSPECT} >/dev/full 2>/dev/full", 5),
        (f"{INSPECT} <&- >&- 2>&-", 0),
    ],
)
def test_the_exit_code_stays_where_nothing_can_be_told(
    words: str, code: int, tmp_path: Path
) -> None:
    assert shell(tmp_path, words).returncode == code


@pytest.mark.parametrize("words", ["train --help", "train --cfg job", "--help"])
def test_a_reader_that_has_left_is_no_mistake(words: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tipcast", *words.split()]
    environment = warm.environment()
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stdout and job.stderr
        job.stdout.close()
        assert (job.stderr.read(), job.wait(300)) == ("", 0)


OPENS = """
import os
from tipcast.config.streams import open_streams
open_streams()
kept = os.open("kept", os.O_WRONLY | os.O_CREAT)
assert kept > 2, kept
print("lost")
"""


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """Else what others print goes into a database."""
    (tmp_path / "opens.py").write_text(OPENS)
    ended = shell(tmp_path, "opens.py <&- >&-")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "kept").read_bytes() == b""


def test_a_working_folder_that_was_deleted_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    ended = shell(tmp_path, INSPECT, before="cd gone && rmdir ../gone && ")
    assert ended.returncode == 2
    assert ended.stderr.startswith("error[C003] working folder: it was deleted. Fix: ")
