"""The portable model in MLflow: logged, held against the estimator, and registered."""

import contextlib
import io
import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.entities import LoggedModelOutput, LoggedModelStatus, Metric
from mlflow.exceptions import MlflowException
from mlflow.tracking.context.registry import resolve_tags
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS, MLFLOW_SOURCE_NAME
from mlflow.utils.requirements_utils import warn_dependency_requirement_mismatches

from tipcast.config.disk import temporary_folder, writing
from tipcast.config.errors import TipcastError
from tipcast.config.gate import gate
from tipcast.datasets.base import Dataset
from tipcast.datasets.scan import FileInfo
from tipcast.tracking.package import Package, digest
from tipcast.tracking.run import Run, without_commit
from tipcast.tracking.writing import MAX_DATASET, MAX_DIGEST, shorten, storable_tags

LOG = logging.getLogger("tipcast")

TOLERANCE = 1e-5
"""Largest difference that a portable model's scores may have from the estimator's."""
MAX_DESCRIPTION = 5000
"""Characters that MLflow's databases keep of a version's description."""
MANIFEST_TAG = "sha256.manifest"
"""The digest to trust: it is kept apart from the files."""
TRIAL_TAG = "sweep.best"
"""The sweep's trial that a version is of; its run has the same tag."""


@dataclass(frozen=True)
class Logged:
    """A model in MLflow."""

    uri: str
    """``models:/m-...``: the logged model itself, registered or not."""
    registered: str | None = None
    """``models:/name/version``."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    manifest_sha256: str = ""

    @property
    def model_id(self) -> str:
        """URI of the logged model."""
        return self.uri.removeprefix("models:/")


def list_packages() -> None:
    """Let MLflow list the installed packages, which takes a second; it keeps the list for the
    process.
    """
    warn_dependency_requirement_mismatches(["numpy"])


def log_model(
    run: Run,
    file: Path,
    format: str,
    model_info: Mapping[str, Any],
    dataset: Dataset,
    info: FileInfo,
    example: pd.DataFrame,
) -> Logged:
    """Log a model, its native file in a format of ``models.native``, that scores raw rows without
    tipcast.

    The manifest has ``model_info`` beside the files: ``features`` (in order), ``task`` and all that
    JSON can hold. The file that makes the dataset's features travels with the model. ``info`` is
    of the listing of the training rows, ``example`` a few raw rows as a user has them.
    """
    package = Package(file, format, model_info, dataset, info)
    manifest = package.manifest()
    signature = package.signature()
    rows = package.example(example)
    # Created last: what fails before leaves no empty model in the store.
    model_id = _create_logged_model(run, model_info)

    with temporary_folder() as folder, quiet():
        run.store.log_outputs(run.id, [LoggedModelOutput(model_id, step=0)])
        with writing(folder):
            path = folder / "manifest.json"
            path.write_text(json.dumps(manifest, indent=2, allow_nan=False), encoding="utf-8")
            package.save(folder / "model", run.id, model_id, path, signature, rows)

        run.store.log_model_artifacts(model_id, str(folder / "model"))
        run.store.finalize_logged_model(model_id, LoggedModelStatus.READY)
        return Logged(f"models:/{model_id}", manifest=manifest, manifest_sha256=digest(path))


def _create_logged_model(run: Run, model_info: Mapping[str, Any]) -> str:
    """Make an empty logged model with the run's parameters; return its id."""
    params = run.stored().data.params
    tags = {MLFLOW_SOURCE_NAME: "tipcast", **without_commit(resolve_tags())}
    model = run.store.create_logged_model(
        run.experiment_id, logged_name(model_info), run.id, tags, params
    )
    return str(model.model_id)


def logged_name(model_info: Mapping[str, Any]) -> str:
    """Return what a logged model is called, as ``xgboost-TASK``, or ``xgboost-COLUMN`` where a
    column is the target.
    """
    task: Mapping[str, Any] = model_info.get("task", {})
    columns = task.get("columns", ())
    label = columns[0] if columns and not task.get("function") else task.get("name")
    return re.sub(
        r"[^\w\-]+", "_", "-".join(filter(None, (model_info.get("model", "model"), label)))
    )


def link_metrics(run: Run, logged: Logged, datasets: Mapping[str, tuple[str, str]]) -> None:
    """Let a logged model carry the metrics that its run has of each split by now, tied to the
    dataset they are of.

    ``datasets`` has split -> name and digest of its rows, as ``Run.log_dataset`` has them: metrics
    are ``split/name``.
    """
    metrics = []
    for key in run.stored().data.metrics:
        if (split := key.partition("/")[0]) in datasets:
            name, digest = datasets[split]
            # The run's own point is logged, not a second one.
            last = run.store.get_metric_history(run.id, key)[-1]
            dataset = (shorten(name, MAX_DATASET), digest[:MAX_DIGEST])
            point = (key, last.value, last.timestamp, last.step)
            metrics.append(Metric(*point, logged.model_id, *dataset))

    run.store.log_batch(run.id, metrics=metrics)


