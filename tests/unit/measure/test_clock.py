"""The clock of a job's phases."""

from __future__ import annotations

import logging

import pytest

from tipcast.measure import clock as module
from tipcast.measure.clock import Clock


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
