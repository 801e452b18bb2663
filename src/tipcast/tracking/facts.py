"""A run as people name it, the experiment that it belongs to, and what it says of itself."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

import yaml
from mlflow.exceptions import MlflowException

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.tracking.store import pages

CONFIG, VERSIONS, FILES = "config.yaml", "versions.yaml", "data/files.yaml"
"""Artifacts of a run."""
OF_CODE = RELEASE, COMMIT, DIRTY = ("tipcast.version", "mlflow.source.git.commit", "mlflow.source.git.dirty")
BEST = "sweep.best."
"""What the tags of a sweep's best parameters begin with."""
LAST = "last"
"""What stands for the newest run."""
LISTED = 5
"""Runs that an ambiguous beginning is told of."""
NAME, ID = "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"
DEFAULT = "tipcast"
ABSENT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "NOT_FOUND")
"""What stores answer where something is not there."""


def find_experiment(client: Any, spec: TrackingSpec) -> tuple[str, Any]:
    """Return name and entity of an experiment; None for the entity where there is none of the name yet.

    It is that of ``tracking.experiment``, of MLFLOW_EXPERIMENT_ID, of MLFLOW_EXPERIMENT_NAME or else ``tipcast``; T004
    for an id that is not there.
    """
    number = os.environ.get(ID)
    if spec.experiment is not None or not number:
        name = spec.experiment or os.environ.get(NAME) or DEFAULT
        return name, client.get_experiment_by_name(name)
    try:
        found = client.get_experiment(number)
    except MlflowException as problem:
        if problem.error_code not in ABSENT:
            raise
        fix = "unset it, or set tracking.experiment"
        raise TipcastError("T004", f"{ID} {number}", "is not there", fix) from problem
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


def find_run(client: Any, name: str, spec: TrackingSpec | None = None, job: str | None = None) -> str:
    """Return the id of the run that a user names.

    That is by a whole id, which is returned as it is; the beginning of one, of at least 4 characters, of all runs that
    are not deleted; or, with a ``spec``, ``last``: the newest run of its experiment and of a job, as ``sweep``, else of
    anything but a trial. T004 for no run, or for several.
    """
    where, found = f"run {name}", list[Any]()
    if name == LAST and spec is not None:
        experiment, there = find_experiment(client, spec)
        wanted = f"tags.job = '{job}'" if job else "tags.job != 'trial'"
        newest = ["attributes.start_time DESC"]
        found = client.search_runs([there.experiment_id], wanted, max_results=1, order_by=newest) if there else []
        if not found:
            what = f"experiment {experiment} has no {job or 'run'}"
            raise TipcastError("T004", where, what, "name a run by its id, or set tracking.experiment")
    elif re.fullmatch("[0-9a-f]{32}", name):
        return name
    elif re.fullmatch("[0-9a-f]{4,31}", name):
        experiments = [each.experiment_id for each in pages(client.search_experiments)]
        found = pages(client.search_runs, experiments, f"attributes.run_id LIKE '{name}%'")
    if not found:
        fix = "name the id of a run, or its first 4 characters or more"
        raise TipcastError("T004", where, "is not there: no id begins so", fix)
    if len(found) > 1:
        shown = ", ".join(f"{run.info.run_id} ({run.info.run_name})" for run in found[:LISTED])
        raise TipcastError("T004", where, f"stands for {len(found)} runs, as {shown}", "name more of its id")
    return str(found[0].info.run_id)


def versions_of(client: Any, run: Any) -> dict[str, Any]:
    """Return name -> version of the code and libraries that made a run."""
    code = {name: run.data.tags[name] for name in OF_CODE if name in run.data.tags}
    return code | artifact(client, run.info.run_id, VERSIONS)


def run_of(client: Any, run_id: str) -> Any:
    """Return a run as MLflow has it; T004 where it is not."""
    try:
        return client.get_run(run_id)
    except MlflowException as problem:
        raise TipcastError("T004", f"run {run_id}", "is not there", "name a run of this store") from problem


def config_text(client: Any, run_id: str | None, fix: str) -> str:
    """Return the configuration that a run was made with, from its artifact; M023 with a ``fix`` if it cannot."""
    try:
        return Path(client.download_artifacts(run_id, CONFIG)).read_text(encoding="utf-8")
    except (MlflowException, OSError, UnicodeDecodeError) as problem:
        raise TipcastError("M023", f"run {run_id}", f"its {CONFIG} cannot be read", fix) from problem


def best_of(run: Any) -> dict[str, str]:
    """Return parameter -> text of the value that a sweep's run has found; empty of others."""
    return {name.removeprefix(BEST): value for name, value in run.data.tags.items() if name.startswith(BEST)}


def artifact(client: Any, run_id: str, path: str) -> dict[str, Any]:
    """Return a mapping that a run has as a yaml file; empty where it has none."""
    with contextlib.suppress(MlflowException, OSError, yaml.YAMLError):
        found = yaml.safe_load(Path(client.download_artifacts(run_id, path)).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}
