"""An offline store: an sqlite file of MLflow's that takes a job's runs when its tracking server is
gone.

Runs and models have the ids there that they have on the server, so that the job goes on with them.
"""

import contextlib
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

from mlflow import MlflowClient
from mlflow.entities import Experiment, FileInfo, LoggedModel
from mlflow.entities import Run as MlflowRun
from mlflow.entities.model_registry import ModelVersion
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.store.tracking.dbmodels.models import (
    SqlExperiment,
    SqlLoggedModel,
    SqlLoggedModelParam,
    SqlLoggedModelTag,
    SqlParam,
    SqlRun,
    SqlTag,
)
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

from tipcast.tracking.uri_checks import ARTIFACTS

FOLDER = "tipcast-offline-{}-{}"
"""Folder that is made in the working folder, with the beginning of the run's id and a number."""
UNUSED = "not used by tipcast"
"""Name of the experiment that MLflow makes in each store, unless the server has a run in it."""
FILE = "mlflow.db"
"""Name of the sqlite file in it."""


@contextlib.contextmanager
def new_folder(run_id: str) -> Iterator[Path]:
    """Make a folder for a run in the working folder, which is removed if the block fails."""
    # Of a new name each time: MLflow remembers the files that it has opened.
    folder = Path(FOLDER.format(run_id[:8], secrets.token_hex(2))).absolute()
    folder.mkdir()
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


@final
class OfflineClient(MlflowClient):  # type: ignore[misc]  # MLflow's class has no types
    """MLflow's client of an offline store.

    MLflow's own methods for artifacts remember by the id of a run or model where its files are: on
    the server.
    """

    def create_model_version(self, name: str, *arguments: Any, **keywords: Any) -> ModelVersion:
        """Make a version, and its registered model if only the server has that."""
        if not self.search_registered_models(f'name="{name}"'):
            self.create_registered_model(name)
        return super().create_model_version(name, *arguments, **keywords)

    def update_model_version(
        self, name: str, version: str, description: str | None = None
    ) -> ModelVersion | None:
        """Describe a version that was made here.

        None for one that only the server has: a replay completes its description.
        """
        made_here = self.search_model_versions(f'name="{name}"')
        if not any(str(made.version) == str(version) for made in made_here):
            return None
        return super().update_model_version(name, version, description)

    def log_artifact(self, run_id: str, local_path: str, artifact_path: str | None = None) -> None:
        """Copy a file to the artifacts of a run."""
        self._files_of_run(run_id).log_artifact(local_path, artifact_path)

    def list_artifacts(self, run_id: str, path: str | None = None) -> list[FileInfo]:
        """Return the files in a folder of a run's artifacts."""
        return list(self._files_of_run(run_id).list_artifacts(path))

    def download_artifacts(self, run_id: str, path: str, dst_path: str | None = None) -> str:
        """Copy an artifact of a run into a folder; return its path there."""
        return str(self._files_of_run(run_id).download_artifacts(path, dst_path))

    def log_model_artifacts(self, model_id: str, local_dir: str) -> None:
        """Copy the files of a folder to a logged model."""
        location = self.get_logged_model(model_id).artifact_location
        get_artifact_repository(location).log_artifacts(local_dir)

    def _files_of_run(self, run_id: str) -> ArtifactRepository:
        return get_artifact_repository(self.get_run(run_id).info.artifact_uri)


@final
class OfflineStore:
    """Rows of a new offline store for what the server has already: experiments, runs and models.

    MLflow's client cannot make them under a given id.
    """

    def __init__(self, file: Path) -> None:
        self._artifacts = file.parent / ARTIFACTS
        self._store = SqlAlchemyStore(f"sqlite:///{file}", str(self._artifacts))
        with self._store.ManagedSessionMaker(read_only=False) as session:
            # The server may have another experiment of the name that MLflow has given to this one.
            session.query(SqlExperiment).update({"name": UNUSED})

    def add_experiment(self, experiment: Experiment) -> None:
        """Add an experiment, whose artifacts lie beside the file."""
        row = SqlExperiment(
            experiment_id=int(experiment.experiment_id),
            name=experiment.name,
            artifact_location=str(self._artifacts / experiment.experiment_id),
        )
        with self._store.ManagedSessionMaker(read_only=False) as session:
            session.merge(row)  # MLflow has made experiment 0

    def add_run(self, run: MlflowRun) -> None:
        """Add a run with its status, tags and parameters. Its metrics stay on the server."""
        info = run.info
        artifacts = self._artifacts / info.experiment_id / info.run_id / "artifacts"
        self._add(
            SqlRun(
                run_uuid=info.run_id,
                name=info.run_name,
                experiment_id=int(info.experiment_id),
                user_id=info.user_id,
                status=info.status,
                start_time=info.start_time,
                end_time=info.end_time,
                artifact_uri=str(artifacts),
                lifecycle_stage="active",
                tags=[SqlTag(key=key, value=value) for key, value in run.data.tags.items()],
                params=[SqlParam(key=key, value=value) for key, value in run.data.params.items()],
            )
        )

    def add_model(self, model: LoggedModel) -> None:
        """Add a logged model with its tags and parameters, without files."""
        experiment = int(model.experiment_id)
        models = self._artifacts / model.experiment_id / "models"
        self._add(
            SqlLoggedModel(
                model_id=model.model_id,
                experiment_id=experiment,
                name=model.name,
                artifact_location=str(models / model.model_id / "artifacts"),
                creation_timestamp_ms=model.creation_timestamp,
                last_updated_timestamp_ms=model.last_updated_timestamp,
                status=model.status.to_int(),
                lifecycle_stage="active",
                model_type=model.model_type,
                source_run_id=model.source_run_id,
                tags=_entries(SqlLoggedModelTag, "tag", experiment, model.tags),
                params=_entries(SqlLoggedModelParam, "param", experiment, model.params),
            )
        )

    def _add(self, row: object) -> None:
        with self._store.ManagedSessionMaker(read_only=False) as session:
            session.add(row)


def _entries(
    table: type, prefix: str, experiment: int, entries: Mapping[str, str]
) -> list[SqlLoggedModelTag | SqlLoggedModelParam]:
    """Return the rows of a logged model's tags or parameters."""
    return [
        table(
            **{"experiment_id": experiment, f"{prefix}_key": key, f"{prefix}_value": value},
        )
        for key, value in entries.items()
    ]
