"""The parts of a portable model: a native file, the code that makes features and scores, a manifest
with digests, a signature and an example.
"""

import contextlib
import hashlib
import importlib.metadata
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import AnyType

from tipcast.config.errors import TipcastError
from tipcast.datasets.base import Dataset, HasManifest, RawColumn, raw_columns
from tipcast.datasets.csv_cells import MISSING_TEXTS
from tipcast.datasets.listing import FileInfo
from tipcast.models import native
from tipcast.tasks import kinds
from tipcast.tasks.kinds import BINARY, Kind

MANIFEST_VERSION = 2
"""Version of the manifest's form."""
CODE = Path(__file__).parent / "model_code" / "model.py"
"""Code that MLflow runs to load a model."""


@dataclass(frozen=True)
class Package:
    """A model's file, with all that is saved beside it to score raw rows without tipcast."""

    file: Path
    """The native file."""
    format: str
    """A format of ``models.native``."""
    model_info: Mapping[str, Any]
    """Part of the manifest: ``features`` (in order), ``task`` and anything that JSON can hold."""
    dataset: Dataset
    """Dataset of the training rows. The code that makes its features is saved with the model."""
    info: FileInfo
    """Description of the training files, from their listing."""

    @property
    def task(self) -> Mapping[str, Any]:
        """The task, in the manifest's form."""
        task: Mapping[str, Any] = self.model_info.get("task", {})
        return task

    @property
    def kind(self) -> Kind:
        """Kind of the task."""
        return kinds.named(self.task.get("kind", BINARY.name))

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the target's classes."""
        return tuple(self.task.get("classes", ()))

    @property
    def columns(self) -> list[RawColumn]:
        """The raw columns that features are made of, by their names in the training files."""
        return list(raw_columns(self.dataset, self.model_info["features"], self.info))

    @property
    def outputs(self) -> list[str]:
        """Names of all that the model can return, the usual output first."""
        outputs = list(self.kind.outputs)
        if self.format == "xgboost-ubj" and self.kind.has_target:
            outputs.append("contributions")
        return [*outputs, "features"]

    @property
    def sources(self) -> dict[str, Path]:
        """Files that are saved beside the manifest."""
        return {
            "model": self.file,
            "features": Path(str(self.dataset.code.__file__)),
            "native": Path(native.__file__),
        }

    def manifest(self) -> dict[str, Any]:
        """Return the manifest: digests of the files, columns, outputs and the training."""
        files = {
            "version": MANIFEST_VERSION,
            "format": self.format,
            "file": self.file.name,
            "sha256": {name: digest(path) for name, path in self.sources.items()},
        }
        rows = {
            "dataset": self.dataset.name,
            "columns": [column.to_manifest() for column in self.columns],
            "outputs": self.outputs,
            "labels": _labels(self.task),
            "prediction": {
                "columns": self.kind.prediction_columns(self.classes),
                "column_per_class": self.kind.column_per_class,
                "label": self.kind.label,
            },
            "missing": MISSING_TEXTS,
        }
        if isinstance(self.dataset, HasManifest):
            rows |= self.dataset.to_manifest()

        return {**files, **rows, **self.info.to_manifest(), **self.model_info}

    def signature(self) -> ModelSignature:
        """Return the raw columns by their usual names, the names of predictions and parameters."""
        kind = self.kind
        names: Sequence[str | None] = kind.prediction_columns(self.classes) or [None]
        predictions = Schema([ColSpec(DataType.double, name) for name in names])

        params = [ParamSpec("output", DataType.string, self.outputs[0])]
        if kind.has_positive:
            threshold = self.model_info.get("threshold")
            default = 0.5 if threshold is None else float(threshold)
            params.append(ParamSpec("threshold", DataType.double, default))

        return ModelSignature(_inputs(self.columns), predictions, ParamSchema(params))

    def example(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return a few raw rows as a user has them, with the model's columns alone."""
        names = [column.spellings[0] for column in self.columns]
        return rows.reindex(columns=names).reset_index(drop=True)

    def save(
        self,
        folder: Path,
        run_id: str,
        model_id: str,
        manifest: Path,
        signature: ModelSignature,
        example: pd.DataFrame,
    ) -> None:
        """Save the package in MLflow's format into ``folder``, which is made."""
        # Not by Model.log: its MLmodel would name folders of this machine.
        model = Model(
            artifact_path=f"models:/{model_id}",
            run_id=run_id,
            model_id=model_id,
            model_uuid=model_id,
            metadata={"tipcast": {"manifest_sha256": digest(manifest)}},
        )
        files = {**self.sources, "manifest": manifest}
        mlflow.pyfunc.save_model(
            folder,
            mlflow_model=model,
            python_model=str(CODE),
            artifacts={name: str(path) for name, path in files.items()},
            signature=signature,
            input_example=example,
            pip_requirements=requirements(self.format),
        )

        _make_portable(model)
        _add_library_flavor(model, self.format, self.file.name)
        model.save(str(folder / "MLmodel"))


def _inputs(columns: Sequence[RawColumn]) -> Schema:
    """Return raw columns of any type: types change between files, and times may be ISO text.

    A name that has two Unicode forms is listed in both, for MLflow drops columns that are not
    listed; the model refuses rows that have neither.
    """
    inputs = []
    for column in columns:
        name = column.spellings[0]
        forms = [unicodedata.normalize(form, name) for form in ("NFC", "NFD")]
        spellings = dict.fromkeys([name, *forms])
        required = column.required and len(spellings) == 1
        inputs += [
            ColSpec(type=AnyType(), name=spelling, required=required) for spelling in spellings
        ]

    return Schema(inputs)


def _labels(task: Mapping[str, Any]) -> list[Any]:
    """Return the value that each class has in the target: the column's own, or the task function's
    result.
    """
    classes = list(task.get("classes") or ("0", "1"))
    if numbers := task.get("values"):
        labels = [_whole_or_real(number) for number in numbers]
        if task.get("swapped"):
            labels.reverse()
        return labels

    is_computed = task.get("function", True) is not None and len(classes) == 2
    if is_computed or classes == [str(number) for number in range(len(classes))]:
        return list(range(len(classes)))
    return classes


def _whole_or_real(number: float) -> int | float:
    """Return a number as int if it is whole, else as float."""
    if float(number).is_integer():
        return int(number)
    return float(number)


def _make_portable(model: Model) -> None:
    """Let ``MLmodel`` name files by their places in the model, not on this machine."""
    pyfunc = model.flavors[mlflow.pyfunc.FLAVOR_NAME]
    pyfunc["model_code_path"] = CODE.name
    for artifact in pyfunc["artifacts"].values():
        artifact["uri"] = artifact["path"]


def _add_library_flavor(model: Model, format: str, file: str) -> None:
    """Add MLflow's flavor of the library that the native file is of, if it has one."""
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


def requirements(format: str) -> list[str]:
    """Return the pinned packages that a model of a format needs where it is loaded."""
    return [
        _pinned(builds) for builds in (("mlflow",), ("numpy",), ("pandas",), *native.NEEDS[format])
    ]


def _pinned(builds: Sequence[str]) -> str:
    """Return the first build of a package that is installed, with its version; M012 if none is."""
    for name in builds:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{name}=={importlib.metadata.version(name)}"
    raise TipcastError("M012", builds[0], "is not installed", f"install {builds[0]}")


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
