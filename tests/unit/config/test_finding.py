"""Findings of checks."""

from __future__ import annotations

from tipcast.config.errors import TipcastError
from tipcast.config.finding import State, failed, ok, warning


def test_an_error_is_a_finding_with_its_fix() -> None:
    problem = TipcastError("D001", "trips.csv", "no such file", "check the path")
    finding = failed(problem)
    assert (finding.state, finding.found, finding.fix) == (State.fail, "trips.csv: no such file", "check the path")
    assert finding.problem is problem


def test_nothing_else_ends_a_job() -> None:
    assert ok("2 cores").problem is None
    assert (warning("little room", "free some").state, warning("little room", "free some").problem) == (
        State.warning,
        None,
    )
