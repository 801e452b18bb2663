"""A progress bar on a terminal, and log lines above it or anywhere else."""

from __future__ import annotations

import logging
import os
import pty
import termios
from concurrent.futures import Future
from typing import Any

import pytest
from tests.waiting import Turns

from tipcast.measure import progress as module
from tipcast.measure.progress import Clock, progress, shown, worth_a_line

END = "<end>"


@pytest.fixture
def terminal() -> Any:
    """A terminal's stream, and a function that returns what was written to it."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    stream = os.fdopen(theirs, "w", buffering=1)

    def written() -> str:
        stream.write(END)
        stream.flush()
        found = b""
        while not found.endswith(END.encode()):  # the kernel passes on what was written a moment later
            found += os.read(ours, 100_000)
        return found.decode().removesuffix(END)

    yield stream, written
    stream.close()
    os.close(ours)


def test_a_long_block_shows_its_label_and_counts(terminal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, written = terminal
    monkeypatch.setattr("sys.stderr", stream)  # here, because pytest puts its own in place before each test
    futures: list[Future[None]] = [Future(), Future(), Future()]
    turns = Turns()
    with progress("read", futures, turns.wait):
        for future in futures[:2]:
            future.set_result(None)
        turns.take(2)
    shown = written()
    assert "read 2/3 |" in shown
    assert shown.endswith("\r"), "the line is cleared"
    assert shown.rstrip("\r").endswith(" " * 20)
    turns = Turns()
    with progress("fit", wait=turns.wait):
        turns.take()
    assert "fit 00:00" in written()
    turns = Turns()
    with progress("grow", wait=turns.wait) as told:
        told(3, 8)
        turns.take(2)
    assert "grow 3/8 |" in written()


def test_a_short_block_shows_nothing(terminal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, written = terminal
    monkeypatch.setattr("sys.stderr", stream)
    waited = []
    with progress("read", wait=lambda ended, seconds: waited.append(seconds) or ended.wait()):
        pass
    assert waited == [module.PATIENCE_S]
    assert written() == ""


def never(*_: object) -> bool:
    raise AssertionError("nobody looks")


def test_no_terminal_no_bar(capfd: pytest.CaptureFixture[str]) -> None:
    with progress("read", wait=never):
        pass
    assert capfd.readouterr() == ("", "")


def test_lines_are_logged_above_the_bar(terminal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, written = terminal
    monkeypatch.setattr("sys.stderr", stream)
    turns = Turns()
    with shown(logging.INFO), progress("search", wait=turns.wait) as told:
        told(3, 8, "best 0.6")
        turns.take(2)
        module.LOG.info("trial 3 (4/8)")
        told(4, 8)
        turns.take()
    shows = written()
    cleared, line, after = shows.partition("trial 3 (4/8)")
    assert "search 3/8 |" in cleared
    assert cleared.endswith(" \r"), "the bar gives way to the line"
    assert line
    assert after.startswith("\r\n")
    assert "search 4/8 |" in after
    assert after.rstrip("\r").endswith(" " * 20), "and is gone at the end"


@pytest.mark.parametrize("level", [logging.WARNING, logging.DEBUG])
def test_no_bar_where_little_or_much_is_logged(terminal: Any, monkeypatch: pytest.MonkeyPatch, level: int) -> None:
    stream, written = terminal
    monkeypatch.setattr("sys.stderr", stream)
    with shown(level), progress("read", wait=never):
        pass
    assert written() == ""


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (logging.WARNING, ["WARNING tipcast: careful", "WARNING other: careful"]),
        (logging.INFO, ["read", "WARNING tipcast: careful", "WARNING other: careful"]),
        (
            logging.DEBUG,
            ["DEBUG tipcast: detail", "read", "WARNING tipcast: careful", "INFO other: told", "WARNING other: careful"],
        ),
    ],
)
def test_levels(level: int, expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    other, before = logging.getLogger("other"), module.LOG.level
    with shown(level):
        module.LOG.debug("detail")
        module.LOG.info("read")
        module.LOG.warning("careful")
        other.info("told")
        other.warning("careful")
    module.LOG.warning("not shown any more")
    assert capsys.readouterr() == ("", "".join(f"{line}\n" for line in expected))
    assert module.LOG.level == before


@pytest.mark.parametrize("total", [1, 3, 10, 37, 1000])
def test_a_long_list_stays_short(total: int) -> None:
    logged = [done for done in range(1, total + 1) if worth_a_line(done, total)]
    assert len(logged) == min(total, 10)
    assert logged[-1] == total


def test_phases_add_up_in_order() -> None:
    clock = Clock(iter([0.0, 1.0, 10.0, 12.0, 20.0, 24.0]).__next__)
    for name in ("read", "fit", "read"):
        with clock.phase(name):
            pass
    assert list(clock.seconds.items()) == [("read", 5.0), ("fit", 2.0)]


def test_a_phase_that_ends_well_gets_a_line(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock(iter([0.0, module.LONG_S / 2, 1.0, 1.25, 2.0, 2.0 + module.LONG_S]).__next__)
    with caplog.at_level(logging.INFO, "tipcast"):
        with clock.phase("list"):
            pass
        with clock.phase("read") as facts:
            facts += ["20 rows", "2 files"]
        with clock.phase("swap"):
            pass
    assert [line.split() for line in caplog.messages] == [
        ["read", "0.2", "s", "20", "rows,", "2", "files"],
        ["swap", "1.0", "s"],
    ]


def test_a_phase_that_fails_counts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tipcast")
    clock = Clock(iter([0.0, 3.0]).__next__)
    with pytest.raises(ZeroDivisionError), clock.phase("fit") as facts:
        facts.append("3 rounds")
        raise ZeroDivisionError
    assert clock.seconds == {"fit": 3.0}
    assert not caplog.messages
