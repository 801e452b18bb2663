"""Trials of a sweep as values: what is tried, what all have in common, and what happens to one."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tipcast.compute.base import Frames
from tipcast.config.errors import TipcastError
from tipcast.config.schema import ModelSpec
from tipcast.datasets.parts import Fragment
from tipcast.datasets.prepare import Recipe
from tipcast.models.build import build_for_task


@dataclass(frozen=True)
class Proposal:
    """Parameters to try, and their place in the order of proposal, from 0."""

    number: int
    params: Mapping[str, Any]


@dataclass(frozen=True)
class Objective:
    """What trials are called and ranked by."""

    study: str
    """Digest of the data, the task, the model and the search: the same for sweeps that may be
    compared.
    """
    metric: str
    """Of the validation rows."""
    maximize: bool
    """Whether more of it is better."""

    def key(self, number: int) -> str:
        """Return the name that a trial has in every attempt and every resumed sweep."""
        return f"{self.study}-{number:04d}"

    def rank(self, trial: "Trial") -> tuple[float, int]:
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
    seed: int
    keep_rows: bool = True
    """Whether rows are kept once they are prepared for a fit: another may want them otherwise."""

    @property
    def topic(self) -> str:
        """Of Dask's events that trials report by."""
        return f"tipcast-{self.sweep}"

    def estimator(self, params: Mapping[str, Any]) -> Any:
        """Make what fits the model with these parameters in place of its own."""
        model = dataclasses.replace(self.model, params={**self.model.params, **params})
        return build_for_task(model, self.device, self.recipe.task)


@dataclass(frozen=True)
class Trial:
    """What came of a trial that ended well."""

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
    """To draw trials together: of two classes, true-positive rates at even false-positive rates
    from 0 to 1.
    """
    fit_info: Mapping[str, str | float] = field(default_factory=dict)
    """What the fit says of itself: device, best round."""

    @property
    def seconds(self) -> float:
        """Seconds of fitting and measuring."""
        return sum(seconds for phase, seconds in self.phases.items() if phase != "wait")


@dataclass(frozen=True)
class Failed:
    """A trial has failed, for good or, where its worker died, until it is retried."""

    number: int
    problem: TipcastError
    retried: bool = False


Event = Proposal | Trial | Failed
"""What happens to a trial: a worker has been given it, it ended well, it failed."""
