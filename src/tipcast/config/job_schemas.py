"""Typed schemas of the jobs' configuration, each of conf/JOB.yaml, and the names that conf/ has for all schemas."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

from tipcast.config import schema
from tipcast.config.schema import (
    MISSING,
    BackendSpec,
    ClusterSpec,
    DataSpec,
    ModelSpec,
    Output,
    SearchSpec,
    TaskSpec,
    TrackingSpec,
)


@dataclass
class _JobConfig:
    print: Output = MISSING
    debug: bool = False


@dataclass
class _WorkersConfig(_JobConfig):
    backend: BackendSpec = MISSING
    cluster: ClusterSpec = MISSING


@dataclass
class DoctorConfig(_WorkersConfig):
    """What the doctor looks at."""

    data: DataSpec = MISSING
    tracking: TrackingSpec = MISSING


@dataclass
class TrainConfig(DoctorConfig):
    """A training."""

    task: TaskSpec = MISSING
    model: ModelSpec = MISSING
    seed: int = MISSING


@dataclass
class MultirunConfig(TrainConfig):
    """One training or, with ``--multirun``, one of several."""

    resume: str | None = None
    fail_fast: bool = False


@dataclass
class SweepConfig(TrainConfig):
    """What a training has, and how its parameters are searched."""

    search: SearchSpec = MISSING
    resume: str | None = None


@dataclass
class LadderConfig(TrainConfig):
    """A training on several sizes of machine."""

    cores: list[int] | None = None
    gpus: list[int] | None = None
    tolerance: float = 0.01


@dataclass
class PrepareConfig(_WorkersConfig):
    """Months to keep prepared."""

    data: DataSpec = MISSING
    out: str = MISSING
    row_group_rows: int = MISSING
    compression: str = MISSING


@dataclass
class PromoteConfig(DoctorConfig):
    """A version, and the gate before its alias. Of ``data``, ``tested`` is the source that the version's run read."""

    model_uri: str = MISSING
    """``models:/NAME/VERSION`` or ``models:/NAME@ALIAS``."""
    alias: str = MISSING
    margin: float = MISSING
    certain: bool = MISSING
    replicates: int = MISSING
    force: bool = MISSING
    seed: int = MISSING


FACTS = ("colour",)
"""Keys of ``ScoreConfig`` that say something of the files which only the dataset understands."""


@dataclass
class ScoreConfig(_WorkersConfig):
    """A model, rows, and where their scores go."""

    tracking: TrackingSpec = MISSING
    model_uri: str = MISSING
    input: Any = MISSING
    output: str = MISSING
    keep: list[str] | None = None
    explain: bool = False
    colour: str | None = None
    block_bytes: int = MISSING
    compression: str = MISSING
    storage_options: dict[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Any]:
        """Return what only the dataset understands, see ``Dataset.check_facts``."""
        return {name: getattr(self, name) for name in FACTS}


@dataclass
class WatchLimits:
    """From where on a model is too far from its training; null: there is no such limit."""

    auc_drop: float | None = MISSING
    """Of two classes: AUC below that of the training's test rows."""
    loss_rise: float | None = MISSING
    """Of numbers and of more classes: RMSE or log loss above that of the test rows, in proportion to it."""
    psi: float | None = MISSING
    """Population stability index of a feature or of the predictions."""


@dataclass
class WatchConfig(ScoreConfig):
    """What a scoring has, and what is done where a limit is passed."""

    limit: WatchLimits = MISSING
    retrain: Any = None
    """``watched``, or files as ``input`` names them, to train a challenger on; null: it is only said."""


@dataclass
class CompareConfig(_JobConfig):
    """Runs to hold against each other."""

    runs: list[str] = MISSING
    tracking: TrackingSpec = MISSING


JOBS = {
    "train": MultirunConfig,
    "sweep": SweepConfig,
    "ladder": LadderConfig,
    "prepare": PrepareConfig,
    "score": ScoreConfig,
    "watch": WatchConfig,
    "promote": PromoteConfig,
    "compare": CompareConfig,
    "doctor": DoctorConfig,
}


@functools.cache
def register() -> None:
    """Make the schemas known to Hydra under the names that conf/ refers to."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    for name, node in JOBS.items():
        store.store(name=f"{name}_schema", node=node)
    groups = {
        "backend": BackendSpec,
        "dataset": schema.OwnData,
        "task": TaskSpec,
        "model": ModelSpec,
        "search": SearchSpec,
        "tracking": TrackingSpec,
    }
    for name, part in (groups | schema.CLUSTERS | schema.SOURCES).items():
        store.store(group="schema", name=name, node=part)
