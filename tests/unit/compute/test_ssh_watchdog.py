"""What runs at the other end of a connection."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

PROGRAM = """
import subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
print(child.pid, *sys.argv[1:], flush=True)
sys.stderr.write("starting\\nworker at: tcp://1.2.3.4:5\\n")
for _ in range(20_000):
    sys.stderr.write("x" * 99 + "\\n")  # more than a pipe holds
print("said", flush=True)
time.sleep(600)
"""


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> subprocess.Popen[str]:
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).resolve().parents[3] / 'src'}")
    command = [sys.executable, "-m", "tipcast.compute.ssh_watchdog", "-m", "program", "--word", "-m"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def test_it_ends_with_the_connection_and_never_waits_for_a_reader(watched: subprocess.Popen[str]) -> None:
    assert watched.stdin
    assert watched.stdout
    assert watched.stderr
    pid, *words = watched.stdout.readline().split()
    child = psutil.Process(int(pid))
    assert words == ["--word", "-m"]
    assert watched.stdout.readline() == "said\n"
    watched.stdin.close()
    assert watched.wait(10) == -9
    child.wait(10)
    assert watched.stderr.read() == "starting\nworker at: tcp://1.2.3.4:5\n"
    watched.stdout.close()
    watched.stderr.close()
