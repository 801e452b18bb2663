"""The code that MLflow runs to load a tipcast model: raw rows in, predictions out; it needs no
tipcast installed.
"""

import contextlib
import datetime
import functools
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import re
import sys
import unicodedata
from pathlib import Path
from types import ModuleType
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST
from mlflow.types import DataType

# Threads that wait spin for a moment, then sleep.
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    os.environ |= {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "5000"}
TIME = "write wall-clock time without a zone, such as 2019-02-01 18:30:00"
"""What a user can do about a time or a date that cannot be read."""
NUMBER = "write a number, or leave it empty"
"""What a user can do about a number that cannot be read."""
NUMBERS = re.compile(r"[-+]?((\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|(?i:inf(inity)?|nan))", re.ASCII)
"""Numbers as files have them."""
SIGNS: dict[str, Any] = {".": {}, ",": str.maketrans(",.", ".,")}
"""Decimal sign of the training files -> signs to change, so that ``NUMBERS`` fits."""
ZONE_OF_UTC = r"(:\d\d(?:\.\d+)?) ?(?:UTC|Z|[-+]00(?::?00)?)$"
"""End of a time that is marked as UTC, which is taken as wall-clock time."""
OTHER_ZONE = re.compile(r":\d\d(\.\d+)? ?[-+]\d\d(:?\d\d)?$")
"""End of a time of another zone, once marks of UTC are gone."""
ZONES = frozenset(("UTC", "Etc/UTC", "+00:00", "GMT", "tzutc()", "America/New_York"))
"""Zones whose times are wall-clock time all the same."""


