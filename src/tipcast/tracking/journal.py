"""What a job has written to a server, to be written again to an offline store."""

import itertools
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from mlflow import MlflowClient
from mlflow.entities import Experiment, LoggedModel, Metric
from mlflow.entities import Run as MlflowRun
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from tipcast.tracking.offline import OfflineStore

VALUES = (
    "log_batch",
    "log_inputs",
    "log_outputs",
    "set_tag",
    "delete_tag",
    "set_experiment_tag",
    "update_run",
    "set_terminated",
    "set_logged_model_tags",
    "finalize_logged_model",
)
"""Methods of MLflow's client that write values to a run, an experiment or a logged model."""
FILES = ("log_artifact", "log_model_artifacts")
"""Methods that upload a file or a folder, their second argument, to a run or a logged model."""


@dataclass(frozen=True)
class Call:
    """A call of MLflow's client."""

    method: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]


@final
class Journal:
    """The calls that a job has written by, and what it wrote to.

    Of a metric's points the last ones are kept. The folder has hard links to files. Versions in the
    registry are not kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Id -> entity, as a call has returned it first.
        self._experiments: dict[str, Experiment] = {}
        self._runs: dict[str, MlflowRun] = {}
        self._models: dict[str, LoggedModel] = {}
        self._values: list[Call] = []
        self._files: dict[tuple[str, ...], Call] = {}
        """Run or model, file and folder -> last upload of it."""
        self._numbers = itertools.count()

    @property
    def runs(self) -> dict[str, MlflowRun]:
        """Runs that the job has written to, and those below them, by id."""
        written = {call.arguments[0] for call in self._values}
        return {
            run_id: run
            for run_id, run in self._runs.items()
            if run.info.experiment_id in self._experiments
            and (run_id in written or run.data.tags.get(MLFLOW_PARENT_RUN_ID) in written)
        }

    def note(self, result: object) -> None:
        """Keep the experiments, runs and models that a call has returned."""
        if isinstance(result, list):
            for item in result:
                self.note(item)
        elif isinstance(result, Experiment):
            self._experiments.setdefault(result.experiment_id, result)
        elif isinstance(result, MlflowRun):
            self._runs.setdefault(result.info.run_id, result)
        elif isinstance(result, LoggedModel):
            self._models.setdefault(result.model_id, result)

    def add(self, call: Call) -> None:
        """Keep a call, if it has written values or files."""
        if call.method == "log_batch":
            points = _last_points(call.keywords.get("metrics", ()))
            call = Call(call.method, call.arguments, {**call.keywords, "metrics": points})

        if call.method in VALUES:
            self._values.append(call)
        elif call.method in FILES:
            self._keep_file(call)

    def _keep_file(self, call: Call) -> None:
        """Keep a link to a file, or to the files of a folder, in place of an earlier upload."""
        owner, source, *place = call.arguments
        key = (owner, Path(source).name, *map(str, place))
        if earlier := self._files.get(key):
            shutil.rmtree(Path(earlier.arguments[1]).parent, ignore_errors=True)

        kept = self._folder / str(next(self._numbers)) / Path(source).name
        kept.parent.mkdir()
        if Path(source).is_dir():
            shutil.copytree(source, kept, copy_function=_link)
        else:
            _link(source, kept)
        self._files[key] = Call(call.method, (owner, str(kept), *place), call.keywords)

    def write_to(self, file: Path, client: MlflowClient) -> None:
        """Write all that is kept to an offline store, by its file and by its client."""
        runs = self.runs
        experiments = {run.info.experiment_id for run in runs.values()}
        models = {
            model_id: model
            for model_id, model in self._models.items()
            if model.source_run_id in runs
        }

        store = OfflineStore(file)
        for experiment_id in experiments:
            store.add_experiment(self._experiments[experiment_id])
        for run in runs.values():
            store.add_run(run)
        for model in models.values():
            store.add_model(model)

        for call in [*self._values, *self._files.values()]:
            # A run of another job may have been closed, as its process had ended.
            if call.arguments[0] in {*experiments, *runs, *models}:
                getattr(client, call.method)(*call.arguments, **call.keywords)


def _last_points(metrics: Sequence[Metric]) -> list[Metric]:
    """Return the last point of each metric, of the run and of each model."""
    last = {(metric.key, metric.model_id): metric for metric in metrics}
    return list(last.values())


def _link(source: str | Path, target: str | Path) -> None:
    """Make a hard link to a file; a copy where the disk or its system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
