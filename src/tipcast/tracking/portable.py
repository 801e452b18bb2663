"""The portable model: a native file, its manifest and the code to score raw rows, logged and
registered as one.
"""

import contextlib
import hashlib
import importlib.metadata
import io
import json
import logging
import re
import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.entities import LoggedModelOutput, LoggedModelStatus, Metric
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.tracking.context.registry import resolve_tags
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import AnyType
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS, MLFLOW_SOURCE_NAME
from mlflow.utils.requirements_utils import warn_dependency_requirement_mismatches

from tipcast.config.disk import temporary_folder, writing
from tipcast.config.errors import TipcastError
from tipcast.config.gate import gate
from tipcast.datasets.base import Dataset, RawColumn, Scorable, raw_columns
from tipcast.datasets.csv_cells import MISSING
from tipcast.datasets.scan import FileInfo
from tipcast.models import native
from tipcast.tasks import kinds
from tipcast.tasks.kinds import BINARY, Kind
from tipcast.tracking.run import MAX_DATASET, MAX_DIGEST, Run, cut, taken, without_commit

LOG = logging.getLogger("tipcast")

MANIFEST_VERSION = 2
TOLERANCE = 1e-5
"""Largest difference that a portable model's scores may have from the estimator's."""
MAX_DESCRIPTION = 5000
"""Characters that MLflow's databases keep of a version's description."""
MANIFEST_TAG = "sha256.manifest"
"""The digest to trust: it is kept apart from the files."""
TRIAL_TAG = "sweep.best"
"""The sweep's trial that a version is of; its run has the same tag."""
CODE = Path(__file__).parent / "model_code" / "model.py"


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
        """Of the logged model."""
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
    facts: Mapping[str, Any],
    dataset: Dataset,
    info: FileInfo,
    example: pd.DataFrame,
) -> Logged:
    """Log a model, its native file in a format of ``models.native``, that scores raw rows without
    tipcast.

    The manifest has ``facts`` beside the files: ``features`` (in order), ``task`` and all that JSON
    can hold. The file that makes the dataset's features travels with the model. ``info`` is
    of the listing of the training rows, ``example`` a few raw rows as a user has them.
    """
    task: Mapping[str, Any] = facts.get("task", {})
    kind = kinds.named(task.get("kind", BINARY.name))
    classes = tuple(task.get("classes", ()))
    columns = raw_columns(dataset, facts["features"], info)
    explained = ["contributions"] if format == "xgboost-ubj" and kind.has_target else []
    outputs = [*kind.outputs, *explained, "features"]
    signature = _signature(columns, kind, classes, outputs, facts.get("threshold"))
    example = example.reindex(columns=[column.spellings[0] for column in columns]).reset_index(
        drop=True
    )
    sources = {
        "model": file,
        "features": Path(str(dataset.code.__file__)),
        "native": Path(native.__file__),
    }
    digests = {name: digest(path) for name, path in sources.items()}
    manifest = {
        "version": MANIFEST_VERSION,
        "format": format,
        "file": file.name,
        "sha256": digests,
        "dataset": dataset.name,
        "columns": [column.to_manifest() for column in columns],
        "outputs": outputs,
        "labels": _labels(task),
        "prediction": {
            "columns": kind.prediction_columns(classes),
            "column_per_class": kind.column_per_class,
            "label": kind.label,
        },
        "missing": MISSING,
        **(dataset.to_manifest() if isinstance(dataset, Scorable) else {}),
        **info.to_manifest(),
        **facts,
    }
    params = run.client.get_run(run.id).data.params
    tags = {MLFLOW_SOURCE_NAME: "tipcast", **without_commit(resolve_tags())}
    made = run.client.create_logged_model(
        run.experiment_id, logged_name(facts), run.id, tags, params
    )

    with temporary_folder() as folder, quiet():
        run.client.log_outputs(run.id, [LoggedModelOutput(made.model_id, step=0)])
        with writing(folder):
            path = folder / "manifest.json"
            path.write_text(json.dumps(manifest, indent=2, allow_nan=False), encoding="utf-8")
            described = Model(  # not by Model.log: its MLmodel would name folders of this machine
                artifact_path=f"models:/{made.model_id}",
                run_id=run.id,
                model_id=made.model_id,
                model_uuid=made.model_id,
                metadata={"tipcast": {"manifest_sha256": digest(path)}},
            )
            mlflow.pyfunc.save_model(
                folder / "model",
                mlflow_model=described,
                python_model=str(CODE),
                artifacts={
                    name: str(source) for name, source in {**sources, "manifest": path}.items()
                },
                signature=signature,
                input_example=example,
                pip_requirements=requirements(format),
            )
            _of_any_machine(described, format, file.name)
            described.save(str(folder / "model" / "MLmodel"))

        run.client.log_model_artifacts(made.model_id, str(folder / "model"))
        run.client.finalize_logged_model(made.model_id, LoggedModelStatus.READY)
        return Logged(f"models:/{made.model_id}", manifest=manifest, manifest_sha256=digest(path))


