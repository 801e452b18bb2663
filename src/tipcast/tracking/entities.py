"""MLflow's types by the names that they have in tipcast, for annotations alone: the import takes
seconds.
"""

from mlflow import MlflowClient
from mlflow.entities import DatasetInput, Experiment, LoggedModel
from mlflow.entities import Run as StoredRun
from mlflow.entities.model_registry import ModelVersion

__all__ = [
    "DatasetInput",
    "Experiment",
    "LoggedModel",
    "MlflowClient",
    "ModelVersion",
    "StoredRun",
]
