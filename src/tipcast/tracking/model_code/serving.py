"""What MLflow's scoring server does not do by itself for raw rows; this file travels inside saved models.

MLflow reads CSV only where the signature gives every column one type. Raw rows have none: types change between
files, pandas' times fit no type that its CSV reader takes, and whole numbers fit no column of fractions.
MLflow's errors repeat the whole input over many lines and end with a traceback.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from pathlib import Path
from typing import Any

import pandas
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST
from mlflow.types import DataType

SERVERS = ("mlflow.pyfunc.scoring_server", "mlserver_mlflow.runtime")
"""MLflow's own, which `mlflow models predict` uses too, and MLServer's for MLflow's models."""
NAN = re.compile(r'"(?:[^"\\]|\\.)*"|NaN')
MOST = 400
"""Characters of an error."""
FORMS = 'send text/csv with a header, or JSON as {"dataframe_split": {"columns": [...], "data": [...]}}'
PARAMS = 'send "params": {"output": "..."} as the model\'s signature has them, or none'
MISSING = re.compile(r"Model is missing inputs \[([^\]]*)\]")
LEAVINGS = re.compile(r"\s*(?:\nInput:|IMPORTANT: The MLflow).*", re.DOTALL)
"""What MLflow adds to its errors: the input once more, and the history of its formats."""
WITHIN = re.compile(r"Failed to (?:predict|enforce schema of) data .*Error: ", re.DOTALL)
"""What MLflow puts before the error: the input as pandas prints it."""


def teach() -> None:
    """Let servers that run in this process read CSV, answer in JSON and tell what is wrong in one line.

    Elsewhere nothing is done.
    """
    for module in filter(None, map(sys.modules.get, SERVERS)):
        if not getattr(module.parse_csv_input, "tipcast", False):
            module.parse_csv_input = _read_csv(module.parse_csv_input)  # type: ignore[attr-defined]
            module.predictions_to_json = _to_json(module.predictions_to_json)  # type: ignore[attr-defined]
    server = sys.modules.get(SERVERS[0])
    answer = getattr(server, "invocations", None)
    if answer is None or getattr(answer, "tipcast", False):
        return

    def invocations(data: Any, content_type: Any, model: Any, input_schema: Any) -> Any:
        if "tipcast" not in (model.metadata.metadata or {}):
            return answer(data, content_type, model, input_schema)
        try:
            return answer(data, str(content_type), model, input_schema)
        except MlflowException as problem:
            problem.message = told(problem.message, input_schema.required_input_names())
            problem.json_kwargs = {}  # the traceback
            raise

    invocations.tipcast = True  # type: ignore[attr-defined]
    server.invocations = invocations  # type: ignore[union-attr]


def _read_csv(read: Any) -> Any:
    """Return a reader of CSV that asks no column for a type where the schema does not give one to each."""

    def parse_csv_input(csv_input: Any, schema: Any = None) -> Any:
        if schema is None or all(isinstance(each, DataType) for each in schema.input_types()):
            return read(csv_input, schema)
        text = csv_input.read() if hasattr(csv_input, "read") else Path(csv_input).read_text(encoding="utf-8")
        try:
            return pandas.read_csv(io.StringIO(even(text)), dtype=str, keep_default_na=False)  # as training reads it
        except ValueError:
            return read(io.StringIO(even(text)), None)  # MLflow tells what is wrong

    parse_csv_input.tipcast = True  # type: ignore[attr-defined]
    return parse_csv_input


def _to_json(write: Any) -> Any:
    """Return a writer of predictions that is strict JSON's."""

    def predictions_to_json(raw_predictions: Any, output: Any, *more: Any, **named: Any) -> None:
        text = io.StringIO()
        write(raw_predictions, text, *more, **named)
        output.write(strict(text.getvalue()))

    return predictions_to_json


def strict(text: str) -> str:
    """Return JSON with null for NaN, which it does not know; what stands in quotes is left as it is."""
    return NAN.sub(lambda found: "null" if found[0] == "NaN" else found[0], text) if "NaN" in text else text


def even(text: str) -> str:
    """Return CSV without what is beyond the header's columns: pandas would take the first column for row labels.

    Raises
    ------
    MlflowException
        400 where that is not empty.

    """
    try:
        rows = list(csv.reader(io.StringIO(text)))
    except csv.Error:
        return text  # MLflow tells what is wrong
    width = len(rows[0]) if rows else 0
    if all(len(row) <= width for row in rows):
        return text
    for number, row in enumerate(rows):
        if any(map(str.strip, row[width:])):
            what = f"row {number} has {len(row)} values, the header {width} names. Fix: send as many values as names"
            raise MlflowException(what, error_code=BAD_REQUEST)
    cut = io.StringIO()
    csv.writer(cut).writerows(row[:width] for row in rows)
    return cut.getvalue()


def told(message: str, columns: list[Any]) -> str:
    """Return an error of MLflow's as one line: what, where and how to mend it."""
    text = WITHIN.sub("", LEAVINGS.sub("", message))
    missing = MISSING.search(text)
    if missing:
        text = f"missing column {missing[1]}. Fix: send rows with {', '.join(columns)}"
    what, _, fix = " ".join(text.split()).partition(" Fix: ")
    ending = f". Fix: {fix or (PARAMS if 'arameters ' in what[:20] else FORMS)}"
    what = what.rstrip(".")
    return (what if len(what) + len(ending) <= MOST else f"{what[: MOST - len(ending) - 3]}...") + ending
