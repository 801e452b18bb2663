"""The portable model in MLflow: logged, compared with the estimator, and registered."""

import contextlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.entities import LoggedModelOutput, LoggedModelStatus, Metric
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.tracking.context.registry import resolve_tags
from mlflow.utils.logging_utils import MLFLOW_LOGGING_STREAM
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS, MLFLOW_SOURCE_NAME
from mlflow.utils.requirements_utils import warn_dependency_requirement_mismatches

from tipcast.config.disk import temporary_folder, writing
from tipcast.config.errors import TipcastError
from tipcast.config.gate import gate
from tipcast.datasets.base import Dataset
from tipcast.datasets.listing import FileInfo
from tipcast.tracking.batches import MAX_DATASET, MAX_DIGEST, shorten, storable_tags
from tipcast.tracking.lasting_client import calling
from tipcast.tracking.model_package import Package, digest
from tipcast.tracking.run import Run, without_commit
from tipcast.tracking.versions import (
    description_with_model,
    description_with_version,
    logged_id,
    version_uri,
    versions_of_run,
)

TOLERANCE = 1e-5
"""Largest difference that a portable model's scores may have from the estimator's."""
MAX_DESCRIPTION = 5000
"""Characters that MLflow's databases keep of a version's description."""
MANIFEST_TAG = "sha256.manifest"
"""Tag of a version: the manifest's digest, to be trusted as it is not kept beside the files."""
ABOUT = """Versions that tipcast has registered. Each says how well it scored its test rows.

    tipcast score model_uri=models:/{name}/VERSION input=FILES output=FOLDER
    tipcast promote model_uri=models:/{name}/VERSION
"""
"""Description of a registered model, in Markdown."""
TRIAL_TAG = "sweep.best"
"""Tag of a version, and of its run: the trial of a sweep whose parameters the model has."""


@dataclass(frozen=True)
class PortableModel:
    """A model that is logged in MLflow, registered or not."""

    uri: str
    """``models:/m-...``: the logged model itself, registered or not."""
    registered: str | None = None
    """``models:/name/version``."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """The manifest that is saved with the model."""
    manifest_sha256: str = ""
    """Digest of the manifest."""

    @property
    def model_id(self) -> str:
        """Id of the logged model, as ``m-...``."""
        return self.uri.removeprefix("models:/")


def list_packages() -> None:
    """Let MLflow list the installed packages ahead, which takes a second; it keeps the list."""
    warn_dependency_requirement_mismatches(["numpy"])


def log_model(
    run: Run,
    file: Path,
    format: str,
    model_info: Mapping[str, Any],
    dataset: Dataset,
    info: FileInfo,
    example: pd.DataFrame,
) -> PortableModel:
    """Log a model that scores raw rows without tipcast.

    ``file`` is the native file, in a ``format`` of ``models.native``. The manifest has
    ``model_info``: ``features`` (in order), ``task`` and anything that JSON can hold. The code that
    makes the features of ``dataset`` is saved with the model. ``info`` describes the training
    files, and ``example`` has a few raw rows as a user has them.
    """
    package = Package(file, format, model_info, dataset, info)
    manifest = package.manifest()
    signature = package.signature()
    rows = package.example(example)
    # Created last, so that an earlier failure leaves no empty model in the store.
    model_id = _create_logged_model(run, model_info)

    with temporary_folder() as folder, quiet():
        run.store.log_outputs(run.id, [LoggedModelOutput(model_id, step=0)])
        with writing(folder):
            path = folder / "manifest.json"
            path.write_text(json.dumps(manifest, indent=2, allow_nan=False), encoding="utf-8")
            package.save(folder / "model", run.id, model_id, path, signature, rows)

        run.store.log_model_artifacts(model_id, str(folder / "model"))
        run.store.finalize_logged_model(model_id, LoggedModelStatus.READY)
        return PortableModel(f"models:/{model_id}", manifest=manifest, manifest_sha256=digest(path))


def _create_logged_model(run: Run, model_info: Mapping[str, Any]) -> str:
    """Make an empty logged model with the run's parameters; return its id."""
    params = run.mlflow_run().data.params
    tags = {MLFLOW_SOURCE_NAME: "tipcast", **without_commit(resolve_tags())}
    model = run.store.create_logged_model(
        run.experiment_id, logged_name(model_info), run.id, tags=tags, params=params
    )
    return str(model.model_id)


