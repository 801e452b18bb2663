"""The clock of a job's phases."""

from __future__ import annotations

import logging
import time

import pytest

from tipcast.measure import clock as module
from tipcast.measure.clock import Clock


def test_phases_add_up_in_order() -> None:
    clock = Clock()
    for name in ("read", "fit", "read"):
        with clock.phase(name):
            time.sleep(0.02)
    assert list(clock.seconds) == ["read", "fit"]
    assert clock.seconds["read"] >= 0.04
    assert clock.seconds["fit"] >= 0.02


def test_a_phase_that_ends_well_gets_a_line(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    with caplog.at_level(logging.INFO, "tipcast"):
        with clock.phase("list"):
            pass
        with clock.phase("read") as facts:
            facts += ["20 rows", "2 files"]
        monkeypatch.setattr(module, "LONG_S", 0.0)
        with clock.phase("swap"):
            pass
    assert [line.split() for line in caplog.messages] == [
        ["read", "0.0", "s", "20", "rows,", "2", "files"],
        ["swap", "0.0", "s"],
    ]


def test_a_phase_that_fails_counts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tipcast")
    clock = Clock()
    with pytest.raises(ZeroDivisionError), clock.phase("fit") as facts:
        facts.append("3 rounds")
        time.sleep(0.02)
        raise ZeroDivisionError
    assert clock.seconds["fit"] >= 0.02
    assert not caplog.messages
