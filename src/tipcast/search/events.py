"""What happens to the trials of a sweep, as the driver hears of it."""

from __future__ import annotations

from dataclasses import dataclass

from tipcast.config.errors import TipcastError
from tipcast.search.trial import Trial, Work


@dataclass(frozen=True)
class Begun:
    """A worker has been given work."""

    work: Work
    attempt: int


@dataclass(frozen=True)
class Ended:
    """Work is done."""

    work: Work
    trials: list[Trial]


@dataclass(frozen=True)
class Lost:
    """A worker died with its work, which will be begun again."""

    work: Work
    reason: str


@dataclass(frozen=True)
class Failed:
    """Work has failed for good."""

    work: Work
    problem: TipcastError


Event = Begun | Ended | Lost | Failed
