"""The portable model: a native file, its manifest and the code to score raw rows, logged as one MLflow pyfunc."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import io
import json
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.entities import LoggedModelStatus
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.types import ColSpec, DataType, Schema
from mlflow.types.schema import AnyType
from mlflow.utils import requirements_utils

from tipcast.config.disk import FULL, temporary_folder
from tipcast.config.errors import TipcastError
from tipcast.datasets.base import Dataset, RawColumn
from tipcast.models import native
from tipcast.models.base import scoring_code
from tipcast.tracking.run import Run
from tipcast.tracking.store import release

MANIFEST_VERSION = 1
TOLERANCE = 1e-5
"""Largest difference that a portable model's scores may have from the estimator's."""
ERRNO = re.compile(r"\[Errno (\d+)\]")
CODE, SERVING = (Path(__file__).parent / "model_code" / name for name in ("model.py", "serving.py"))


@dataclass(frozen=True)
class Logged:
    """A model in MLflow."""

    uri: str
    """``models:/m-...``: the logged model itself, registered or not."""
    registered: str | None = None
    """``models:/name/version``."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """What the model says of itself."""
    manifest_sha256: str = ""

    @property
    def model_id(self) -> str:
        """Of the logged model."""
        return self.uri.removeprefix("models:/")


def log_model(
    run: Run,
    file: Path,
    format: str,
    facts: Mapping[str, Any],
    dataset: Dataset,
    listed: Mapping[str, Any],
    example: pd.DataFrame,
) -> Logged:
    """Log a model that scores raw rows without tipcast.

    Parameters
    ----------
    run
        The open run.
    file
        The native file.
    format
        What ``models.native.load`` calls its format.
    facts
        What the manifest says beside the files: ``features`` (in order), ``task`` and anything else that JSON can hold.
    dataset
        What the raw columns mean: the file that makes its features travels with the model.
    listed
        Facts of the listing of the training rows.
    example
        A few raw rows, as a user has them.

    Returns
    -------
    Logged

    """
    names: Sequence[str] = facts["features"]
    columns = dataset.raw_columns(names, listed)
    signature = _signature(columns, facts.get("task", {}))
    example = example.reindex(columns=[column.name for column in signature.inputs]).reset_index(drop=True)
    sources = {"model": file, "features": dataset.feature_file(), "native": scoring_code(format)}
    sources["serving"] = SERVING
    digests = {name: digest(path) for name, path in sources.items()}
    manifest = {
        "version": MANIFEST_VERSION,
        "format": format,
        "file": file.name,
        "sha256": digests,
        "dataset": dataset.name,
        "columns": [asdict(column) for column in columns],
        "known_columns": list(dataset.known_columns),
        **dataset.facts(),
        **listed,
        **facts,
    }
    with (
        temporary_folder() as folder,
        quiet(run.experiment_id),
        _incomplete_models_removed(run.client, run.id),
    ):
        path = folder / "manifest.json"
        path.write_text(json.dumps(manifest, indent=2, allow_nan=False), encoding="utf-8")
        info = Model.log(
            artifact_path=None,
            name="model",
            flavor=mlflow.pyfunc,
            run_id=run.id,
            python_model=str(CODE),
            artifacts={name: str(source) for name, source in {**sources, "manifest": path}.items()},
            signature=signature,
            input_example=example,
            pip_requirements=requirements(format),
            metadata={
                "tipcast": {
                    "format": format,
                    "sha256": digests["model"],
                    "manifest_sha256": digest(path),
                    "features": list(names),
                }
            },
        )
        return Logged(info.model_uri, manifest=manifest, manifest_sha256=digest(path))


def parity(logged: Logged, raw: pd.DataFrame, expected: np.ndarray[Any, Any]) -> float:
    """Score held-out rows with the model as logged, and compare.

    Parameters
    ----------
    logged
        The model.
    raw
        Rows as a user has them.
    expected
        Scores by the estimator, (rows, ...), or by every way to score the model, (ways, rows, ...).

    Returns
    -------
    float
        Largest absolute difference.

    """
    with quiet():
        scored = np.asarray(mlflow.pyfunc.load_model(logged.uri).predict(raw))
    return float(np.max(np.abs(scored - expected), initial=0.0))


def requirements(format: str) -> list[str]:
    """Return the pinned packages that a model of a format needs where it is loaded."""
    builds = (("mlflow",), ("numpy",), ("pandas",), *native.NEEDS[format])
    return [f"{name}=={importlib.metadata.version(name)}" for name in map(_installed, builds)]


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _installed(builds: Sequence[str]) -> str:
    for name in builds:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return name
    raise TipcastError("M012", builds[0], "is not installed", f"install {builds[0]}")


def _signature(columns: Sequence[RawColumn], task: Mapping[str, Any]) -> ModelSignature:
    """Raw columns by their usual names, of any type: types change between files, and times may be ISO text."""
    inputs = [ColSpec(type=AnyType(), name=column.spellings[0], required=column.required) for column in columns]
    named = {"multiclass": task.get("classes", ()), "clustering": ("label", "distance")}.get(str(task.get("kind")))
    outputs = [ColSpec(DataType.double, name) for name in named] if named else [ColSpec(DataType.double)]
    return ModelSignature(inputs=Schema(inputs), outputs=Schema(outputs))


@contextlib.contextmanager
def quiet(experiment_id: str | None = None) -> Iterator[None]:
    """Keep MLflow's remarks on what is done on purpose off the console; models made inside belong to the experiment."""
    logger = logging.getLogger("mlflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    before = os.environ.get("MLFLOW_EXPERIMENT_ID")
    if experiment_id is not None:
        os.environ["MLFLOW_EXPERIMENT_ID"] = experiment_id
    # Pinned packages are those that are here. To make sure of it, MLflow reads the metadata of all that is installed.
    known, requirements_utils._MODULES_TO_PACKAGES = requirements_utils._MODULES_TO_PACKAGES, {}
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        requirements_utils._MODULES_TO_PACKAGES = known
        logger.setLevel(level)
        if before is not None:
            os.environ["MLFLOW_EXPERIMENT_ID"] = before
        elif experiment_id is not None:
            del os.environ["MLFLOW_EXPERIMENT_ID"]


@contextlib.contextmanager
def _incomplete_models_removed(client: Any, run_id: str) -> Iterator[None]:
    """Remove the models of a run whose logging does not end well.

    MLflow copies a model file by file, first into a temporary folder, and tells of an error there in its own words.
    """
    try:
        yield
    except BaseException as problem:
        release(problem)
        with contextlib.suppress(Exception):  # the first problem is the one to tell
            _remove(client, run_id)
        if isinstance(problem, MlflowException):
            found = [int(number) for number in ERRNO.findall(str(problem)) if int(number) in FULL]
            if found:
                raise OSError(found[0], os.strerror(found[0]), tempfile.gettempdir()) from problem
        raise


def _remove(client: Any, run_id: str) -> None:
    outputs = client.get_run(run_id).outputs
    for model in (client.get_logged_model(each.model_id) for each in (outputs.model_outputs if outputs else [])):
        if model.status != LoggedModelStatus.READY:
            get_artifact_repository(model.artifact_location).delete_artifacts()
            client.delete_logged_model(model.model_id)
