"""Copies of an offline store's runs, models and versions on a server.

What the server has already, by its id or by the call that made it, is completed and not made again.
"""

import contextlib
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar, final

from mlflow import MlflowClient
from mlflow.entities import Experiment, LoggedModel, LoggedModelOutput, LoggedModelStatus, Metric
from mlflow.entities import Run as MlflowRun
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.utils.file_utils import local_file_uri_to_path
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS, MLFLOW_PARENT_RUN_ID

from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError
from tipcast.config.plain import redact_address
from tipcast.config.schema import TrackingSpec
from tipcast.tracking.batches import write
from tipcast.tracking.failures import ABSENT
from tipcast.tracking.lasting_client import server_of
from tipcast.tracking.making import REQUEST
from tipcast.tracking.portable_model import create_version, name_version
from tipcast.tracking.run import Run
from tipcast.tracking.run_lease import PROCESS, leased
from tipcast.tracking.run_lookup import experiment_id as named_experiment_id
from tipcast.tracking.uri_checks import ARTIFACTS, sqlite_file
from tipcast.tracking.versions import (
    description_with_model,
    logged_id,
    version_of_model,
    version_uri,
)
from tipcast.tracking.views import VIEW

T = TypeVar("T")

LOG = logging.getLogger("tipcast")
REPLAYED = "tipcast.replayed"
"""Tag of a run in the offline store that is whole on a server: the server's address."""
MOST = 50_000
"""Most runs that MLflow lists at once."""
ERROR_TAGS = ("error.code", "error.message")


@dataclass
class Replayed:
    """What a replay has brought to the server."""

    runs: list[str] = field(default_factory=list)
    """Ids on the server, parents first."""
    models: list[str] = field(default_factory=list)
    """Ids of logged models on the server."""
    versions: list[str] = field(default_factory=list)
    """Registered versions, as ``models:/NAME/VERSION``."""


def replay(source: MlflowClient, target: MlflowClient) -> Replayed:
    """Bring the runs of an offline store to a server, unless they are whole there.

    Raises S002 if a job still writes to the store, and T004 if a run or its experiment was deleted
    on the server. MLflow's errors are raised: a replay that was cut off is repeated.
    """
    runs = _missing_runs(source, redact_address(target.tracking_uri))
    with contextlib.ExitStack() as leases:
        for run in runs:
            if MLFLOW_PARENT_RUN_ID not in run.data.tags:
                leases.enter_context(leased(source, run.info.run_id))
        return _Replay(source, target).copy(runs)


def _missing_runs(source: MlflowClient, server: str) -> list[MlflowRun]:
    """Return the runs, parents before those below them; none if all are whole on a server."""
    experiments = [experiment.experiment_id for experiment in source.search_experiments()]
    runs = source.search_runs(experiments, max_results=MOST, order_by=["attributes.start_time"])
    if all(run.data.tags.get(REPLAYED) == server for run in runs):
        return []
    # All of them: those that are whole are named in notes and tags of the others.
    return sorted(runs, key=lambda run: MLFLOW_PARENT_RUN_ID in run.data.tags)