class Model(mlflow.pyfunc.PythonModel):
    """Scores raw rows with the native file beside its manifest."""

    def load_context(self, context: Any) -> None:
        """Check the digest of every file, then load the files.

        MLmodel has the digest of the manifest, and the manifest those of the other files.
        """
        paths = {name: Path(path) for name, path in context.artifacts.items()}
        model = mlflow.models.Model.load(str(paths["manifest"].parents[1]))
        manifest_digest = model.metadata["tipcast"]["manifest_sha256"]
        self.manifest = json.loads(_checked(paths["manifest"], manifest_digest))
        contents = {
            name: _checked(paths[name], digest) for name, digest in self.manifest["sha256"].items()
        }

        _teach_server()
        self.features = _module("tipcast_model_features", contents["features"])
        native = _module("tipcast_model_native", contents["native"])
        self.scorer = native.load(contents["model"], self.manifest["format"], threads=0)

    def predict(
        self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> Any:
        """Return the output of the model for each row.

        A row with an impossible value gets NaN, or None for a label. The parameter ``output`` is
        one of the manifest's ``outputs``, by default the first. ``probability`` is (rows,) float64
        of the second of two classes, and a column for each of more classes. ``contributions`` and
        ``features`` have a column for each feature. ``label`` is (rows,) as the target has it; of
        two classes, the parameter ``threshold`` decides.
        """
        output, threshold = self._parameters(params or {})
        columns = self._columns(model_input)
        names = self.manifest["features"]
        # Numbers may be too large for float32: their rows get no score.
        with np.errstate(over="ignore"):
            x = self.features.compute(columns, names)

        if output == "features":
            return pd.DataFrame(x, columns=names)

        bad, _ = self.features.impossible(columns, list(columns))
        if bad is not None:
            x[np.isinf(x)] = -1  # some libraries refuse them, and all rows with them

        score = self.scorer.score
        if output == "contributions":
            score = self.scorer.contributions
        scores = np.array(score(x), np.float64)
        if bad is not None:
            scores[bad] = np.nan

        return self._named(scores, output, threshold)

    def _parameters(self, params: dict[str, Any]) -> tuple[str, float]:
        """Return the output and the threshold that a call asks for, or those of the manifest."""
        outputs = self.manifest["outputs"]
        output = params.get("output", outputs[0])
        if output not in outputs:
            what = f"output {output!r} is not available for this {self.manifest['format']} model"
            raise _refused(what, f"use {', '.join(outputs)}")

        # The threshold was chosen on held-out rows and may be above all scores.
        chosen = self.manifest.get("threshold")
        default = 0.5 if chosen is None else chosen
        threshold = float(params.get("threshold", default))
        if output == "label" and not (0 <= threshold <= 1 or threshold == chosen):
            raise _refused(f"threshold {threshold:g} is not a probability", "use 0 to 1")

        return output, threshold

    def _columns(self, frame: pd.DataFrame) -> dict[str, Any]:
        """Return the columns that features are made of, filled where values are missing."""
        columns: dict[str, Any] = {}
        spelled = {_one_form(name): name for name in frame}
        for column in self.manifest["columns"]:
            columns |= _filled(self._column(frame, column, spelled), column)
        return columns

    def _column(self, frame: pd.DataFrame, column: dict[str, Any], spelled: dict[str, Any]) -> Any:
        """Return a canonical column: times as int64 microseconds, numbers and codes with NaN for
        missing.

        ``spelled`` is a name in one Unicode form -> the frame's spelling.
        """
        spellings = [spelled.get(_one_form(name), name) for name in column["spellings"]]
        header = next((spelling for spelling in spellings if spelling in frame), spellings[0])
        if header not in frame:
            if not column["required"]:
                return np.full(len(frame), np.nan)
            raise _refused(f"missing column {header!r}; the model needs raw rows")

        values = frame[header]
        if values.ndim != 1:
            raise _refused(f"column {header!r} occurs twice")

        missing = self.manifest.get("missing", [])
        if column["type"] == "time":
            times = _times(values, header, missing)
            return times.to_numpy().astype("datetime64[us]").view(np.int64)
        if column["type"] == "number":
            decimal = self.manifest.get("dialect", {}).get("decimal", ".")
            return _numbers(values, header, column, missing, decimal)
        if column["type"] == "date":
            return self._days(values, header, frozenset(("", *missing)))

        lost = set(missing).intersection(column["categories"])
        if lost and any(isinstance(value, float) for value in values[values.isna()]):
            what = f"column {header!r} has NaN, which may have been {sorted(lost)[0]!r} or nothing"
            fix = "send '' for nothing, as pandas.read_csv(..., keep_default_na=False) reads it"
            raise _refused(what, fix)
        return self._codes(values, header, column["categories"])

    def _codes(self, values: pd.Series, header: str, categories: list[str]) -> Any:
        """Return the code of each row's category as float64, NaN where it is missing."""
        places, distinct = _distinct(values)
        try:
            codes = self.features.codes(distinct, categories)
        except ValueError as problem:
            fix = f"pandas.read_csv(..., dtype={{{header!r}: str}}) keeps it"
            raise _refused(f"column {header!r} has lost its text: {problem}", fix) from None

        return np.array([*codes, np.nan])[places]

    def _days(self, values: pd.Series, header: str, missing: frozenset[str]) -> Any:
        """Return the days since 1970 of dates, times or texts as float64, NaN for missing."""
        places, distinct = _distinct(values)
        days, odd, reason = self.features.days(distinct, self.manifest["dates"], missing)
        if odd is not None:
            raise _unreadable(header, f"{_first(values, places == odd)} {reason}", TIME)
        return np.array([*days, np.nan])[places]

    def _named(self, scores: Any, output: str, threshold: float) -> Any:
        """Return scores in the form of the output, with names of columns."""
        prediction = self.manifest["prediction"]
        if output == "label":
            return self._labels(scores, prediction["label"], threshold)

        columns = prediction["columns"]
        if output == "contributions":
            features = [*self.manifest["features"], "bias"]
            if prediction["column_per_class"]:
                features = [f"{name}: {feature}" for name in columns for feature in features]
            return pd.DataFrame(scores.reshape(len(scores), len(features)), columns=features)

        if columns is None:
            return scores
        return pd.DataFrame(scores, columns=columns)

    def _labels(self, scores: Any, rule: str, threshold: float) -> Any:
        """Return the label of each row, None where it has no score."""
        first_scores = scores
        if scores.ndim > 1:
            first_scores = scores[:, 0]
        bad = np.isnan(first_scores)

        if rule == "first":
            labels: Any = np.where(bad, 0, scores[:, 0]).astype(np.int64)
        elif rule == "largest":
            labels = np.asarray(self.manifest["labels"])[scores.argmax(axis=1)]
        else:
            labels = np.asarray(self.manifest["labels"])[(scores >= threshold).astype(np.int64)]

        if bad.any():
            labels = labels.astype(object)
            labels[bad] = None
        return labels


def _checked(path: Path, digest: str) -> bytes:
    """Return a file's content; raise an error if it has another digest."""
    content = path.read_bytes()
    actual = hashlib.sha256(content).hexdigest()
    if actual != digest:
        raise MlflowException(
            f"{path.name} is not the file that was logged: SHA-256 {actual}, not {digest}"
        )
    return content


def _filled(values: Any, column: dict[str, Any]) -> dict[str, Any]:
    """Return a column with its missing values filled, and its indicator of missing values.

    The manifest says whether the model needs either.
    """
    columns = {column["name"]: values}
    if values.dtype.kind != "f":
        return columns

    missing = np.isnan(values)
    if column["fill"] is not None:
        columns[column["name"]] = np.where(missing, column["fill"], values)
    if column.get("indicator"):
        columns[column["indicator"]] = missing
    return columns


def _distinct(values: pd.Series) -> tuple[Any, list[Any]]:
    """Return the place of each row's value among the distinct values, and the distinct values.

    The place of a missing value is -1. Values of two types differ, as the texts that they came from
    do: True, 1 and 1.0 are equal to Python.
    """
    objects = values.astype(object).to_numpy()
    kinds, types = pd.factorize(np.array([*map(type, objects)], dtype=object))
    places = np.full(len(objects), -1)
    distinct: list[Any] = []

    for kind in range(len(types)):
        rows = np.flatnonzero(kinds == kind)
        of_type, values_of_type = pd.factorize(objects[rows])
        places[rows] = np.where(of_type < 0, -1, of_type + len(distinct))
        distinct.extend(values_of_type.tolist())

    return places, distinct


def _numbers(
    values: pd.Series, header: str, column: dict[str, Any], missing: list[str], decimal: str = "."
) -> Any:
    """Return float64 with NaN for missing; texts as training read them in CSV, with its decimal
    sign.
    """
    if values.dtype.kind in "mM" and values.notna().any():  # pandas would give their nanoseconds
        raise _unreadable(header, "it contains times", NUMBER)
    as_sent = values
    if not pd.api.types.is_numeric_dtype(values):
        values = _parsed_texts(values, column, missing, decimal)

    try:
        numbers = pd.to_numeric(values).to_numpy(dtype=np.float64, na_value=np.nan)
    except (ValueError, TypeError):
        unread = pd.to_numeric(values, errors="coerce").isna() & values.notna()
        what = f"{_first(as_sent, unread)} is not a number"
        raise _unreadable(header, what, NUMBER) from None

    if column["largest"]:
        absurd = np.abs(numbers) > column["largest"]
        if absurd.any():
            raise _unreadable(header, f"{_first(values, absurd)} is too large", NUMBER)
    return numbers


def _parsed_texts(
    values: pd.Series, column: dict[str, Any], missing: list[str], decimal: str
) -> pd.Series:
    """Return values with numbers in place of texts, and None for texts that mean no value."""
    absent = {*missing, *(text.strip() for text in column.get("missing", ()))}
    booleans: dict[str, str] = {}
    if column.get("booleans"):
        booleans = {"true": "1", "false": "0"}

    def parsed(value: Any) -> Any:
        if not isinstance(value, str):
            return value

        text = _one_form(value.strip())
        text = booleans.get(text.lower(), text)
        if text in absent:
            return None
        number = text.translate(SIGNS[decimal])
        if NUMBERS.fullmatch(number):
            return float(number)
        return number

    return values.astype(object).map(parsed)


def _times(values: pd.Series, header: str, missing: list[str]) -> pd.Series:
    """Return wall-clock times.

    Numbers are refused, as they have no unit, and zones that training refuses.
    """
    if pd.api.types.is_numeric_dtype(values) and values.notna().any():
        raise _unreadable(header, "times are numbers, which have no unit", TIME)

    as_sent = values
    if not pd.api.types.is_datetime64_any_dtype(values):
        absent = frozenset(("", *missing))
        values = values.astype(object).map(lambda value: _wall_clock(value, absent))
        zoned = values.map(_is_of_other_zone).astype(bool)
        if zoned.any():
            what = f"{_first(as_sent, zoned)} is a time in a zone other than UTC"
            raise _unreadable(header, what, TIME)

    try:
        times = pd.to_datetime(values, format="ISO8601")
    except (ValueError, TypeError):
        raise _unreadable(header, _fault_of_times(values, as_sent), TIME) from None

    if times.dt.tz is not None:
        if str(times.dt.tz) not in ZONES:
            raise _unreadable(header, f"times have time zone {times.dt.tz}", TIME)
        # Files marked UTC hold wall-clock time; training reads them the same way.
        times = times.dt.tz_localize(None)
    return times


def _fault_of_times(values: pd.Series, as_sent: pd.Series) -> str:
    """Return what is wrong with times that pandas cannot read, with the first one if possible."""
    with contextlib.suppress(ValueError, TypeError):
        times = pd.to_datetime(values, format="ISO8601", errors="coerce", utc=True)
        bad = times.isna() & values.notna()
        if bad.any():
            return f"{_first(as_sent, bad)} is not a time"
    return "these are not times"


def _wall_clock(value: Any, absent: frozenset[str]) -> Any:
    """Return a time without a mark of UTC; None for a text that stands for no value."""
    if isinstance(value, datetime.datetime) and str(value.tzinfo) in ZONES:
        return value.replace(tzinfo=None)
    if not isinstance(value, str):
        return value

    text = value.strip()
    if text in absent:
        return None
    return re.sub(ZONE_OF_UTC, r"\1", text)


def _is_of_other_zone(value: object) -> bool:
    """Tell whether a time, without a mark of UTC, has a zone."""
    if isinstance(value, str):
        return OTHER_ZONE.search(value) is not None
    return isinstance(value, datetime.datetime) and value.tzinfo is not None


def _one_form(name: Any) -> Any:
    """Return a column's name, or a text in it, in one Unicode form: an umlaut may be two signs."""
    if isinstance(name, str):
        return unicodedata.normalize("NFC", name)
    return name


def _first(values: pd.Series, bad: Any) -> str:
    """Return the first bad value, with the number of its row, from 1."""
    at = int(np.argmax(np.asarray(bad)))
    return f"{str(values.iloc[at])[:40]!r} of row {at + 1}"


def _unreadable(header: str, what: str, fix: str) -> MlflowException:
    """Return the error of a column with a value that cannot be read."""
    return _refused(f"column {header!r} cannot be read: {what}", fix)


def _refused(
    what: str, fix: str = "send rows like those that the model was trained on"
) -> MlflowException:
    """Return the error of rows or parameters that the model does not take."""
    return MlflowException.invalid_parameter_value(f"{what}. Fix: {fix}")


class _Checked(importlib.abc.InspectLoader):
    """Loads the source that was checked: Python would prefer a compiled file beside it."""

    def __init__(self, source: bytes) -> None:
        self.source = source

    def get_source(self, fullname: str) -> str:
        """Return the source."""
        return self.source.decode("utf-8")


def _module(name: str, source: bytes) -> ModuleType:
    """Return a module that runs the source."""
    loader = _Checked(source)
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(name, loader))
    loader.exec_module(module)
    return module


