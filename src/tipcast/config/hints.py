"""Hints at the key or option that a wrong one may stand for: by its name in other libraries, or the
nearest.
"""

import dataclasses
import difflib
import re
from collections.abc import Sequence

from tipcast.config.arguments import EVERY_MODEL
from tipcast.config.errors import TipcastError, unknown
from tipcast.config.jobs import JOBS
from tipcast.config.plain import redact

MOST_MEANT = 3
"""Keys that a hint names."""
SYNONYMS = {
    "random_state": ("seed",),
    "label": ("task.target",),
    "n_jobs": ("cluster.threads_per_worker",),
    "data.name": ("data.source",),
    "experiment": ("tracking.experiment",),
    "experiment_name": ("tracking.experiment",),
    "experiment_id": ("tracking.experiment",),
    "backend_store_uri": ("tracking.uri",),
    "registry_store_uri": ("tracking.uri",),
    "registry_uri": ("tracking.uri",),
    "store_uri": ("tracking.uri",),
    "tracking_uri": ("tracking.uri",),
    "artifact_location": ("tracking.artifact_root",),
    "artifacts_destination": ("tracking.artifact_root",),
    "default_artifact_root": ("tracking.artifact_root",),
    "model": ("model_uri",),
    "model_name": ("model_uri", "tracking.register"),
    "registered_model": ("model_uri", "tracking.register"),
    "registered_model_name": ("model_uri", "tracking.register"),
    "model_version": ("model_uri",),
    "run_id": ("model_uri",),
    "version": ("model_uri",),
    "stage": ("alias",),
    "input_path": ("input",),
    "output_path": ("output",),
}
"""Name that scikit-learn, MLflow or another option has for a key -> keys; the first that a job has
is meant.
"""
OPTIONS = {
    "experiment": "for MLflow's experiment, write tracking.experiment={option}",
    "tracking": "for a store, write tracking.uri={option}",
    "data": "for a file, write data=table data.train={option}",
}
"""Group that users mistake for another key -> how to write that key."""
PATH_SIGNS = ("/", ".", "*")
"""Signs of a path or an address."""
ADDRESS = re.compile(r"//[^/\s]*@")
"""User name and password of an address."""


def meant(key: str, keys: Sequence[str]) -> list[str]:
    """Return the keys that an unknown key may stand for, the likeliest first, at most three.

    These are the key that other libraries give this name, or else the keys that end with it, or
    else the key below a mapping whose name is complete, as ``tracking.tags.owner`` for
    ``tags.owner``, or else the nearest key.
    """
    # Flags have hyphens, and variables of the environment capitals.
    plain = key.replace("-", "_").lower().removeprefix("mlflow_")
    for name in SYNONYMS.get(plain, ()):
        if name in keys:
            return [name]

    # `~key` may name a key that exists; search.space repeats the keys of model.params.
    candidates = [name for name in dict.fromkeys(keys) if name != key and ".space." not in name]
    ending = _ending(plain, candidates)
    if not ending and "." in plain:
        mapping, _, item = plain.rpartition(".")
        ending = [f"{name}.{item}" for name in _ending(mapping, candidates) if name != mapping]
    return ending[:MOST_MEANT] or difflib.get_close_matches(plain, candidates, 1, cutoff=0.75)


def unknown_option(job: str, group: str, option: str, options: Sequence[str]) -> TipcastError:
    """Return the error (C002) of an option that a group of a job does not have.

    It names the key that may be meant instead.
    """
    safe_option = ADDRESS.sub("//...", redact(option))
    where = f"{group}={safe_option}"
    error = unknown(where, f"option of conf/{group}", safe_option, options, "C002", f"{group}=")

    if where == EVERY_MODEL and job == "train":
        fix = f"tipcast train --multirun {EVERY_MODEL} trains each"
        return TipcastError("C002", where, "stands for several training runs", fix)

    is_near = bool(difflib.get_close_matches(option, options, 1))
    is_tracked = any(field.name == "tracking" for field in dataclasses.fields(JOBS[job].config))
    is_path = any(sign in option for sign in PATH_SIGNS)
    is_another_key = {"experiment": is_tracked, "tracking": True, "data": is_path}
    if is_near or not is_another_key.get(group):
        return error

    hint = OPTIONS[group].format(option=safe_option)
    return TipcastError("C002", error.where, error.what, f"{error.fix}; {hint}")


def _ending(key: str, names: Sequence[str]) -> list[str]:
    """Return the names whose last part is that of a key."""
    leaf = key.rpartition(".")[2]
    return [name for name in names if name.rpartition(".")[2] == leaf]
