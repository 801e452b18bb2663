"""A run of MLflow that is open: what is written to it, the tags that each has, and where its pages
are.
"""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.data.code_dataset_source import CodeDatasetSource
from mlflow.data.dataset_source_registry import resolve_dataset_source
from mlflow.data.meta_dataset import MetaDataset
from mlflow.entities import Dataset, DatasetInput, InputTag
from mlflow.entities import Run as StoredRun
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
from tipcast.tracking import process
from tipcast.tracking.writing import (
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
FILES = "data/files.yaml"
"""Artifacts of a run."""
BEST = "sweep.best.params"
"""Tag of a sweep's best parameters, as JSON."""
GIT = "mlflow.source.git."
"""How MLflow's tags of a repository begin."""
ORIGIN = (GIT, "tipcast.version", "tipcast.commit", "tipcast.dirty")
"""How tags begin that say which code a run's result comes from."""


@dataclass(frozen=True)
class Run:
    """An open run; every method writes at once."""

    id: str
    experiment_id: str
    store_uri: str
    store: MlflowClient
    """MLflow's client of that address."""

    def stored(self) -> StoredRun:
        """Return the run as the store has it now: its tags, parameters and metrics."""
        return self.store.get_run(self.id)

    def log_params(self, params: Facts) -> None:
        """Log parameters; those that the launcher has logged already are left: MLflow takes no
        second value.
        """
        logged = self.stored().data.params
        new = {name: value for name, value in params.items() if storable_name(name) not in logged}
        write(self.store, self.id, params=new)

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Log metrics in their order, in one batch; M010 for a value that is not finite: MLflow
        would rank it first.
        """
        self.log_curves({name: {0: value} for name, value in metrics.items()})

    def log_curves(self, curves: Curves) -> None:
        """Log metric -> step -> value in one batch; M010 for a value that is not finite."""
        for name, value in (
            (name, value) for name, values in curves.items() for value in values.values()
        ):
            if not math.isfinite(value):
                raise TipcastError(
                    "M010",
                    name,
                    f"non-finite metric {value}",
                    "look at the data and the learning rate",
                )
        write(self.store, self.id, curves=curves)

    def set_tags(self, tags: Facts) -> None:
        """Set tags."""
        write(self.store, self.id, tags=tags)

    def note(self, markdown: str) -> None:
        """Set the description that the run's page shows."""
        self.set_tags({MLFLOW_RUN_NOTE: markdown})

    def log_dataset(self, uri: str, digest: str, name: str, context: str, profile: Facts) -> None:
        """Log a dataset input of a ``context``: ``train``, ``validation`` or ``test``.

        ``uri`` is of its first file, or what stands for a source that is made; the digest is over
        all of its files; the profile tells rows and other facts, kept with the dataset.
        """
        uri = redact_address(concealed(uri))
        source = None
        if "://" not in uri or uri.startswith(("s3://", "https://", "http://", "file://")):
            with warnings.catch_warnings():
                # MLflow warns that a path may be two kinds of source; the first is right.
                warnings.simplefilter("ignore")
                source = resolve_dataset_source(uri)

        made = source or CodeDatasetSource(tags={"made_by": uri})
        dataset = MetaDataset(made, shorten(name, MAX_DATASET), digest[:MAX_DIGEST]).to_dict()
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
        # Not by log_stream: it does not tell which disk is full.
        with temporary_folder() as folder:
            file = folder / Path(path).name
            with writing(folder):
                file.write_bytes(content)
            try:
                self.store.log_artifact(
                    self.id, str(file), str(Path(path).parent) if "/" in path else None
                )
            # Python names the file that it opens, and not one that outgrows its disk
            except OSError as problem:
                root = self.stored().info.artifact_uri
                problem.filename = problem.filename or f"{local_file_uri_to_path(root)}/{path}"
                raise

    def log_text(self, text: str, path: str) -> None:
        """Log text as an artifact."""
        self.log_bytes(without_secrets(text).encode("utf-8"), path)

    def log_table(self, columns: Mapping[str, Sequence[object]], path: str) -> None:
        """Log a table that MLflow's page shows as one, with null for what is not finite; an earlier
        one is replaced.
        """
        table = {"columns": list(columns), "data": [*zip(*columns.values(), strict=True)]}
        # A browser reads neither Infinity nor NaN.
        table = json.loads(json.dumps(table), parse_constant=lambda _: None)
        self.log_text(json.dumps(table, allow_nan=False), path)
        # Not by MLflow's log_table: it adds rows to an earlier table, as of a sweep that goes on.
        tables = json.loads(self.stored().data.tags.get(MLFLOW_LOGGED_ARTIFACTS, "[]"))
        if (entry := {"path": path, "type": "table"}) not in tables:
            self.set_tags({MLFLOW_LOGGED_ARTIFACTS: json.dumps([*tables, entry])})

    def page(self, run_id: str) -> str:
        """Return the address of a run of this experiment, relative to the store's server."""
        return f"#/experiments/{self.experiment_id}/runs/{run_id}?workflowType=machine_learning"

    def address(self, page: str) -> str:
        """Return the address of a page of the store's server, or of the one that `mlflow ui`
        starts.
        """
        server = self.store_uri if self.store_uri.startswith("http") else "http://127.0.0.1:5000"
        return f"{redact_address(server).rstrip('/')}/{page}"

    @property
    def link(self) -> str:
        """Where a browser shows the run, or how to start MLflow's pages for it."""
        start = f" after `mlflow ui --backend-store-uri {redact_address(self.store_uri)}`"
        return self.address(self.page(self.id)) + (
            "" if self.store_uri.startswith("http") else start
        )


def error_tags(problem: Exception) -> dict[str, object]:
    """Return the tags of a run that failed."""
    # SQLAlchemy's have codes too
    code = problem.code if isinstance(problem, TipcastError) else type(problem).__name__
    return {"error.code": code, "error.message": problem}


def context_tags() -> dict[str, str]:
    """Return the tags that MLflow gives a new run, and those of this process.

    MLflow's commit is left out: it is of the repository that the command's file lies in, which need
    not be the user's.
    """
    return without_commit(resolve_tags({MLFLOW_SOURCE_NAME: "tipcast", **process.tags()}))


def without_commit(tags: Mapping[str, str]) -> dict[str, str]:
    """Return MLflow's own tags without those of a commit."""
    return {name: value for name, value in tags.items() if not name.startswith(GIT)}
