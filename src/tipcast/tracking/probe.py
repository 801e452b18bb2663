"""Whether the tracking store takes a run and an artifact: one of each is written and deleted again."""

from __future__ import annotations

import dataclasses

from tipcast.config.errors import Finding, TipcastError, ok, warning
from tipcast.config.plain import redact_address
from tipcast.config.schema import TrackingSpec
from tipcast.tracking.store import failures, first_line, open_store, resolve


def check_store(spec: TrackingSpec) -> Finding:
    """Open the store as a job does, write a run with an artifact into the configured experiment, and delete both.

    The experiment is made where it is not there yet. A store keeps what is deleted, out of sight, until ``mlflow gc``.
    T001 to T003 tell of the store, T004 of an experiment that was deleted, T005 of the artifact.
    """
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    from tipcast.tracking.run import create  # MLflow's imports take seconds

    store, kept = resolve(spec), ""
    client = open_store(spec)
    with failures(store):
        run = create(client, dataclasses.replace(spec, run_name=None), "tipcast-doctor").info
        try:
            client.log_text(run.run_id, "written by tipcast doctor\n", "doctor.txt")
        except Exception as problem:  # every kind of artifact store has its own
            what = f"cannot be written: {first_line(problem)}"
            fix = "check rights and free space of the artifact store, or use another tracking.experiment"
            raise TipcastError("T005", redact_address(run.artifact_uri), what, fix) from problem
        finally:
            try:
                client.delete_run(run.run_id)
                get_artifact_repository(run.artifact_uri).delete_artifacts()
            except Exception as problem:
                kept = first_line(problem)
        if spec.register:
            client.search_registered_models(max_results=1)
    artifacts = redact_address(run.artifact_uri.partition(run.run_id)[0])
    found = f"{redact_address(store)} takes runs, {artifacts} artifacts"
    return warning(f"{found}; the probe stays: {kept}", f"delete the run {run.run_id} by hand") if kept else ok(found)