def logged_name(facts: Mapping[str, Any]) -> str:
    """Return what a logged model is called, as ``xgboost-TASK``, or ``xgboost-COLUMN`` where a
    column is the target.
    """
    task: Mapping[str, Any] = facts.get("task", {})
    label = (
        task.get("name")
        if task.get("function")
        else next(iter(task.get("columns", ())), task.get("name"))
    )
    return re.sub(r"[^\w\-]+", "_", "-".join(filter(None, (facts.get("model", "model"), label))))


def _of_any_machine(model: Model, format: str, file: str) -> None:
    """Let a model's description name its files by their places in it, and give it the flavor of its
    library.
    """
    pyfunc = model.flavors[mlflow.pyfunc.FLAVOR_NAME]
    pyfunc["model_code_path"] = CODE.name
    for artifact in pyfunc["artifacts"].values():
        artifact["uri"] = artifact["path"]

    if format == "xgboost-ubj":
        model.add_flavor(
            "xgboost",
            xgb_version=_pinned(native.NEEDS[format][0]).partition("==")[2],
            data=f"artifacts/{file}",
            model_class="xgboost.core.Booster",
            model_format="ubj",
        )

    if format == "skops":
        model.add_flavor(
            "sklearn",
            sklearn_version=importlib.metadata.version("scikit-learn"),
            pickled_model=f"artifacts/{file}",  # MLflow's name of it, whatever the format
            serialization_format="skops",
            skops_trusted_types=list(native.TRUSTED),
        )


