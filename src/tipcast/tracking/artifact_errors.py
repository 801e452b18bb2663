"""What does not fit on a disk: where it was to go, and no half of a model left there."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from typing import Any

from mlflow.entities import LoggedModelStatus
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.utils.file_utils import local_file_uri_to_path

from tipcast.config.disk import FULL
from tipcast.tracking.store import release

ERRNO = re.compile(r"\[Errno (\d+)\]")


@contextlib.contextmanager
def artifact_named(client: Any, run_id: str, path: str) -> Iterator[None]:
    """Give an error of writing a run's artifact, which MLflow does at once or not at all, the artifact's place."""
    try:
        yield
    except OSError as problem:
        if problem.filename is None:
            root = client.get_run(run_id).info.artifact_uri
            problem.filename = f"{local_file_uri_to_path(root) if root.startswith('file:') else root}/{path}"
        raise


@contextlib.contextmanager
def incomplete_models_removed(client: Any, run_id: str) -> Iterator[None]:
    """Remove the models of a run whose logging does not end well.

    MLflow copies a model file by file, first into a temporary folder, and tells of an error there in its own words.
    """
    try:
        yield
    except BaseException as problem:
        release(problem)
        with contextlib.suppress(Exception):  # the first problem is the one to tell
            _remove(client, run_id)
        if isinstance(problem, MlflowException):
            found = [int(number) for number in ERRNO.findall(str(problem)) if int(number) in FULL]
            if found:
                raise OSError(found[0], os.strerror(found[0]), tempfile.gettempdir()) from problem
        raise


def _remove(client: Any, run_id: str) -> None:
    outputs = client.get_run(run_id).outputs
    for model in (client.get_logged_model(each.model_id) for each in (outputs.model_outputs if outputs else [])):
        if model.status != LoggedModelStatus.READY:
            get_artifact_repository(model.artifact_location).delete_artifacts()
            client.delete_logged_model(model.model_id)
