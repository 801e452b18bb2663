"""Trials of a sweep as values: the proposal, what all trials have in common, and events."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tipcast.compute.base import Frames
from tipcast.config.data_schema import Limits
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


class Searcher(Protocol):
    """Proposes trials, on the driver."""

    total: int
    """Number of all trials."""

    def next(self) -> Proposal | None:
        """Return the next trial; None after the last, and as long as it waits for running ones."""

    def tell(self, number: int, score: float | None) -> None:
        """Take a trial's score, None if it failed; called in the order in which trials end."""


@dataclass(frozen=True)
class Rungs:
    """The rungs of a search by halving: the fits of a rung have more trees than those before.

    Each fit is a trial with a number of its own: trial 3 of 32 is 3 in the first rung, 35 in the
    second and 67 in the third.
    """

    trials: int
    """Number of the first trial of the second rung; the first rung has no more trials."""
    factor: int
    trees: tuple[int, ...]
    """Trees of each rung's fits."""

    def of(self, number: int) -> int:
        """Return the rung of a trial, from 0."""
        return number // self.trials

    def is_last(self, rung: int) -> bool:
        """Tell whether a rung has no other after it."""
        return rung + 1 == len(self.trees)

    def survivors(self, trials: int) -> int:
        """Return how many of a rung's trials go on to the next rung."""
        return -(-trials // self.factor)

    def sizes(self, trials: int) -> list[int]:
        """Return how many trials each rung has if none fails; the first has that many."""
        sizes = [trials]
        for _ in self.trees[1:]:
            sizes.append(self.survivors(sizes[-1]))
        return sizes


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
    rungs: Rungs | None = None
    """None for a search whose trials all have the model's own trees."""

    def key(self, number: int) -> str:
        """Return the name that a trial has in every attempt and every resumed sweep."""
        return f"{self.sweep_digest}-{number:04d}"

    def rank(self, trial: "TrialResult") -> tuple[int, float, int]:
        """Return a sort key, see ``order``."""
        return self.order(trial.number, trial.score)

    def order(self, number: int, score: float) -> tuple[int, float, int]:
        """Return a sort key of a trial: those of the last rung come first, among them the best one,
        and the earlier one of equals.
        """
        rung = 0
        if self.rungs is not None:
            rung = self.rungs.of(number)
        if self.maximize:
            score = -score
        return -rung, score, number


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
    limits: Limits = field(default_factory=Limits)
    """What rows and folds must have at least."""
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
