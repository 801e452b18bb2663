"""Typed schemas of jobs over several runs: a sweep, a ladder, a comparison."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tipcast.config.schema import MISSING, Output, TrackingSpec, TrainConfig


@dataclass
class SearchSpec:
    """How trials are proposed, where they run and when they are given up."""

    name: str = MISSING
    trials: int | None = MISSING
    space: dict[str, Any] = field(default_factory=dict)
    """Parameter -> range or list, in place of the model's own; null leaves the parameter as model.params has it."""
    points: int = 3
    """Of a range in a grid."""
    eta: int = 3
    """Successive halving: reduction factor; the top 1/eta of a rung gets eta times the trees."""
    min_rounds: int | None = None
    """Successive halving: trees that every trial gets; null: n_estimators / (2 eta)."""
    max_concurrent: int = 8
    """TPE: most trials at once; a proposal knows the results of all but the last so many."""
    attempts: int = 3
    """Maximum worker losses per trial, not counting out-of-memory."""
    trial_timeout_s: float | None = None
    """A trial that takes longer has failed, and its worker is started anew; null: as long as it wants."""
    trials_per_gpu: int = 1
    """Trials at once on each GPU; a CPU worker runs one on each thread."""
    through: str = "pool"
    """``pool``: trials as tasks of our own. ``joblib``: by scikit-learn's GridSearchCV over joblib's Dask backend."""
    rows: int = 20_000
    """Through joblib: most training rows, and most validation rows."""


@dataclass
class SweepConfig(TrainConfig):
    """Schema of conf/sweep.yaml."""

    search: SearchSpec = MISSING
    resume: str | None = None
    """Run of a sweep that was stopped."""


@dataclass
class LadderConfig(TrainConfig):
    """Schema of conf/ladder.yaml."""

    cores: list[int] | None = None
    """Numbers of cores to train on; null: one, and all that there are."""
    gpus: list[int] | None = None
    """Numbers of GPUs to train on; null: one, and all that there are."""
    tolerance: float = 0.01
    """How far, in proportion, a rung's headline metric may be from the first one's to be called equal."""


@dataclass
class CompareConfig:
    """Schema of conf/compare.yaml."""

    runs: list[str] = MISSING
    tracking: TrackingSpec = MISSING
    print: Output = MISSING
    debug: bool = False


def register() -> None:
    """Make the schemas known to Hydra."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store(name="sweep_schema", node=SweepConfig)
    store.store(name="ladder_schema", node=LadderConfig)
    store.store(name="compare_schema", node=CompareConfig)
    store.store(group="schema", name="search", node=SearchSpec)