def logged_name(model_info: Mapping[str, Any]) -> str:
    """Return the name of a logged model, such as ``xgboost-TASK``.

    It is ``xgboost-COLUMN`` if the target is a column of the files.
    """
    task: Mapping[str, Any] = model_info.get("task", {})
    columns = task.get("columns", ())
    label = task.get("name")
    if columns and not task.get("function"):
        label = columns[0]

    name = "-".join(filter(None, (model_info.get("model", "model"), label)))
    return re.sub(r"[^\w\-]+", "_", name)


def give_up_models(run: Run) -> None:
    """Mark what a killed process of the run has logged as its model as FAILED, unless it is
    registered.
    """
    versions = run.store.search_model_versions(f"run_id='{run.id}'")
    registered = {logged_id(version) for version in versions}
    logged = run.store.search_logged_models(
        [run.experiment_id], filter_string=f"source_run_id='{run.id}'"
    )
    for model in logged:
        if model.model_id not in registered:
            run.store.finalize_logged_model(model.model_id, LoggedModelStatus.FAILED)


def link_metrics(run: Run, logged: PortableModel, datasets: Mapping[str, tuple[str, str]]) -> None:
    """Add the metrics of a run to its logged model, each with the dataset that it was measured on.

    ``datasets`` has split -> name and digest of its rows, as ``Run.log_dataset`` has them. The
    metrics of a split are ``split/name``.
    """
    metrics = []
    for key in run.mlflow_run().data.metrics:
        split = key.partition("/")[0]
        if split not in datasets:
            continue

        # The run's own point is logged, not a second one.
        point = run.store.get_metric_history(run.id, key)[-1]
        name, sha256 = datasets[split]
        metric = Metric(
            key,
            point.value,
            point.timestamp,
            point.step,
            logged.model_id,
            shorten(name, MAX_DATASET),
            sha256[:MAX_DIGEST],
        )
        metrics.append(metric)

    run.store.log_batch(run.id, metrics=metrics)


def parity(
    run: Run, logged: PortableModel, raw: pd.DataFrame, expected: np.ndarray[Any, Any]
) -> float:
    """Score raw rows with the logged model; return the largest absolute difference to ``expected``.

    ``expected`` has the scores of the estimator, (rows, ...), or of all ways to score the model,
    (ways, rows, ...).
    """
    with temporary_folder() as folder, quiet():
        load = partial(mlflow.pyfunc.load_model, logged.uri, dst_path=str(folder))
        model = calling(run.store, load)
        scores = np.asarray(model.predict(raw))
    return float(np.max(np.abs(scores - expected), initial=0.0))


def register(
    run: Run,
    logged: PortableModel,
    name: str,
    difference: float,
    metrics: Mapping[str, float],
    description: str,
    *,
    trial: str = "",
) -> PortableModel:
    """Register a logged model under a name; return it with the version's URI.

    The registered model is made if it does not exist. The version is made with its tags and its
    description, which is Markdown, in one step. The logged model's URI in the description then
    becomes the version's. Raises M011, and registers nothing, if ``difference``, see ``parity``, is
    above 1e-5. ``trial`` is that of a sweep.
    """
    if not difference <= TOLERANCE:
        what = f"the logged model's scores differ by {difference:.2g}, more than {TOLERANCE:g}"
        fix = "report this with the run's artifacts; nothing was registered"
        raise TipcastError("M011", name, what, fix)

    tags = version_tags(logged, metrics, trial)
    with quiet():
        version = create_version(run, logged.model_id, name, tags, description)
        name_version(run, version)

    return replace(logged, registered=version_uri(version))


