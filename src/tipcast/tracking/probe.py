"""Whether the tracking store takes a run and an artifact: one of each is written and removed again."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tipcast.config.errors import Finding, TipcastError, ok, warning
from tipcast.config.schema import TrackingSpec
from tipcast.tracking.store import failures, open_store, redact, resolve

NAME = "tipcast-doctor"
"""Of the run, and the beginning of the experiment's name where the configured one is not there yet."""
FILE = "doctor.txt"


def check_store(spec: TrackingSpec) -> Finding:
    """Open the store as a job does, write a run with an artifact into the configured experiment, and remove both.

    Nothing stays in a database. A server keeps what is deleted, out of sight, until its own ``mlflow gc``. Where the
    experiment is not there yet, which the first run mends, the probe has one of its own that is removed with it.

    Parameters
    ----------
    spec
        Of the configuration.

    Returns
    -------
    Finding
        A warning where the probe could be written and not removed.

    Raises
    ------
    TipcastError
        T001 to T003 the store, T004 the experiment was deleted, T005 the artifact.

    """
    from tipcast.tracking.run import create  # MLflow's imports take seconds

    store = resolve(spec)
    client = open_store(spec)
    with failures(store):
        there = client.get_experiment_by_name(spec.experiment) is not None
        own = spec if there else dataclasses.replace(spec, experiment=f"{NAME}-{uuid.uuid4().hex}")
        run = create(client, dataclasses.replace(own, run_name=None), NAME)
        new = _new_folders(run.info.artifact_uri)
        try:
            _write(client, run)
            if spec.register:
                client.search_registered_models(max_results=1)
        finally:
            kept = _removed(client, run, new, experiment=not there)
    found = f"{redact(store)} takes runs, {redact(run.info.artifact_uri.partition(run.info.run_id)[0])} artifacts"
    if kept:
        return warning(f"{found}; the probe stays: {kept}", f"delete the run {run.info.run_id} by hand")
    return ok(found if there else f"{found}; the first run makes the experiment {spec.experiment}")


def _write(client: Any, run: Any) -> None:
    try:
        client.log_text(run.info.run_id, "written by tipcast doctor\n", FILE)
    except Exception as problem:  # every kind of artifact store has its own
        text = next(iter(str(problem).strip().splitlines()), type(problem).__name__)
        raise TipcastError(
            "T005",
            redact(run.info.artifact_uri),
            f"cannot be written: {text}",
            "check rights and free space of the artifact store, or use another tracking.experiment",
        ) from problem


def _new_folders(uri: str) -> list[Path]:
    """Return the folders that an artifact of a local store makes, the innermost first."""
    from mlflow.utils.file_utils import local_file_uri_to_path

    if "://" in uri and not uri.startswith("file:"):
        return []
    return [folder for folder in Path(local_file_uri_to_path(uri)).absolute().parents if not folder.exists()]


def _removed(client: Any, run: Any, folders: Sequence[Path], *, experiment: bool) -> str | None:
    """Remove the run, its artifact, new folders and perhaps its experiment; return what went wrong."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    run_id, experiment_id = run.info.run_id, run.info.experiment_id
    store = client._tracking_client.store
    try:
        client.delete_run(run_id)
        if experiment:
            client.delete_experiment(experiment_id)
        if isinstance(store, SqlAlchemyStore):  # as `mlflow gc` does
            store._hard_delete_run(run_id)
            if experiment:
                store._hard_delete_experiment(experiment_id)
        get_artifact_repository(run.info.artifact_uri).delete_artifacts()
    except Exception as problem:
        return next(iter(str(problem).strip().splitlines()), type(problem).__name__)
    for folder in folders:
        with contextlib.suppress(OSError):  # another job has put something there meanwhile
            folder.rmdir()
    return None
