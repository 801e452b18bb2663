"""Typed schemas of the jobs' configuration, each of conf/JOB.yaml, and the names that conf/ has for all schemas."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tipcast.config import schema
from tipcast.config.conf_files import options
from tipcast.config.schema import MISSING, bounded


@dataclass
class _JobConfig:
    print: schema.Output = MISSING  # form of the closing lines; json: the last line is one JSON object
    debug: bool = False  # whether errors come with tracebacks


@dataclass
class InspectConfig(_JobConfig):
    """A table to look at, and its column that would be predicted."""

    data: schema.DataSpec = MISSING
    task: schema.TaskSpec = MISSING


@dataclass
class _WorkersConfig(_JobConfig):
    backend: schema.BackendSpec = MISSING
    cluster: schema.ClusterSpec = MISSING


@dataclass
class DoctorConfig(_WorkersConfig):
    """What the doctor looks at."""

    data: schema.DataSpec = MISSING
    tracking: schema.TrackingSpec = MISSING


@dataclass
class TrainConfig(DoctorConfig):
    """A training."""

    task: schema.TaskSpec = MISSING
    model: schema.ModelSpec = MISSING
    seed: int = bounded(0, below=2**31)  # of everything that is drawn at random


@dataclass
class MultirunConfig(TrainConfig):
    """One training or, with ``--multirun``, one of several."""

    repeat: str | None = None
    other_data: bool = False
    resume: str | None = None
    fail_fast: bool = False


@dataclass
class SweepConfig(TrainConfig):
    """What a training has, and how its parameters are searched."""

    search: schema.SearchSpec = MISSING
    resume: str | None = None


@dataclass
class LadderConfig(TrainConfig):
    """A training on several sizes of machine."""

    cores: list[int] | None = None
    gpus: list[int] | None = None
    tolerance: float = bounded(0, default=0.01)


@dataclass
class PrepareConfig(_WorkersConfig):
    """Months to keep prepared."""

    data: schema.DataSpec = MISSING
    out: str = MISSING
    row_group_rows: int = bounded(1)  # rows of a row group of the Parquet files: each is read by a task
    compression: str = MISSING  # of the Parquet files: zstd, snappy, gzip, lz4, brotli or none


@dataclass
class PromoteConfig(DoctorConfig):
    """A version, and the gate before its alias. Of ``data``, ``tested`` is the source that the version's run read."""

    model_uri: str = MISSING  # models:/NAME/VERSION or models:/NAME@ALIAS
    alias: str = MISSING  # that the version is to get
    margin: float = bounded(0)
    certain: bool = MISSING
    replicates: int = bounded(100)
    force: bool = MISSING
    seed: int = bounded(0, below=2**31)


RECORDED = "recorded"  # option of data, task and model that an earlier run had
OF_MACHINE = ("storage_options", "url", "cache")
"""Keys of ``data`` that say how a machine reaches the data, whatever another one has recorded."""
FACTS = ("colour",)  # keys of `ScoreConfig` that say something of the files which only the dataset understands


@dataclass
class ScoreConfig(_WorkersConfig):
    """A model, rows, and where their scores go."""

    tracking: schema.TrackingSpec = MISSING
    model_uri: str = MISSING
    input: Any = MISSING
    output: str = MISSING
    keep: list[str] | None = None
    columns: dict[str, str] = field(default_factory=dict)
    colour: str | None = None
    block_bytes: int = bounded(1024)
    compression: str = MISSING
    storage_options: dict[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Any]:
        """Return what only the dataset understands, see ``Dataset.check_facts``."""
        return {name: getattr(self, name) for name in FACTS}


JOBS = {
    "train": MultirunConfig,
    "sweep": SweepConfig,
    "ladder": LadderConfig,
    "prepare": PrepareConfig,
    "score": ScoreConfig,
    "promote": PromoteConfig,
    "doctor": DoctorConfig,
    "inspect": InspectConfig,
}


@functools.cache
def register() -> None:
    """Make the schemas known to Hydra under the names that conf/ refers to."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    for name, node in JOBS.items():
        store.store(name=f"{name}_schema", node=node)
    for name, part in (schema.GROUPS | schema.CLUSTERS | schema.SOURCES).items():
        store.store(group="schema", name=name, node=part)


def register_recorded(recorded: Mapping[str, Any]) -> list[str]:
    """Make what ``plain.recorded`` tells of a run options of their groups; return the overrides that choose them."""
    from hydra.core.config_store import ConfigStore

    source = recorded["data"]["source"]
    bases = {"data": "/schema/dataset@_here_", "task": "/schema/task@_here_", "model": "/schema/model@_here_"}
    if source in options("data"):
        bases["data"] = source
    for group, base in bases.items():
        values = {name: value for name, value in recorded[group].items() if name not in OF_MACHINE}
        ConfigStore.instance().store(RECORDED, {"defaults": [base, "_self_"], **values}, group=group)
    return [*(f"{group}={RECORDED}" for group in bases), f"seed={recorded['seed']}"]
