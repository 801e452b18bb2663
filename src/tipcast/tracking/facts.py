"""What a run says of itself, sorted by what people compare runs by."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from mlflow.exceptions import MlflowException

from tipcast.config.errors import TipcastError
from tipcast.config.plain import flatten

SECTIONS = ("configuration", "data", "versions", "seconds", "metrics")
CONFIG, VERSIONS = "config.yaml", "versions.yaml"
"""Artifacts of a run."""
OF_CODE = ("tipcast.version", "mlflow.source.git.commit", "mlflow.source.git.dirty")
NOT_METRICS = ("seconds/", "system/", "history/", "memory/")


@dataclass(frozen=True)
class Facts:
    """A run."""

    id: str
    name: str
    sections: Mapping[str, Mapping[str, Any]]
    """Section -> name -> value."""


def facts(client: Any, run_id: str) -> Facts:
    """Read a run.

    Raises
    ------
    TipcastError
        T004 where it is not.

    """
    try:
        run = client.get_run(run_id)
    except MlflowException as problem:
        raise TipcastError("T004", f"run {run_id}", "is not there", "name a run of this store") from problem
    tags, metrics = run.data.tags, run.data.metrics
    config = flatten(_artifact(client, run_id, CONFIG))
    versions = {name: tags[name] for name in OF_CODE if name in tags}
    phases = {name.partition("/")[2]: float(value) for name, value in metrics.items() if name.startswith("seconds/")}
    return Facts(
        id=run_id,
        name=run.info.run_name or run_id,
        sections={
            "configuration": config or dict(run.data.params),
            "data": {
                name: value for name, value in tags.items() if name.startswith(("data.", "sweep.study", "sweep.best"))
            },
            "versions": versions | _artifact(client, run_id, VERSIONS),
            "seconds": phases | ({"all": sum(phases.values())} if phases else {}),
            "metrics": {name: float(value) for name, value in metrics.items() if not name.startswith(NOT_METRICS)},
        },
    )


def config_text(client: Any, run_id: str | None, fix: str) -> str:
    """Return the configuration that a run was made with, as its artifact has it.

    Raises
    ------
    TipcastError
        M023, with ``fix``, where it cannot be read.

    """
    try:
        return Path(client.download_artifacts(run_id, CONFIG)).read_text(encoding="utf-8")
    except (MlflowException, OSError, UnicodeDecodeError) as problem:
        raise TipcastError("M023", f"run {run_id}", f"its {CONFIG} cannot be read", fix) from problem


def _artifact(client: Any, run_id: str, path: str) -> dict[str, Any]:
    """Return a mapping that a run has as a yaml file; empty where it has none."""
    with contextlib.suppress(MlflowException, OSError, yaml.YAMLError):
        found = yaml.safe_load(Path(client.download_artifacts(run_id, path)).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}
