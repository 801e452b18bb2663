"""What a check of `tipcast doctor` finds: a state, a fact, and a fix where one is needed; any room can make one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tipcast.config.errors import TipcastError


class State(Enum):
    """How a check ends."""

    ok = "ok"
    warning = "warning"
    """Jobs run, but perhaps not as they were meant to."""
    fail = "fail"
    """A job would fail."""


@dataclass(frozen=True)
class Finding:
    """What a check found."""

    state: State
    found: str
    fix: str = ""
    problem: TipcastError | None = None
    """The error that a job would end with; there is one with ``State.fail`` only."""


def ok(found: str) -> Finding:
    """Return a finding that needs nothing."""
    return Finding(State.ok, found)


def warning(found: str, fix: str) -> Finding:
    """Return a finding that a user should know of."""
    return Finding(State.warning, found, fix)


def failed(problem: TipcastError) -> Finding:
    """Return the finding that an error is."""
    return Finding(State.fail, f"{problem.where}: {problem.what}", problem.fix, problem)
