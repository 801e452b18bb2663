"""Typed schema of a scoring's configuration: a model, trips, and where their scores go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tipcast.config.schema import MISSING, BackendSpec, ClusterSpec, Output, TrackingSpec


@dataclass
class ScoreConfig:
    """Schema of conf/score.yaml."""

    backend: BackendSpec = MISSING
    cluster: ClusterSpec = MISSING
    tracking: TrackingSpec = MISSING
    model_uri: str = MISSING
    """``models:/name/3``, ``models:/name@alias``, ``models:/m-...`` or ``runs:/id/model``."""
    input: Any = MISSING
    """A path, a glob, a folder, an address or a list of them."""
    output: str = MISSING
    """Folder or s3:// prefix that gets the scores; one that is there is replaced if it holds scores or nothing."""
    keep: list[str] | None = None
    """Columns of the trips that are kept; null: all."""
    colour: str | None = None
    block_bytes: int = MISSING
    compression: str = MISSING
    storage_options: dict[str, Any] = field(default_factory=dict)
    """Of fsspec, for input and output alike."""
    print: Output = MISSING
    debug: bool = False


def register() -> None:
    """Make the schema known to Hydra."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name="score_schema", node=ScoreConfig)
