"""Typed schema of a promotion's configuration: which version, which alias, and what the gate asks."""

from __future__ import annotations

from dataclasses import dataclass

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from tipcast.config.schema import BackendSpec, ClusterSpec, DataSpec, Output, TrackingSpec


@dataclass
class PromoteConfig:
    """Schema of conf/promote.yaml."""

    model_uri: str = MISSING
    """``models:/NAME/VERSION`` or ``models:/NAME@ALIAS``."""
    alias: str = MISSING
    margin: float = MISSING
    """Largest loss of test AUC against the alias's present holder that passes."""
    certain: bool = MISSING
    """Whether the whole 95 % interval of the difference must be above minus the margin, not only the difference."""
    replicates: int = MISSING
    """Of the paired bootstrap."""
    force: bool = MISSING
    """Move the alias whatever the gate says; a tag of the version says so."""
    backend: BackendSpec = MISSING
    cluster: ClusterSpec = MISSING
    tracking: TrackingSpec = MISSING
    data: DataSpec = MISSING
    """Of the test rows; the source ``tested`` is the one that the version's run read."""
    seed: int = MISSING
    print: Output = MISSING
    debug: bool = False


def register() -> None:
    """Make the schema known to Hydra."""
    ConfigStore.instance().store(name="promote_schema", node=PromoteConfig)
