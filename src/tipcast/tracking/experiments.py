"""Which experiment the runs of a job belong to."""

from __future__ import annotations

import os
from typing import Any

from mlflow.exceptions import MlflowException

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec

NAME, ID = "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"
DEFAULT = "tipcast"
ABSENT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "NOT_FOUND")


def is_of_launcher(spec: TrackingSpec) -> bool:
    """Tell whether the store is that of `mlflow run`, or no launcher has set its variables."""
    launched = os.environ.get("MLFLOW_RUN_ID") and spec.uri
    return not launched or spec.uri == os.environ.get("MLFLOW_TRACKING_URI", spec.uri)


def find_experiment(client: Any, spec: TrackingSpec) -> tuple[str, Any]:
    """Return name and entity of an experiment; None for the entity where there is none of the name yet.

    It is that of ``tracking.experiment``, of MLFLOW_EXPERIMENT_NAME, of MLFLOW_EXPERIMENT_ID or else ``tipcast``; C003
    where the variables contradict each other, T004 for an id that is not there.
    """
    name, number = os.environ.get(NAME), os.environ.get(ID)
    if spec.experiment is not None or not number or not is_of_launcher(spec):
        name = spec.experiment or name or DEFAULT
        return name, client.get_experiment_by_name(name)
    try:
        found = client.get_experiment(number)
    except MlflowException as problem:
        if problem.error_code not in ABSENT:
            raise
        fix = "unset it, or set tracking.experiment"
        raise TipcastError("T004", f"{ID} {number}", "is not there", fix) from problem
    if name and name != found.name:
        what = f"is of experiment {found.name}, and {NAME} is {name}"
        raise TipcastError("C003", f"{ID} {number}", what, "unset one of them, or set tracking.experiment")
    return found.name, found


def experiment_id(client: Any, spec: TrackingSpec) -> str:
    """Return the id of the experiment, which is made where there is none of its name; T004 where it was deleted."""
    name, found = find_experiment(client, spec)
    if found is None:
        try:
            return str(client.create_experiment(name))
        except Exception:  # another process may have made it meanwhile
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage != "active":
        fix = "restore it with `mlflow experiments restore`, or set tracking.experiment"
        raise TipcastError("T004", f"experiment {name}", "was deleted", fix)
    return str(found.experiment_id)