def version_tags(logged: PortableModel, metrics: Mapping[str, float], trial: str) -> dict[str, str]:
    """Return the tags of a version, by which versions are searched, told apart and trusted.

    The manifest, the run and the logged model have the rest: digests of files, periods, libraries
    and all metrics.
    """
    manifest = logged.manifest
    headline = dict(list(metrics.items())[:1])
    tags = {
        "model": manifest.get("model"),
        "data.digest": manifest["data_digest"],
        "git.commit": manifest.get("git_commit"),
        "git.dirty": _true_or_empty(manifest.get("git_dirty")),
        "tipcast.version": manifest.get("versions", {}).get("tipcast"),
        MANIFEST_TAG: logged.manifest_sha256,
        TRIAL_TAG: trial,
        **{metric: f"{value:.6g}" for metric, value in headline.items()},
    }
    return storable_tags({key: value for key, value in tags.items() if value})


def _true_or_empty(flag: object) -> str:
    if not flag:
        return ""
    return "true"


def version_of_run(run: Run, name: str = "", trial: str = "") -> ModelVersion | None:
    """Return the version of the run's model under a name, for a trial of a sweep; None if there is
    none.

    Without a ``name``, it is any version that tipcast has registered.
    """
    for version in versions_of_run(run.store, run.id):
        is_named = MANIFEST_TAG in version.tags
        if name:
            is_named = version.name == name
        if is_named and version.tags.get(TRIAL_TAG, "") == trial:
            return version
    return None


def kept_version(run: Run, name: str, trial: str = "") -> ModelVersion | None:
    """Return the version under a name of the model that the run has registered already; None if it
    has registered none.

    Registering is the last step of a job, so that the run is whole. A model that has a version
    under another name alone gets one under this name too.
    """
    version = version_of_run(run, name, trial)
    registered = version_of_run(run, trial=trial)
    if version is None and registered is not None:
        model_id = logged_id(registered)
        description = description_with_model(registered)
        version = create_version(run, model_id, name, registered.tags, description)
    if version is not None:
        name_version(run, version)
    return version


def name_version(run: Run, version: ModelVersion) -> None:
    """Name a version in its own description, and in the tags of its logged model.

    It is the last step of making a version, and changes nothing if it is repeated.
    """
    description = description_with_version(version)[:MAX_DESCRIPTION]
    if description != (version.description or ""):
        run.store.update_model_version(version.name, version.version, description)

    model_id = logged_id(version)
    tags = run.store.get_logged_model(model_id).tags
    versions = json.loads(tags.get(MLFLOW_MODEL_VERSIONS, "[]"))
    entry = {"name": version.name, "version": version.version}
    if entry not in versions:
        named = {MLFLOW_MODEL_VERSIONS: json.dumps([*versions, entry])}
        run.store.set_logged_model_tags(model_id, named)


def _create_registered_model(run: Run, name: str) -> None:
    """Make a registered model if none has the name."""
    if not run.store.search_registered_models(f'name="{name}"'):
        with contextlib.suppress(MlflowException):  # another process may have made it meanwhile
            run.store.create_registered_model(name, description=ABOUT.format(name=name))


def create_version(
    run: Run, model_id: str, name: str, tags: Mapping[str, str], description: str
) -> ModelVersion:
    """Make a version with its tags and description in one step.

    ``name_version`` completes it: until then, the description names the logged model. The
    registered model is made if none has the name.
    """
    _create_registered_model(run, name)
    # Not by mlflow.register_model: its version would have no description for a moment.
    version = run.store.create_model_version(
        name,
        f"models:/{model_id}",
        run.id,
        tags=tags,
        description=description[:MAX_DESCRIPTION],
        model_id=model_id,
    )
    gate("version")
    return version


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep MLflow's warnings off the console, as they are about what is done on purpose.

    What tipcast logs is shown, such as that the store does not answer.
    """
    enabled_before = MLFLOW_LOGGING_STREAM.enabled
    MLFLOW_LOGGING_STREAM.enabled = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        MLFLOW_LOGGING_STREAM.enabled = enabled_before
