"""A progress bar on a terminal, and nothing anywhere else."""

from __future__ import annotations

import os
import pty
import termios
import time
from typing import Any

import pytest
from distributed import Client

from tipcast.measure import progress as module
from tipcast.measure.progress import progress


@pytest.fixture
def terminal() -> Any:
    """A terminal's stream, and a function that returns what was written to it."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    stream = os.fdopen(theirs, "w", buffering=1)

    def written() -> str:
        stream.flush()
        os.set_blocking(ours, False)
        try:
            return os.read(ours, 100_000).decode()
        except BlockingIOError:
            return ""

    yield stream, written
    stream.close()
    os.close(ours)


def test_a_long_block_shows_its_label_and_counts(
    terminal: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, written = terminal
    monkeypatch.setattr("sys.stderr", stream)  # here, because pytest puts its own in place before each test
    monkeypatch.setattr(module, "PATIENCE_S", 0.2)
    futures = client.map(time.sleep, [0.0, 0.0, 1.2], pure=False)
    with progress("read", futures):
        client.gather(futures)
    shown = written()
    assert "read 2/3 |" in shown
    assert shown.endswith("\r"), "the line is cleared"
    assert shown.rstrip("\r").endswith(" " * 20)
    with progress("fit"):
        time.sleep(0.6)
    assert "fit 00:00" in written()
    with progress("grow") as told:
        told(3, 8)
        time.sleep(0.6)
    assert "grow 3/8 |" in written()


def test_a_short_block_shows_nothing(terminal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, written = terminal
    monkeypatch.setattr("sys.stderr", stream)
    with progress("read"):
        time.sleep(0.3)
    assert written() == ""


def test_no_terminal_no_bar(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    with progress("read"):
        time.sleep(0.3)
    assert capfd.readouterr() == ("", "")