def _teach_server() -> None:
    """Let MLflow's server in this process read CSV as training does, and write strict JSON.

    MLflow refuses CSV for columns of any type, would read the code 007 as 7, and writes NaN, which
    is not JSON. The process that serves a model loads it, so that this code can change the server.
    """
    # `mlflow models predict` loads it too.
    server: Any = sys.modules.get("mlflow.pyfunc.scoring_server")
    # An earlier model of this process may have replaced it already.
    if server and not isinstance(server.parse_csv_input, functools.partial):
        server.parse_csv_input = functools.partial(_read_csv, server.parse_csv_input)
        server.predictions_to_json = functools.partial(_write_json, server.predictions_to_json)


def _read_csv(read: Any, csv_input: Any, schema: Any = None) -> Any:
    """Return rows of CSV as text, as raw columns have no types.

    ``read`` is MLflow's own function, for models with a type for each column.
    """
    if schema is None or all(isinstance(column, DataType) for column in schema.input_types()):
        return read(csv_input, schema)

    try:
        rows = pd.read_csv(csv_input, header=None, dtype=object, keep_default_na=False).fillna("")
    except ValueError as problem:
        raise MlflowException(
            f"Failed to parse input as CSV: {problem}", error_code=BAD_REQUEST
        ) from None

    rows = rows.map(str.strip)  # blanks around a cell of CSV do not count
    # pandas would rename the second of two columns with one name.
    return rows[1:].set_axis(rows.iloc[0], axis=1).reset_index(drop=True)


def _write_json(write: Any, predictions: Any, output: Any, *args: Any, **kwargs: Any) -> None:
    """Write predictions with ``write``, MLflow's own function, but with null for NaN."""
    text = io.StringIO()
    write(predictions, text, *args, **kwargs)
    json.dump(json.loads(text.getvalue(), parse_constant=lambda _: None), output)


mlflow.models.set_model(Model())