@final
class _Replay:
    """One replay: both clients, and the server's names for what the offline store has."""

    def __init__(self, source: MlflowClient, target: MlflowClient) -> None:
        self._source = source
        self._target = target
        self._server_runs: dict[str, MlflowRun] = {}
        """Id of a run in the offline store -> the run as the server has it at first."""
        self._names: dict[str, str] = {}
        """Id of a run or model, or address of a version, in the offline store -> on the server."""
        self._done = Replayed()

    def copy(self, runs: list[MlflowRun]) -> Replayed:
        """Copy runs with their models and versions; each is closed as the last step."""
        for run in runs:
            server_run = self._run_on_server(run)
            self._server_runs[run.info.run_id] = server_run
            self._names[run.info.run_id] = server_run.info.run_id
        self._warn_of_another_server()

        for run in runs:
            for model in self._models_of(run):
                self._copy_model(model)
        for run in runs:
            for version in self._source.search_model_versions(f"run_id='{run.info.run_id}'"):
                self._register(version)
            self._name_versions(run)

        # Those below a parent first: a parent that is closed is whole.
        for run in reversed(runs):
            self._copy_values(run)
            self._copy_artifacts(run)
            self._copy_view(run)
            self._close(run)

        self._done.runs = [self._names[run.info.run_id] for run in runs]
        return self._done

    def _run_on_server(self, run: MlflowRun) -> MlflowRun:
        """Return a run as the server has it; it is made if it is not there.

        Raises T004 if it, or its experiment, was deleted there.
        """
        run_id = run.info.run_id
        if server_run := _if_there(partial(self._target.get_run, run_id)):
            if server_run.info.lifecycle_stage != "active":
                _check_active(self._target.get_experiment(server_run.info.experiment_id))
                raise _deleted(f"run {run_id}", f"mlflow runs restore --run-id {run_id}")
            return server_run

        experiment_id = self._experiment_on_server(run.info.experiment_id)
        request = run.data.tags.get(REQUEST, run_id)
        tried = self._target.search_runs([experiment_id], f"tags.`{REQUEST}` = '{request}'")
        if tried:
            return tried[0]

        made = self._target.create_run(
            experiment_id,
            start_time=run.info.start_time,
            tags={REQUEST: request, PROCESS: run.data.tags.get(PROCESS, "")},
            run_name=run.info.run_name,
        )
        return self._target.get_run(made.info.run_id)

    def _experiment_on_server(self, experiment_id: str) -> str:
        """Return the id of the experiment of the same name, which is made if it is not there."""
        name = self._source.get_experiment(experiment_id).name
        if experiment := self._target.get_experiment_by_name(name):
            _check_active(experiment)
        return named_experiment_id(self._target, TrackingSpec(experiment=name))

    def _warn_of_another_server(self) -> None:
        """Say what cannot be brought to a server that has not seen the runs before."""
        gone = server_of(self._source)
        if gone and not any(run_id == self._names[run_id] for run_id in self._names):
            LOG.warning(
                "%s has not seen these runs: it gets only the last points of metrics that %s had, "
                "and for resumed runs no files of earlier processes",
                redact_address(self._target.tracking_uri),
                gone,
            )

    def _models_of(self, run: MlflowRun) -> list[LoggedModel]:
        """Return the logged models of a run of the offline store."""
        condition = f"source_run_id='{run.info.run_id}'"
        return list(self._source.search_logged_models([run.info.experiment_id], condition))

    def _copy_model(self, model: LoggedModel) -> None:
        """Copy a logged model with its files; one that was never whole becomes FAILED."""
        server_model = self._model_on_server(model)
        model_id = server_model.model_id
        self._names[model.model_id] = model_id
        if server_model.status == LoggedModelStatus.READY:
            return

        kept_files = self._folder(model.artifact_location)
        if model.status == LoggedModelStatus.READY and kept_files.is_dir():
            with temporary_folder() as folder:
                files = folder / "model"
                shutil.copytree(kept_files, files)
                description = files / "MLmodel"
                text = description.read_text(encoding="utf-8")
                description.write_text(self._translated(text), encoding="utf-8")
                self._target.log_model_artifacts(model_id, str(files))
            self._target.finalize_logged_model(model_id, LoggedModelStatus.READY)
            self._done.models.append(model_id)
        else:
            if model.status == LoggedModelStatus.READY:
                LOG.warning(
                    "model %s becomes FAILED: its files exist only where it was logged", model_id
                )
            self._target.finalize_logged_model(model_id, LoggedModelStatus.FAILED)

    def _model_on_server(self, model: LoggedModel) -> LoggedModel:
        """Return a logged model on the server, which is made if it is not there."""
        if same := _if_there(partial(self._target.get_logged_model, model.model_id)):
            return same

        run_id = self._names[model.source_run_id]
        experiment_id = self._server_runs[model.source_run_id].info.experiment_id
        request = model.tags.get(REQUEST, model.model_id)
        condition = f"tags.`{REQUEST}` = '{request}'"
        tried = self._target.search_logged_models([experiment_id], condition)
        if tried:
            return tried[0]

        tags = {name: text for name, text in model.tags.items() if name != MLFLOW_MODEL_VERSIONS}
        return self._target.create_logged_model(
            experiment_id,
            model.name,
            run_id,
            tags={**tags, REQUEST: request},
            params=model.params,
            model_type=model.model_type,
        )

    def _register(self, version: ModelVersion) -> None:
        """Register a version's model on the server, unless that has been done."""
        run = self._open_on_server(version.run_id)
        model_id = self._names[logged_id(version)]
        registered = version_of_model(self._target, run.id, version.name, model_id)

        if registered is None:
            # The server numbers the version anew; _name_versions puts that number in.
            description = self._translated(description_with_model(version))
            registered = create_version(run, model_id, version.name, version.tags, description)
            self._done.versions.append(version_uri(registered))

        self._names[version_uri(version)] = version_uri(registered)

    def _name_versions(self, run: MlflowRun) -> None:
        """Name the versions of a run in their descriptions and in the tags of its models, those
        that the server had too.
        """
        server_run = self._open_on_server(run.info.run_id)
        for version in self._target.search_model_versions(f"run_id='{server_run.id}'"):
            name_version(server_run, version)

    def _open_on_server(self, run_id: str) -> Run:
        info = self._server_runs[run_id].info
        return Run(info.run_id, info.experiment_id, self._target)

    def _copy_values(self, run: MlflowRun) -> None:
        """Copy tags, parameters, points of metrics, inputs and outputs that the server lacks."""
        server_run = self._server_runs[run.info.run_id]
        run_id = server_run.info.run_id
        data = server_run.data

        tags = {name: self._translated(text) for name, text in run.data.tags.items()}
        params = {key: text for key, text in run.data.params.items() if key not in data.params}
        write(self._target, run_id, tags=tags, params=params)
        for name in ERROR_TAGS:
            if name in data.tags and name not in tags:
                self._target.delete_tag(run_id, name)

        points = [point for key in run.data.metrics for point in self._missing_points(run, key)]
        self._target.log_batch(run_id, metrics=[*points, *self._points_of_models(run)])
        self._copy_links(run, server_run)

    def _missing_points(self, run: MlflowRun, key: str) -> Iterator[Metric]:
        """Yield the points of a metric that the server lacks."""
        run_id = self._names[run.info.run_id]
        logged = {
            (point.step, point.value) for point in self._target.get_metric_history(run_id, key)
        }
        for point in self._source.get_metric_history(run.info.run_id, key):
            if (point.step, point.value) not in logged:
                yield Metric(key, point.value, point.timestamp, point.step)

    def _points_of_models(self, run: MlflowRun) -> Iterator[Metric]:
        """Yield the metrics of a run's models that the server's models lack."""
        for model in self._models_of(run):
            model_id = self._names[model.model_id]
            logged = {point.key for point in self._target.get_logged_model(model_id).metrics or ()}
            for point in model.metrics or ():
                if point.key not in logged:
                    yield Metric(
                        point.key,
                        point.value,
                        point.timestamp,
                        point.step,
                        model_id,
                        point.dataset_name,
                        point.dataset_digest,
                    )

    def _copy_links(self, run: MlflowRun, server_run: MlflowRun) -> None:
        """Copy the datasets and models that a run has used, and the models that it has logged."""
        run_id = server_run.info.run_id
        # Training and validation rows of the same files have one digest.
        linked_data = {
            (item.dataset.name, item.dataset.digest) for item in server_run.inputs.dataset_inputs
        }
        datasets = [
            item
            for item in run.inputs.dataset_inputs
            if (item.dataset.name, item.dataset.digest) not in linked_data
        ]
        used = {item.model_id for item in server_run.inputs.model_inputs}
        models = [item for item in run.inputs.model_inputs if item.model_id not in used]
        if datasets or models:
            self._target.log_inputs(run_id, datasets, models)

        linked = {output.model_id for output in _outputs(server_run)}
        outputs = [
            LoggedModelOutput(self._names[output.model_id], output.step)
            for output in _outputs(run)
            if self._names[output.model_id] not in linked
        ]
        if outputs:
            self._target.log_outputs(run_id, outputs)

    def _copy_artifacts(self, run: MlflowRun) -> None:
        """Copy the files of a run."""
        folder = self._folder(run.info.artifact_uri)
        if folder.is_dir():
            self._target.log_artifacts(self._names[run.info.run_id], str(folder))

    def _copy_view(self, run: MlflowRun) -> None:
        """Copy the view of the runs below a run in MLflow's pages, which its note links to."""
        experiment = self._source.get_experiment(run.info.experiment_id)
        view = experiment.tags.get(VIEW + run.info.run_id)
        if view:
            info = self._server_runs[run.info.run_id].info
            key = VIEW + info.run_id
            self._target.set_experiment_tag(info.experiment_id, key, self._translated(view))

    def _folder(self, uri: str) -> Path:
        """Return the folder of a run's or model's files, which may have moved with the store."""
        folder = Path(local_file_uri_to_path(uri))
        database = sqlite_file(self._source.tracking_uri)
        if folder.is_dir() or database is None:
            return folder
        _, _, inside = folder.as_posix().rpartition(f"/{ARTIFACTS}/")
        return database.parent / ARTIFACTS / inside

    def _close(self, run: MlflowRun) -> None:
        """Close a run on the server as it ended; one whose process was killed becomes KILLED."""
        status = run.info.status
        if status == "RUNNING":
            status = "KILLED"
        self._target.set_terminated(self._names[run.info.run_id], status, run.info.end_time)
        server = redact_address(self._target.tracking_uri)
        self._source.set_tag(run.info.run_id, REPLAYED, server)

    def _translated(self, text: str) -> str:
        """Return a text with the server's ids and versions in place of those of the offline
        store.
        """
        changed = {name: new for name, new in self._names.items() if name != new}
        if not changed:
            return text
        names = "|".join(re.escape(name) for name in changed)
        return re.sub(rf"\b(?:{names})\b", lambda match: changed[match[0]], text)


def _outputs(run: MlflowRun) -> list[LoggedModelOutput]:
    """Return the links of a run to the models that it has logged."""
    if run.outputs is None:
        return []
    return list(run.outputs.model_outputs)


def _check_active(experiment: Experiment) -> None:
    """Refuse an experiment that was deleted on the server; T004."""
    if experiment.lifecycle_stage != "active":
        number = experiment.experiment_id
        where = f"experiment {experiment.name}"
        raise _deleted(where, f"mlflow experiments restore -x {number}")


def _deleted(where: str, command: str) -> TipcastError:
    """Return the T004 error of something that a command brings back."""
    fix = f"`{command}` with MLFLOW_TRACKING_URI set, then replay again"
    return TipcastError("T004", where, "was deleted on the server", fix)


def _if_there(get: Callable[[], T]) -> T | None:
    """Return what a call of a store's client gets; None if the store has no such thing."""
    try:
        return get()
    except MlflowException as problem:
        if problem.error_code not in ABSENT:
            raise
        return None
