"""How a run starts: made in its experiment, or joined where `mlflow run` has made it."""

from __future__ import annotations

import logging
import re
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.tracking.context.registry import resolve_tags
from mlflow.utils.mlflow_tags import MLFLOW_SOURCE_NAME

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.tracking import process
from tipcast.tracking.store import redact, resolve

LOG = logging.getLogger("tipcast")

GIVEN_NAME = re.compile(r"[a-z]+-[a-z]+-\d{1,3}")
"""A name that MLflow's launcher made up, which a better one may replace."""


def join(client: Any, run_id: str, spec: TrackingSpec, name: str) -> Any:
    """Return the run that `mlflow run` opened, named as far as nobody has named it; T004 where there is none."""
    try:
        run = client.get_run(run_id)
    except MlflowException as problem:
        raise TipcastError(
            "T004",
            f"MLFLOW_RUN_ID {run_id}",
            f"is no run of {redact(resolve(spec))}",
            "unset MLFLOW_RUN_ID, or set MLFLOW_TRACKING_URI to its store",
        ) from problem
    experiment = client.get_experiment(run.info.experiment_id).name
    if experiment not in {spec.experiment, "Default"}:
        LOG.warning("the run is in the launcher's experiment %s, not in %s", experiment, spec.experiment)
    if spec.run_name or GIVEN_NAME.fullmatch(run.info.run_name or ""):
        client.update_run(run_id, name=spec.run_name or name)
    return run


def create(client: Any, spec: TrackingSpec, name: str) -> Any:
    """Make a run, and its experiment where there is none; T004 where that was deleted."""
    experiment = client.get_experiment_by_name(spec.experiment)
    if experiment is None:
        try:
            experiment_id = client.create_experiment(spec.experiment)
        except Exception:  # another process may have made it meanwhile
            experiment = client.get_experiment_by_name(spec.experiment)
            if experiment is None:
                raise
            experiment_id = experiment.experiment_id
    elif experiment.lifecycle_stage != "active":
        raise TipcastError(
            "T004",
            f"experiment {spec.experiment}",
            "was deleted",
            "restore it with `mlflow experiments restore`, or set tracking.experiment",
        )
    else:
        experiment_id = experiment.experiment_id
    return client.create_run(
        experiment_id,
        run_name=spec.run_name or name,
        tags=resolve_tags({MLFLOW_SOURCE_NAME: "tipcast", **process.tags()}),
    )
