"""Artifacts of a run, read back."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError

CONFIG = "config.yaml"
"""Artifact: the configuration that a run was made with."""


def read_artifact(store: MlflowClient, run_id: str | None, path: str) -> str:
    """Return an artifact's text; MLflow's and the system's errors are raised."""
    with temporary_folder() as folder:  # otherwise MLflow makes one and leaves it
        return Path(store.download_artifacts(run_id, path, str(folder))).read_text(encoding="utf-8")


def config_text(store: MlflowClient, run_id: str | None, fix: str) -> str:
    """Return the text of a run's ``config.yaml``; M023 with ``fix`` if it cannot be read."""
    try:
        return read_artifact(store, run_id, CONFIG)
    except (MlflowException, OSError, UnicodeDecodeError) as problem:
        what = f"its {CONFIG} cannot be read"
        raise TipcastError("M023", f"run {run_id}", what, fix) from problem


def read_yaml(store: MlflowClient, run_id: str, path: str) -> Any:
    """Return the content of a run's YAML file; None if it has no such file."""
    with suppress(MlflowException, OSError, ValueError, yaml.YAMLError):
        return yaml.safe_load(read_artifact(store, run_id, path))
    return None
