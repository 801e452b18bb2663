"""Whether the tracking store takes a run and an artifact: one of each is written and deleted again."""

from __future__ import annotations

import dataclasses
from typing import Any

from tipcast.config.errors import Finding, TipcastError, ok, warning
from tipcast.config.plain import redact_address
from tipcast.config.schema import TrackingSpec
from tipcast.tracking.store import failures, first_line, open_store, resolve

NAME, FILE = "tipcast-doctor", "doctor.txt"
"""Of the run and its artifact."""


def check_store(spec: TrackingSpec) -> Finding:
    """Open the store as a job does, write a run with an artifact into the configured experiment, and delete both.

    The experiment is made where it is not there yet. A store keeps what is deleted, out of sight, until ``mlflow gc``.
    T001 to T003 tell of the store, T004 of an experiment that was deleted, T005 of the artifact.
    """
    from tipcast.tracking.run import create  # MLflow's imports take seconds

    store = resolve(spec)
    client = open_store(spec)
    with failures(store):
        run = create(client, dataclasses.replace(spec, run_name=None), NAME)
        try:
            _write(client, run)
            if spec.register:
                client.search_registered_models(max_results=1)
        finally:
            kept = _deleted(client, run)
    artifacts = redact_address(run.info.artifact_uri.partition(run.info.run_id)[0])
    found = f"{redact_address(store)} takes runs, {artifacts} artifacts"
    if kept:
        return warning(f"{found}; the probe stays: {kept}", f"delete the run {run.info.run_id} by hand")
    return ok(found)


def _write(client: Any, run: Any) -> None:
    try:
        client.log_text(run.info.run_id, "written by tipcast doctor\n", FILE)
    except Exception as problem:  # every kind of artifact store has its own
        what = f"cannot be written: {first_line(problem)}"
        fix = "check rights and free space of the artifact store, or use another tracking.experiment"
        raise TipcastError("T005", redact_address(run.info.artifact_uri), what, fix) from problem


def _deleted(client: Any, run: Any) -> str:
    """Delete the run and its artifact; return what went wrong."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    try:
        client.delete_run(run.info.run_id)
        get_artifact_repository(run.info.artifact_uri).delete_artifacts()
    except Exception as problem:
        return first_line(problem)
    return ""
