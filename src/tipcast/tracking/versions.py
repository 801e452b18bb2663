"""Registered versions of a run, and the logged model of each."""

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
