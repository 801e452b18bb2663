"""The lookup of runs and experiments that a user names."""

import os
import re
from dataclasses import replace

from mlflow import MlflowClient
from mlflow.entities import Experiment
from mlflow.entities import Run as MlflowRun
from mlflow.exceptions import MlflowException

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.tracking.failures import ABSENT, absent
from tipcast.tracking.store import all_runs

LAST = "last"
"""Word that stands for the newest run."""
NAME = "MLFLOW_EXPERIMENT_NAME"
"""Variable with the name of the experiment."""
ID = "MLFLOW_EXPERIMENT_ID"
"""Variable with the id of the experiment."""
DEFAULT = "tipcast"
"""Name of the experiment if nothing else names one."""


def find_run(
    store: MlflowClient, name: str, spec: TrackingSpec | None = None, job: str | None = None
) -> MlflowRun:
    """Return the run that a user names, as MLflow has it; T004 for no run, or for several.

    ``name`` is a whole id, which may be that of a deleted run, or the beginning of an id, of at
    least 4 characters. With a ``spec`` it may be ``last``: the newest run of the experiment, by a
    job such as ``sweep``, or by any job, without trials.
    """
    if name == LAST and spec is not None:
        return newest_run(store, spec, job)

    if re.fullmatch("[0-9a-f]{4,31}", name):
        name = complete_id(store, name)

    fix = "give the id of a run or its first 4 or more characters, or unset MLFLOW_RUN_ID"
    with absent("T004", f"run {name}", "is not there", fix):
        return store.get_run(name)


def complete_id(store: MlflowClient, beginning: str) -> str:
    """Return the id of the active run that begins so; T004 if several do.

    If none does, the beginning is returned.
    """
    runs = all_runs(store, f"attributes.run_id LIKE '{beginning}%'")
    if len(runs) > 1:
        names = ", ".join(f"{run.info.run_id} ({run.info.run_name})" for run in runs)
        what = f"matches {len(runs)} runs, such as {names}"
        raise TipcastError("T004", f"run {beginning}", what, "give more of its id")
    if not runs:
        return beginning
    return str(runs[0].info.run_id)


def newest_run(store: MlflowClient, spec: TrackingSpec, job: str | None) -> MlflowRun:
    """Return the newest run of a job in an experiment; T004 if there is none.

    Without a job it is the newest run that is not a trial.
    """
    name, experiment = find_experiment(store, spec)
    condition = "tags.job != 'trial'"
    if job:
        condition = f"tags.job = '{job}'"

    if experiment:
        newest_first = ["attributes.start_time DESC"]
        runs = store.search_runs(
            [experiment.experiment_id], condition, max_results=1, order_by=newest_first
        )
        if runs:
            return runs[0]

    what = f"experiment {name} has no {job or 'run'}"
    fix = "give the id of a run, or set tracking.experiment"
    raise TipcastError("T004", f"run {LAST}", what, fix)


def find_experiment(store: MlflowClient, spec: TrackingSpec) -> tuple[str, Experiment | None]:
    """Return the name of the experiment, and its entity if it exists.

    It is the experiment of ``tracking.experiment``, of MLFLOW_EXPERIMENT_ID, of
    MLFLOW_EXPERIMENT_NAME or else ``tipcast``. Raises T004 for an id that does not exist.
    """
    if not spec.experiment and (number := os.environ.get(ID)):
        fix = "unset it, or set tracking.experiment"
        with absent("T004", f"{ID} {number}", "is not there", fix):
            experiment = store.get_experiment(number)
            return experiment.name, experiment

    name = spec.experiment or os.environ.get(NAME) or DEFAULT
    return name, store.get_experiment_by_name(name)


def experiment_id(store: MlflowClient, spec: TrackingSpec) -> str:
    """Return the id of the experiment, which is made if it does not exist; T004 if it was
    deleted.
    """
    name, experiment = find_experiment(store, spec)
    if experiment is None:
        try:
            return str(store.create_experiment(name))
        except Exception:  # another process may have made it meanwhile
            experiment = store.get_experiment_by_name(name)
            if experiment is None:
                raise

    number = experiment.experiment_id
    if experiment.lifecycle_stage != "active":
        fix = f"`mlflow experiments restore -x {number}`, or set tracking.experiment"
        raise TipcastError("T004", f"experiment {name}", "was deleted", fix)

    return str(number)


def tracking_in_experiment_of(
    store: MlflowClient, spec: TrackingSpec, run_id: str | None
) -> TrackingSpec:
    """Return where to record a run that uses a model: in the experiment of the training run.

    A user may name another experiment. The usual one is taken if the training run, or its
    experiment, does not exist any more.
    """
    if spec.experiment or os.environ.get(NAME) or os.environ.get(ID) or run_id is None:
        return spec

    try:
        experiment = store.get_experiment(store.get_run(run_id).info.experiment_id)
    except MlflowException as problem:
        if problem.error_code not in ABSENT:
            raise
        return spec

    if experiment.lifecycle_stage != "active":
        return spec
    return replace(spec, experiment=experiment.name)
