"""Registered versions of a run, the logged model of each, and its address in their descriptions."""

import re
from collections.abc import Iterator

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion


def versions_of_run(store: MlflowClient, run_id: str) -> Iterator[ModelVersion]:
    """Yield the whole versions that a run has registered."""
    for version in store.search_model_versions(f"run_id='{run_id}'"):
        if version.status == "READY":
            yield version


def version_of_model(
    store: MlflowClient, run_id: str, name: str, model_id: str
) -> ModelVersion | None:
    """Return the version of a run's logged model under a name; None if there is none."""
    for version in versions_of_run(store, run_id):
        if version.name == name and logged_id(version) == model_id:
            return version
    return None


def logged_id(version: ModelVersion) -> str:
    """Return the id of a version's logged model, which MLflow's search leaves out."""
    return str(version.model_id or (version.source or "").removeprefix("models:/"))


def version_uri(version: ModelVersion) -> str:
    """Return the address of a version, as ``models:/NAME/3``."""
    return f"models:/{version.name}/{version.version}"


def description_with_version(version: ModelVersion) -> str:
    """Return a version's description with the version's address in place of the logged model's.

    The number of a version is known only after the version is made with a description.
    """
    logged = f"models:/{logged_id(version)}"
    return _readdressed(version.description or "", logged, version_uri(version))


def description_with_model(version: ModelVersion) -> str:
    """Return a version's description with the logged model's address in place of the version's.

    Another version of the same model is made with it.
    """
    logged = f"models:/{logged_id(version)}"
    return _readdressed(version.description or "", version_uri(version), logged)


def _readdressed(text: str, old: str, new: str) -> str:
    """Replace an address in a text, but not the beginning of a longer one: version 1 is not 12."""
    return re.sub(rf"{re.escape(old)}\b", lambda _: new, text)
