"""The clock of a job's phases."""

from __future__ import annotations

import time

import pytest

from tipcast.measure.clock import Clock


def test_phases_add_up_in_order() -> None:
    clock = Clock()
    for name in ("read", "fit", "read"):
        with clock.phase(name):
            time.sleep(0.02)
    assert list(clock.seconds) == ["read", "fit"]
    assert clock.seconds["read"] >= 0.04
    assert clock.seconds["fit"] >= 0.02


def test_a_phase_that_fails_counts() -> None:
    clock = Clock()
    with pytest.raises(ZeroDivisionError), clock.phase("fit"):
        time.sleep(0.02)
        raise ZeroDivisionError
    assert clock.seconds["fit"] >= 0.02
