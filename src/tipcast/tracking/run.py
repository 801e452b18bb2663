"""An open run of MLflow: writing to it, the tags that every run has, and the addresses of its
pages.
"""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.data.code_dataset_source import CodeDatasetSource
from mlflow.data.dataset_source import DatasetSource
from mlflow.data.dataset_source_registry import resolve_dataset_source
from mlflow.data.meta_dataset import MetaDataset
from mlflow.entities import Dataset, DatasetInput, InputTag
from mlflow.entities import Run as MlflowRun
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST, ErrorCode
from mlflow.tracking.context.registry import resolve_tags
from mlflow.utils.file_utils import local_file_uri_to_path
from mlflow.utils.mlflow_tags import (
    MLFLOW_DATASET_CONTEXT,
    MLFLOW_LOGGED_ARTIFACTS,
    MLFLOW_RUN_NOTE,
    MLFLOW_SOURCE_NAME,
)

from tipcast.config.disk import temporary_folder, writing
from tipcast.config.environment import concealed
from tipcast.config.errors import TipcastError
from tipcast.config.plain import redact_address
from tipcast.tracking import run_lease
from tipcast.tracking.batches import (
    MAX_DATASET,
    MAX_DIGEST,
    Curves,
    Facts,
    shorten,
    storable_name,
    without_secrets,
    write,
)

VERSIONS = "versions.yaml"
"""Artifact: the versions of the libraries."""
FILES = "data/files.yaml"
"""Artifact: the files that were read."""
BEST = "sweep.best.params"
"""Tag of a sweep: its best parameters, as JSON."""
ROC_CURVE = "roc/true_positive_rate"
"""Metric of test rows, or of a trial's validation rows; its step is the false-positive rate in
percent.
"""
GIT = "mlflow.source.git."
"""Beginning of MLflow's tags about a repository."""
ORIGIN = (GIT, "tipcast.version", "tipcast.commit", "tipcast.dirty")
"""Beginnings of the tags that say which code a run's result comes from."""


