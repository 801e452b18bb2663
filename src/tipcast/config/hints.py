"""What a wrong key or option may stand for: what other libraries call so, or the nearest."""

import dataclasses
import difflib
import re
from collections.abc import Sequence

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
"""What scikit-learn, MLflow and other options call a key -> the key, the first that a job has."""
OPTIONS = {
    "experiment": "for MLflow's experiment write tracking.experiment={wanted}",
    "tracking": "for a store write tracking.uri={wanted}",
    "data": "for a file write data=table data.train={wanted}",
}
"""Group of options that is taken for another key -> how to write that key."""
PATH_SIGNS = ("/", ".", "*")
"""Signs of a path or an address."""
ADDRESS = re.compile(r"//[^/\s]*@")
"""What an address may begin with that is a secret."""


def meant(key: str, keys: Sequence[str]) -> list[str]:
    """Return the keys that an unknown one may stand for, the likeliest first, at most three.

    These are the key that other libraries call so, those that end with it, the key of a mapping
    that ends with what it begins with, as ``tracking.tags.owner`` for ``tags.owner``, or else the
    nearest.
    """
    # Flags have hyphens, and variables of the environment capitals.
    plain = key.replace("-", "_").lower().removeprefix("mlflow_")
    for name in SYNONYMS.get(plain, ()):
        if name in keys:
            return [name]

    # `~key` may name one that is there; a space has a search's values of what params have
    others = [name for name in dict.fromkeys(keys) if name != key and ".space." not in name]
    ending = _ending(plain, others)
    if not ending and "." in plain:
        mapping, _, item = plain.rpartition(".")
        ending = [f"{name}.{item}" for name in _ending(mapping, others) if name != mapping]
    return ending[:MOST_MEANT] or difflib.get_close_matches(plain, others, 1, cutoff=0.75)


def unknown_option(job: str, group: str, wanted: str, options: Sequence[str]) -> TipcastError:
    """Return the error (C002) of an option that a group of a job has not got, with the key that may
    be meant.
    """
    shown = ADDRESS.sub("//...", redact(wanted))
    error = unknown(
        f"{group}={shown}", f"option of conf/{group}", shown, options, "C002", f"{group}="
    )
    is_near = bool(difflib.get_close_matches(wanted, options, 1))
    is_tracked = any(field.name == "tracking" for field in dataclasses.fields(JOBS[job].config))
    is_path = any(sign in wanted for sign in PATH_SIGNS)

    takes_other = {"experiment": is_tracked, "tracking": True, "data": is_path}
    if is_near or not takes_other.get(group):
        return error
    return TipcastError(
        "C002", error.where, error.what, f"{error.fix}; {OPTIONS[group].format(wanted=shown)}"
    )


def _ending(key: str, names: Sequence[str]) -> list[str]:
    """Return the names that end with the last part of a key."""
    leaf = key.rpartition(".")[2]
    return [name for name in names if name.rpartition(".")[2] == leaf]