def link_metrics(run: Run, logged: Logged, datasets: Mapping[str, tuple[str, str]]) -> None:
    """Let a logged model carry the metrics that its run has of each split by now, tied to the
    dataset they are of.

    ``datasets`` has split -> name and digest of its rows, as ``Run.log_dataset`` has them: metrics
    are ``split/name``.
    """
    metrics = []
    for key in run.client.get_run(run.id).data.metrics:
        if (split := key.partition("/")[0]) in datasets:
            name, digest = datasets[split]
            # the run's own point, not another one
            last = run.client.get_metric_history(run.id, key)[-1]
            of = logged.model_id, cut(name, MAX_DATASET), digest[:MAX_DIGEST]
            metrics.append(Metric(key, last.value, last.timestamp, last.step, *of))

    run.client.log_batch(run.id, metrics=metrics)


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

    client = run.client
    manifest = logged.manifest
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
        "tipcast.version": manifest.get("versions", {}).get("tipcast"),
        "tipcast.commit": manifest.get("tipcast_commit"),
        "tipcast.dirty": "true" if manifest.get("tipcast_dirty") else None,
        "versions": ", ".join(
            f"{library} {version}" for library, version in manifest.get("versions", {}).items()
        ),
        "parity": f"{difference:.2g}",
        TRIAL_TAG: trial,
        **{metric: f"{value:.6g}" for metric, value in metrics.items()},
    }
    tags = taken({key: value for key, value in facts.items() if value})

    with quiet():
        for version in client.search_model_versions(f"run_id='{run.id}'") if trial else ():
            if (
                version.name == name
                and version.tags.get(TRIAL_TAG) == trial
                and version.status == "READY"
            ):
                LOG.info(
                    "version %s of %s is of the same trial: no other is registered",
                    version.version,
                    name,
                )
                return replace(logged, registered=f"models:/{name}/{version.version}")

        if not client.search_registered_models(f'name="{name}"'):
            with contextlib.suppress(MlflowException):  # another process may have made it meanwhile
                client.create_registered_model(name)

        # Not by mlflow.register_model: it gives no description, and a version would be seen
        # without.
        about = description[:MAX_DESCRIPTION]
        made = client.create_model_version(
            name, logged.uri, run.id, tags=tags, description=about, model_id=logged.model_id
        )
        gate("version")
        noted = client.get_logged_model(logged.model_id).tags.get(MLFLOW_MODEL_VERSIONS, "[]")
        versions = [*json.loads(noted), {"name": name, "version": made.version}]
        client.set_logged_model_tags(logged.model_id, {MLFLOW_MODEL_VERSIONS: json.dumps(versions)})

    return replace(logged, registered=f"models:/{name}/{made.version}")


def requirements(format: str) -> list[str]:
    """Return the pinned packages that a model of a format needs where it is loaded."""
    return [
        _pinned(builds) for builds in (("mlflow",), ("numpy",), ("pandas",), *native.NEEDS[format])
    ]


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _pinned(builds: Sequence[str]) -> str:
    """Return the first of a package's builds that is installed, with its version; M012 where none
    is.
    """
    for name in builds:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{name}=={importlib.metadata.version(name)}"
    raise TipcastError("M012", builds[0], "is not installed", f"install {builds[0]}")


def _labels(task: Mapping[str, Any]) -> list[Any]:
    """Return each class as the target has it: the column's own value, or what the task's function
    makes of a row.
    """
    classes = list(task.get("classes") or ("0", "1"))
    numbers = task.get("values")
    if numbers:
        labels = [
            int(number) if float(number).is_integer() else float(number) for number in numbers
        ]
        return labels[::-1] if task.get("swapped") else labels

    made = task.get("function", True) is not None and len(classes) == 2
    return (
        list(range(len(classes)))
        if made or classes == [str(at) for at in range(len(classes))]
        else classes
    )


def _signature(
    columns: Sequence[RawColumn],
    kind: Kind,
    classes: Sequence[str],
    outputs: Sequence[str],
    threshold: float | None,
) -> ModelSignature:
    """Raw columns by their usual names, of any type: types change between files, and times may be
    ISO text.

    A name that has two Unicode forms is there in both, for MLflow drops what it does not list; the
    model refuses rows that have neither.
    """
    inputs = []
    for column in columns:
        name = column.spellings[0]
        forms = dict.fromkeys(
            [name, *(unicodedata.normalize(form, name) for form in ("NFC", "NFD"))]
        )
        required = column.required and len(forms) == 1
        inputs += [ColSpec(type=AnyType(), name=spelling, required=required) for spelling in forms]

    names: Sequence[str | None] = kind.prediction_columns(classes) or [None]
    params = [ParamSpec("output", DataType.string, outputs[0])]
    if kind.has_positive:
        params.append(
            ParamSpec("threshold", DataType.double, 0.5 if threshold is None else float(threshold))
        )

    predicted = Schema([ColSpec(DataType.double, name) for name in names])
    return ModelSignature(inputs=Schema(inputs), outputs=predicted, params=ParamSchema(params))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep MLflow's remarks on what is done on purpose off the console: its logger writes where
    stderr is now.
    """
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