@dataclass(frozen=True)
class Run:
    """An open run; every method writes at once."""

    id: str
    experiment_id: str
    store: MlflowClient

    @property
    def store_uri(self) -> str:
        """Address of the store that has the run."""
        return str(self.store.tracking_uri)

    def mlflow_run(self) -> MlflowRun:
        """Return the run as the store has it now: its tags, parameters and metrics."""
        return self.store.get_run(self.id)

    def log_params(self, params: Facts) -> None:
        """Log parameters, without those that `mlflow run` has logged: MLflow takes no second
        value.
        """
        logged = self.mlflow_run().data.params
        new = {name: value for name, value in params.items() if storable_name(name) not in logged}
        write(self.store, self.id, params=new)

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Log metrics in their order, in one batch.

        Raises M010 for a value that is not finite: MLflow would rank it first.
        """
        self.log_curves({name: {0: value} for name, value in metrics.items()})

    def log_curves(self, curves: Curves) -> None:
        """Log metric -> step -> value in one batch; M010 for a value that is not finite."""
        for name, values in curves.items():
            for value in values.values():
                if not math.isfinite(value):
                    fix = "look at the data and the learning rate"
                    raise TipcastError("M010", name, f"non-finite metric {value}", fix)

        write(self.store, self.id, curves=curves)

    def missing(self, curves: Curves) -> dict[str, dict[int, float]]:
        """Return the points of curves that the run does not have yet, or with another value.

        MLflow keeps every point that is logged, and shows the last one of a step.
        """
        logged = self.mlflow_run().data.metrics
        missing = {}
        for name, values in curves.items():
            key = storable_name(name)
            points: dict[int, float] = {}
            if key in logged:
                history = self.store.get_metric_history(self.id, key)
                points = {point.step: point.value for point in history}
            missing[name] = {
                step: value for step, value in values.items() if points.get(step) != value
            }
        return missing

    def set_tags(self, tags: Facts) -> None:
        """Set tags."""
        write(self.store, self.id, tags=tags)

    def note(self, markdown: str) -> None:
        """Set the description that the run's page shows."""
        self.set_tags({MLFLOW_RUN_NOTE: markdown})

    def note_text(self) -> str:
        """Return the description that the run's page shows; empty if there is none."""
        text: str = self.mlflow_run().data.tags.get(MLFLOW_RUN_NOTE, "")
        return text

    def log_dataset(self, uri: str, digest: str, name: str, context: str, profile: Facts) -> None:
        """Log a dataset input of a ``context``: ``train``, ``validation`` or ``test``.

        ``uri`` is that of the first file, or stands for a source that is made. ``digest`` is over
        all files. ``profile`` describes the rows.
        """
        source = _dataset_source(redact_address(concealed(uri)))
        dataset = MetaDataset(source, shorten(name, MAX_DATASET), digest[:MAX_DIGEST]).to_dict()
        entity = Dataset(**dataset, profile=json.dumps(dict(profile), allow_nan=False))
        inputs = [DatasetInput(entity, [InputTag(MLFLOW_DATASET_CONTEXT, context)])]

        try:
            self.store.log_inputs(self.id, inputs)
        except MlflowException as problem:
            if problem.error_code != ErrorCode.Name(BAD_REQUEST):
                raise
            # MLflow looks for the dataset before it adds it. Another run has added it in between:
            # now MLflow finds it.
            self.store.log_inputs(self.id, inputs)

    def log_bytes(self, content: bytes, path: str) -> None:
        """Log an artifact such as a picture."""
        artifact_folder = None
        if "/" in path:
            artifact_folder = str(Path(path).parent)

        # Not by log_stream: its errors do not name the disk that is full.
        with temporary_folder() as folder:
            file = folder / Path(path).name
            with writing(folder):
                file.write_bytes(content)
            try:
                self.store.log_artifact(self.id, str(file), artifact_folder)
            # Python names a file that it cannot open, but not one that outgrows its disk.
            except OSError as problem:
                root = self.mlflow_run().info.artifact_uri
                problem.filename = problem.filename or f"{local_file_uri_to_path(root)}/{path}"
                raise

    def log_text(self, text: str, path: str) -> None:
        """Log text as an artifact."""
        self.log_bytes(without_secrets(text).encode("utf-8"), path)

    def log_table(self, columns: Mapping[str, Sequence[object]], path: str) -> None:
        """Log an artifact that MLflow's page shows as a table; it replaces an earlier one.

        Numbers that are not finite become null.
        """
        table = {"columns": list(columns), "data": [*zip(*columns.values(), strict=True)]}
        # A browser reads neither Infinity nor NaN.
        table = json.loads(json.dumps(table), parse_constant=lambda _: None)
        self.log_text(json.dumps(table, allow_nan=False), path)

        # Not by MLflow's log_table: it would append to the table of a sweep that is resumed.
        tables = json.loads(self.mlflow_run().data.tags.get(MLFLOW_LOGGED_ARTIFACTS, "[]"))
        if (entry := {"path": path, "type": "table"}) not in tables:
            self.set_tags({MLFLOW_LOGGED_ARTIFACTS: json.dumps([*tables, entry])})

    def page(self, run_id: str) -> str:
        """Return the address of a run of this experiment, relative to the store's server."""
        return f"#/experiments/{self.experiment_id}/runs/{run_id}?workflowType=machine_learning"

    def address(self, page: str) -> str:
        """Return the address of a page of the store's server.

        For other stores it is that of the server which `mlflow ui` starts.
        """
        server = "http://127.0.0.1:5000"
        if self.store_uri.startswith("http"):
            server = self.store_uri
        return f"{redact_address(server).rstrip('/')}/{page}"

    @property
    def link(self) -> str:
        """Address of the run's page, with the command that starts MLflow's pages if need be."""
        address = self.address(self.page(self.id))
        if self.store_uri.startswith("http"):
            return address
        return f"{address} after `mlflow ui --backend-store-uri {redact_address(self.store_uri)}`"


def _dataset_source(uri: str) -> DatasetSource:
    """Return the files at an address as MLflow's source; its code for a source that is made."""
    source = None
    if "://" not in uri or uri.startswith(("s3://", "https://", "http://", "file://")):
        with warnings.catch_warnings():
            # MLflow warns that a path may be two kinds of source; the first is right.
            warnings.simplefilter("ignore")
            source = resolve_dataset_source(uri)

    return source or CodeDatasetSource(tags={"made_by": uri})


def error_tags(problem: Exception) -> dict[str, object]:
    """Return the tags of a run that failed."""
    code = type(problem).__name__
    if isinstance(problem, TipcastError):  # errors of SQLAlchemy have codes too
        code = problem.code
    return {"error.code": code, "error.message": problem}


def context_tags() -> dict[str, str]:
    """Return the tags that MLflow gives a new run, and those of this process.

    MLflow's commit is left out: it is of the repository that the command's file lies in, which need
    not be the user's.
    """
    return without_commit(resolve_tags({MLFLOW_SOURCE_NAME: "tipcast", **run_lease.tags()}))


def without_commit(tags: Mapping[str, str]) -> dict[str, str]:
    """Return MLflow's own tags without those of a commit."""
    return {name: value for name, value in tags.items() if not name.startswith(GIT)}


def steps_in_percent(values: Sequence[float]) -> dict[int, float]:
    """Return step -> value, of values at even distances from 0 to 1.

    The steps are these places in percent, as MLflow's are whole numbers: ``[0, .7, 1]`` becomes
    ``{0: 0, 50: .7, 100: 1}``.
    """
    return {round(100 * at / (len(values) - 1)): value for at, value in enumerate(values)}
