"""MLflow's types by their names in tipcast. Import it for annotations alone: that takes seconds."""

from mlflow import MlflowClient
from mlflow.entities import DatasetInput, Experiment, LoggedModel
from mlflow.entities import Run as MlflowRun
from mlflow.entities.model_registry import ModelVersion

__all__ = [
    "DatasetInput",
    "Experiment",
    "LoggedModel",
    "MlflowClient",
    "ModelVersion",
    "MlflowRun",
]