def parity(logged: Logged, raw: pd.DataFrame, expected: np.ndarray[Any, Any]) -> float:
    """Score raw rows with the model as logged; return the largest absolute difference from what is
    expected.

    That are scores by the estimator, (rows, ...), or by every way to score the model, (ways, rows,
    ...).
    """
    with temporary_folder() as folder, quiet():
        scored = np.asarray(mlflow.pyfunc.load_model(logged.uri, dst_path=str(folder)).predict(raw))
    return float(np.max(np.abs(scored - expected), initial=0.0))


def register(
    run: Run,
    logged: Logged,
    name: str,
    difference: float,
    metrics: Mapping[str, float],
    description: str,
    *,
    trial: str = "",
) -> Logged:
    """Register a logged model under a name, which is made where it does not exist; return it with
    the version's URI.

    The version is made with its tags and its description, which is Markdown, in one step. Nothing
    is registered (M011) whose ``difference``, see ``parity``, is above 1e-5.

    A version that this run has registered of the same ``trial`` of a sweep is used rather than
    another made: its sweep was killed after that, and was resumed.
    """
    if not difference <= TOLERANCE:
        what = f"the logged model's scores differ by {difference:.2g}, more than {TOLERANCE:g}"
        raise TipcastError(
            "M011", name, what, "report this with the run's artifacts; nothing was registered"
        )

    tags = version_tags(logged, difference, metrics, trial)
    with quiet():
        number = _version_of_trial(run, name, trial) if trial else None
        if number is None:
            _create_registered_model(run, name)
            number = _create_version(run, logged, name, tags, description)

    return replace(logged, registered=f"models:/{name}/{number}")


def version_tags(
    logged: Logged, difference: float, metrics: Mapping[str, float], trial: str
) -> dict[str, str]:
    """Return what a version's tags say: its digests, data, code, libraries and metrics."""
    manifest = logged.manifest
    versions = manifest.get("versions", {})
    facts = {
        "format": manifest["format"],
        "sha256": manifest["sha256"]["model"],
        MANIFEST_TAG: logged.manifest_sha256,
        "model": manifest.get("model"),
        "data.digest": manifest["data_digest"],
        "data.train_period": manifest.get("train_period"),
        "data.test_period": manifest.get("test_period"),
        "git.commit": manifest.get("git_commit"),
        "git.dirty": "true" if manifest.get("git_dirty") else None,
        "tipcast.version": versions.get("tipcast"),
        "tipcast.commit": manifest.get("tipcast_commit"),
        "tipcast.dirty": "true" if manifest.get("tipcast_dirty") else None,
        "versions": ", ".join(f"{library} {version}" for library, version in versions.items()),
        "parity": f"{difference:.2g}",
        TRIAL_TAG: trial,
        **{metric: f"{value:.6g}" for metric, value in metrics.items()},
    }
    return storable_tags({key: value for key, value in facts.items() if value})


def _version_of_trial(run: Run, name: str, trial: str) -> str | None:
    """Return the version that the run has registered of a trial already; None where there is
    none.
    """
    for version in run.store.search_model_versions(f"run_id='{run.id}'"):
        of_trial = version.name == name and version.tags.get(TRIAL_TAG) == trial
        if of_trial and version.status == "READY":
            LOG.info(
                "version %s of %s is of the same trial: no other is registered",
                version.version,
                name,
            )
            return str(version.version)
    return None


def _create_registered_model(run: Run, name: str) -> None:
    """Make a registered model where there is none of the name."""
    if not run.store.search_registered_models(f'name="{name}"'):
        with contextlib.suppress(MlflowException):  # another process may have made it meanwhile
            run.store.create_registered_model(name)


def _create_version(
    run: Run, logged: Logged, name: str, tags: Mapping[str, str], description: str
) -> str:
    """Make a version with its tags and description in one step; return its number."""
    # Not by mlflow.register_model: it gives no description, and a version would be seen without.
    store = run.store
    made = store.create_model_version(
        name,
        logged.uri,
        run.id,
        tags=tags,
        description=description[:MAX_DESCRIPTION],
        model_id=logged.model_id,
    )
    gate("version")
    noted = store.get_logged_model(logged.model_id).tags.get(MLFLOW_MODEL_VERSIONS, "[]")
    versions = [*json.loads(noted), {"name": name, "version": made.version}]
    store.set_logged_model_tags(logged.model_id, {MLFLOW_MODEL_VERSIONS: json.dumps(versions)})
    return str(made.version)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep MLflow's remarks on what is done on purpose off the console: its logger writes where
    stderr is now.
    """
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
