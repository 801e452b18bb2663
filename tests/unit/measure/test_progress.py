"""A progress bar on a terminal, and log lines above it or anywhere else."""

import logging
import os
import pty
import re
import termios
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
from tests.waiting import Turns

from tipcast.measure import progress as module
from tipcast.measure.progress import Clock, logging_to_stderr, progress, worth_a_line

END = "<end>"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Return what was written to standard error, which is a terminal from the first call on."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    with os.fdopen(theirs, "w", buffering=1) as stream:

        def written() -> str:
            # here, for pytest puts its own in place before a test
            monkeypatch.setattr("sys.stderr", stream)
            stream.write(END)
            stream.flush()
            content = b""
            # the kernel passes on what was written a moment later
            while not content.endswith(END.encode()):
                content += os.read(ours, 100_000)
            return content.decode().removesuffix(END)

        yield written
    os.close(ours)


def test_the_bar_of_tasks_counts_those_that_have_ended(written: Callable[[], str]) -> None:
    written()
    futures: list[Future[None]] = [Future(), Future(), Future()]
    turns = Turns()
    with progress("read", futures, turns.wait):
        for future in futures[:2]:
            future.set_result(None)
        turns.take(2)
    assert re.search(r"read 2/3 \|.* {20}\r+$", written(), re.DOTALL), "the line is cleared"


def test_the_bar_of_one_long_block_shows_its_label(written: Callable[[], str]) -> None:
    written()
    turns = Turns()
    with progress("fit", wait=turns.wait):
        turns.take()
    assert "fit 00:00" in written()


def never(*_: object) -> bool:
    raise AssertionError("nobody looks")


def test_no_bar(written: Callable[[], str], capfd: pytest.CaptureFixture[str]) -> None:
    with progress("read", wait=never):
        pass
    assert capfd.readouterr() == ("", ""), "without a terminal"
    written()
    for level in (logging.WARNING, logging.DEBUG):  # where little or much is logged
        with logging_to_stderr(level), progress("read", wait=never):
            pass
    waited = []
    with progress("read", wait=lambda ended, seconds: waited.append(seconds) or ended.wait()):
        pass
    assert waited == [module.PATIENCE_S], "of a short block"
    assert written() == ""


def test_lines_are_logged_above_the_bar(written: Callable[[], str]) -> None:
    written()
    turns = Turns()
    with logging_to_stderr(logging.INFO), progress("search", wait=turns.wait) as advance:
        advance(3, 8, "best 0.6")
        turns.take(2)
        module.LOG.info("trial 3 (4/8)")
        advance(4, 8)
        turns.take()
    cleared, line, after = written().partition("trial 3 (4/8)")
    assert re.search(r"search 3/8 \|.*best 0.6.* \r$", cleared, re.DOTALL), (
        "the bar gives way to the line"
    )
    assert line
    assert re.match(r"\r\n.*search 4/8 \|.* {20}\r*$", after, re.DOTALL), "and is gone at the end"


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (logging.WARNING, ["WARNING tipcast: careful", "WARNING other: careful"]),
        (logging.INFO, ["read", "WARNING tipcast: careful", "WARNING other: careful"]),
        (
            logging.DEBUG,
            [
                "DEBUG tipcast: detail",
                "read",
                "WARNING tipcast: careful",
                "INFO other: told",
                "WARNING other: careful",
            ],
        ),
    ],
)
def test_levels(level: int, expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    other = logging.getLogger("other")
    before = module.LOG.level
    with logging_to_stderr(level):
        module.LOG.debug("detail")
        module.LOG.info("read")
        module.LOG.warning("careful")
        other.info("told")
        other.warning("careful")
    module.LOG.warning("not shown any more")
    assert capsys.readouterr() == ("", "".join(f"{line}\n" for line in expected))
    assert module.LOG.level == before
    for total in (1, 3, 10, 37, 1000):
        logged = [done for done in range(1, total + 1) if worth_a_line(done, total)]
        assert (len(logged), logged[-1]) == (min(total, 10), total), "a long list stays short"


@pytest.fixture
def timed(caplog: pytest.LogCaptureFixture) -> Clock:
    """A clock after five phases, two of which have one name and the last of which has failed."""
    clock = Clock(iter([0.0, 0.5, 1.0, 1.25, 2.0, 3.0, 4.0, 4.5, 5.0, 8.0]).__next__)
    with caplog.at_level(logging.INFO, "tipcast"):
        for name, facts in (
            ("list", []),
            ("read", ["20 rows", "2 files"]),
            ("swap", []),
            ("list", []),
        ):
            with clock.phase(name) as notes:
                notes += facts
        with pytest.raises(ZeroDivisionError), clock.phase("fit") as notes:
            notes.append("3 rounds")
            raise ZeroDivisionError
    return clock


def test_seconds_of_phases_of_one_name_are_added(timed: Clock) -> None:
    assert list(timed.seconds.items()) == [
        ("list", 1.0),
        ("read", 0.25),
        ("swap", 1.0),
        ("fit", 3.0),
    ]


@pytest.mark.usefixtures("timed")
def test_a_phase_has_a_line_if_it_lasted_or_has_something_to_tell(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that failed has none."""
    lines = [record.getMessage() for record in caplog.get_records("setup")]
    assert [line.split() for line in lines] == [
        ["read", "0.2", "s", "20", "rows,", "2", "files"],
        ["swap", "1.0", "s"],
    ]
