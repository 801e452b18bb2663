"""Artifacts whole or not at all: what was being written when the disk was full, or the job was stopped, is removed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from mlflow.entities import LoggedModelStatus
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository


@contextlib.contextmanager
def whole(client: Any, run_id: str, path: str) -> Iterator[None]:
    """Remove a run's artifact where writing it does not end well."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):  # the first problem is the one to tell
            get_artifact_repository(client.get_run(run_id).info.artifact_uri).delete_artifacts(path)
        raise


@contextlib.contextmanager
def whole_models(client: Any, run_id: str) -> Iterator[None]:
    """Remove the models of a run whose logging does not end well."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            outputs = client.get_run(run_id).outputs
            for model in (
                client.get_logged_model(each.model_id) for each in (outputs.model_outputs if outputs else [])
            ):
                if model.status != LoggedModelStatus.READY:
                    get_artifact_repository(model.artifact_location).delete_artifacts()
                    client.delete_logged_model(model.model_id)
        raise
