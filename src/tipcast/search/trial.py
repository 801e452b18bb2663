"""Trials of a sweep as values: the proposal, what all trials have in common, and events."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tipcast.compute.base import Frames
from tipcast.config.errors import TipcastError
from tipcast.config.schema import ModelSpec
from tipcast.datasets.parts import Part
from tipcast.datasets.prepare import Recipe
from tipcast.models.build import build_for_task


@dataclass(frozen=True)
class Proposal:
    """Parameters to try, and their place in the order of proposal, from 0."""

    number: int
    params: Mapping[str, Any]


@dataclass(frozen=True)
class Objective:
    """How trials are named and ranked."""

    sweep_digest: str
    """Digest of the data, the task, the model and the search: the same for sweeps whose trials may
    be compared.
    """
    metric: str
    """Name of the metric, computed on the validation rows."""
    maximize: bool
    """Whether more of it is better."""

    def key(self, number: int) -> str:
        """Return the name that a trial has in every attempt and every resumed sweep."""
        return f"{self.sweep_digest}-{number:04d}"

    def rank(self, trial: "TrialResult") -> tuple[float, int]:
        """Return a sort key: the best trial comes first, and the earlier one of equals."""
        if self.maximize:
            return -trial.score, trial.number
        return trial.score, trial.number


@dataclass(frozen=True)
class SweepSetup:
    """What all trials of a sweep have in common; every worker gets it once."""

    objective: Objective
    sweep_id: str
    """Id of this sweep alone, under which its workers keep their rows."""
    parts: tuple[Part, ...]
    recipe: Recipe
    frames: Frames
    model: ModelSpec
    device: str
    seed: int
    balanced: bool = False
    """Whether training rows get weights by which all classes count the same."""
    keep_rows: bool = True
    """Whether rows stay in memory once they are prepared for a fit: another trial may need them
    prepared in another way.
    """

    @property
    def topic(self) -> str:
        """Topic of the Dask events by which trials report."""
        return f"tipcast-{self.sweep_id}"

    def estimator(self, params: Mapping[str, Any]) -> Any:
        """Make the estimator of the model with these parameters in place of its own."""
        model = dataclasses.replace(self.model, params={**self.model.params, **params})
        return build_for_task(model, self.device, self.recipe.task)


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial that ended well."""

    number: int
    params: Mapping[str, Any]
    score: float
    """The metric that trials are ranked by."""
    metrics: Mapping[str, float]
    """Metrics of the validation rows."""
    phases: Mapping[str, float]
    """Phase -> seconds that it took on the worker's thread."""
    worker: str
    attempt: int
    """Number of the attempt, from 1: as a worker reports it, in this process; as the sweep's record
    keeps it, in all processes, also before the sweep was resumed.
    """
    curve: Sequence[float] = ()
    """For two classes, true-positive rates at even false-positive rates from 0 to 1: a curve that
    compares trials.
    """
    fit_info: Mapping[str, str | float] = field(default_factory=dict)
    """The fit's info: device, best round; with folds the means of their numbers."""
    folds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Metric -> its value in each fold; empty without folds, whose means are the ``metrics``."""

    @property
    def seconds(self) -> float:
        """Seconds of fitting and measuring."""
        return sum(seconds for phase, seconds in self.phases.items() if phase != "wait")


@dataclass(frozen=True)
class TrialStarted:
    """A worker has been given a trial."""

    proposal: Proposal


@dataclass(frozen=True)
class TrialFailed:
    """A trial has failed, for good or, if its worker died, until it is retried."""

    number: int
    params: Mapping[str, Any]
    problem: TipcastError
    retried: bool = False


TrialEvent = TrialStarted | TrialResult | TrialFailed
"""An event of a trial: it began, ended well, or failed."""
