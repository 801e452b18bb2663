"""The code that MLflow runs to load a tipcast model: raw rows in, predictions out; it needs no tipcast installed."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException

if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():  # threads that wait spin for a moment, then sleep
    os.environ |= {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "5000"}
TIME = "write wall-clock time without a zone, as 2019-02-01 18:30:00"
NUMBER = "write a number, or leave it empty"
EXTRA = re.compile(r"Found extra inputs .*`\[(.*)\]`")
ZONES = frozenset(("UTC", "America/New_York"))
"""Of times that are wall-clock time all the same."""


class _Expected(logging.Filter):
    """Drops MLflow's warning of columns beside the signature where all are known columns of the model's dataset.

    Optional columns of the signature would be quiet too, but MLflow looks at each value of a column of any type.
    """

    def __init__(self, known: list[str]) -> None:
        super().__init__()
        self.known = frozenset(known)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is shown."""
        told = EXTRA.search(record.getMessage())
        return told is None or not self.known.issuperset(re.findall("'([^']*)'", told[1]))


class Model(mlflow.pyfunc.PythonModel):
    """Scores raw rows with the native file beside its manifest."""

    def load_context(self, context: Any) -> None:
        """Check the digest of every file, then load them: the manifest's is in MLmodel, the others' in the manifest."""
        paths = {name: Path(path) for name, path in context.artifacts.items()}
        model = mlflow.models.Model.load(str(paths["manifest"].parents[1]))
        self.manifest = json.loads(_checked(paths["manifest"], model.metadata["tipcast"]["manifest_sha256"]))
        logger = logging.getLogger("mlflow.models.utils")
        known = self.manifest["known_columns"]
        if not any(getattr(each, "known", None) == frozenset(known) for each in logger.filters):  # of another model
            logger.addFilter(_Expected(known))
        for name, digest in self.manifest["sha256"].items():
            _checked(paths[name], digest)
        _module("tipcast_model_serving", paths["serving"]).teach()
        self.features = _module("tipcast_model_features", paths["features"])
        native = _module("tipcast_model_native", paths["native"])
        self.scorer = native.load(paths["model"], self.manifest["format"], device="auto", threads=0)

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> Any:
        """Return what the model says of each row, NaN where a value of it cannot be.

        Of two classes the probability of the second, (rows,) float64; of more those of all; a value; or label and
        distance of the nearest cluster.
        """
        names, kind = self.manifest["features"], self.manifest.get("task", {}).get("kind")
        columns = {column["name"]: _column(model_input, column) for column in self.manifest["columns"]}
        scores = np.array(self.scorer.score(self.features.compute(columns, names)), dtype=np.float64)
        bad, _ = self.features.impossible(columns, list(columns))
        if bad is not None:
            scores[bad] = np.nan
        if kind == "multiclass":
            return pd.DataFrame(scores, columns=self.manifest["task"]["classes"])
        return pd.DataFrame(scores, columns=["label", "distance"]) if kind == "clustering" else scores


def _checked(path: Path, digest: str) -> bytes:
    """Return a file's content when it has the digest."""
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise MlflowException(f"{path.name} is not the file that was logged: SHA-256 {found}, not {digest}")
    return content


def _column(frame: pd.DataFrame, column: dict[str, Any]) -> Any:
    """Return a canonical column: times as int64 microseconds, numbers and codes with NaN or a filling for missing."""
    spellings, fill = column["spellings"], column["fill"]
    own = next((spelling for spelling in spellings if spelling in frame), spellings[0])
    if own not in frame:
        if not column["required"]:
            return np.full(len(frame), np.nan if fill is None else fill)
        raise _refused(f"missing column {own!r}; the model needs raw rows")
    values = frame[own]
    if values.ndim != 1:
        raise _refused(f"column {own!r} is there twice")
    if column["type"] == "time":
        return _times(values, own).to_numpy().astype("datetime64[us]").view(np.int64)
    if column["type"] == "category":
        codes = pd.Categorical(values.astype(object).map(_text), categories=column["categories"]).codes
        return np.where(codes < 0, np.nan, codes).astype(np.float64)
    try:
        numbers = pd.to_numeric(values).to_numpy(dtype=np.float64, na_value=np.nan)
    except (ValueError, TypeError):
        found = pd.to_numeric(values, errors="coerce").isna() & values.notna()
        raise _refused(f"column {own!r} cannot be read: {_first(values, found)} is no number", NUMBER) from None
    absurd = np.abs(numbers) > column["largest"]
    if absurd.any():
        raise _refused(f"column {own!r} cannot be read: {_first(values, absurd)} is too large", NUMBER)
    return numbers if fill is None else np.where(np.isnan(numbers), fill, numbers)


def _text(value: Any) -> Any:
    """Return a category's value as the model's vocabulary has it."""
    return str(value).lower() if isinstance(value, bool | np.bool_) else value if value is None else str(value)


def _times(values: pd.Series, own: str) -> pd.Series:
    """Return wall-clock times; numbers are refused, for they tell no unit, and so are zones that training refuses."""
    if pd.api.types.is_numeric_dtype(values) and values.notna().any():
        raise _refused(f"column {own!r} cannot be read: a time is a number, which tells no unit", TIME)
    try:
        times = pd.to_datetime(values, format="ISO8601")
    except (ValueError, TypeError):
        with contextlib.suppress(ValueError, TypeError):
            found = pd.to_datetime(values, format="ISO8601", errors="coerce", utc=True).isna() & values.notna()
            raise _refused(f"column {own!r} cannot be read: {_first(values, found)} is no time", TIME) from None
        raise _refused(f"column {own!r} cannot be read: these are no times", TIME) from None
    if times.dt.tz is not None:
        if str(times.dt.tz) not in ZONES:
            raise _refused(f"column {own!r} cannot be read: times are of time zone {times.dt.tz}", TIME)
        times = times.dt.tz_localize(None)  # files marked UTC hold wall-clock time: training reads them so
    return times


def _first(values: pd.Series, bad: Any) -> str:
    """Return the first value that is bad, and of which row, counted from 1."""
    at = int(np.argmax(np.asarray(bad)))
    return f"{str(values.iloc[at])[:40]!r} of row {at + 1}"


def _refused(what: str, fix: str = "send rows as the model was trained on") -> MlflowException:
    return MlflowException.invalid_parameter_value(f"{what}. Fix: {fix}")


def _module(name: str, path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise MlflowException(f"{path} is no Python file")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


mlflow.models.set_model(Model())
