"""What passes between the driver and the workers of a sweep: what to try, what came of it, and what happened to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tipcast.compute.base import Array, Frames
from tipcast.config.errors import TipcastError
from tipcast.config.schema import ModelSpec
from tipcast.datasets.base import Fragment
from tipcast.datasets.rows import Recipe


@dataclass(frozen=True)
class Proposal:
    """Parameters to try."""

    number: int
    """From 0, in the order of proposal."""
    params: Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """How good predictions of the validation rows are, as one process measures it."""

    metrics: Mapping[str, float]
    """With the one that trials are ranked by."""
    curve: Sequence[float] = ()
    """To draw trials together: of two classes, true-positive rates at even false-positive rates from 0 to 1."""


@dataclass(frozen=True)
class Objective:
    """What trials are called and ranked by."""

    study: str
    """Digest of the data, the task, the model and the search: the same for sweeps that may be compared."""
    metric: str
    """Of the validation rows."""
    maximize: bool
    """Whether more of it is better."""

    def key(self, number: int) -> str:
        """Return the name that a trial has in every attempt and every resumed sweep."""
        return f"{self.study}-{number:04d}"

    def rank(self, trial: Trial) -> tuple[float, int]:
        """Return what trials are sorted by, the best first; of equals the first."""
        return -trial.score if self.maximize else trial.score, trial.number


@dataclass(frozen=True)
class Study:
    """What all trials of a sweep have in common; every worker gets it once."""

    objective: Objective
    sweep: str
    """This sweep alone: what its workers keep their rows by."""
    fragments: tuple[Fragment, ...]
    recipe: Recipe
    frames: Frames
    model: ModelSpec
    device: str
    categorical: tuple[str, ...]
    seed: int
    measure: Callable[[Array, Array], Measured]
    """Of predictions and targets; importable on the workers."""
    again: bool
    """Whether rows are needed again once they are prepared for a fit: another may want them otherwise."""

    @property
    def topic(self) -> str:
        """Of Dask's events that trials report by."""
        return f"tipcast-{self.sweep}"


@dataclass(frozen=True)
class Trial:
    """What came of a trial."""

    key: str
    number: int
    params: Mapping[str, Any]
    score: float
    """The metric that trials are ranked by."""
    metrics: Mapping[str, float]
    """Of the validation rows."""
    phases: Mapping[str, float]
    """Phase -> seconds of its worker's thread."""
    worker: str
    attempt: int
    """From 1: how often it was begun."""
    curve: Sequence[float] = ()
    facts: Mapping[str, str | float] = field(default_factory=dict)
    """What the fit says of itself: device, best round."""

    @property
    def seconds(self) -> float:
        """Seconds of fitting and measuring."""
        return sum(seconds for phase, seconds in self.phases.items() if phase != "wait")


# What happens to trials, as the driver hears of it


@dataclass(frozen=True)
class Begun:
    """A worker has been given a trial."""

    proposal: Proposal
    attempt: int


@dataclass(frozen=True)
class Ended:
    """A trial is done."""

    trial: Trial


@dataclass(frozen=True)
class Lost:
    """A worker died with its trial, which will be retried."""

    number: int
    reason: str


@dataclass(frozen=True)
class Failed:
    """A trial has failed for good."""

    number: int
    problem: TipcastError


Event = Begun | Ended | Lost | Failed
