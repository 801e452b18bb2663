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
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST

SERVER = "mlflow.pyfunc.scoring_server"
MOST = 400
"""Characters of an error."""
FORMS = 'send text/csv with a header, or JSON as {"dataframe_split": {"columns": [...], "data": [...]}}'
MISSING = re.compile(r"Model is missing inputs \[([^\]]*)\]")
LEAVINGS = re.compile(r"\s*(?:\nInput:|IMPORTANT: The MLflow).*", re.DOTALL)
"""What MLflow adds to its errors: the input once more, and the history of its formats."""
WITHIN = re.compile(r"Failed to (?:predict|enforce schema of) data .*Error: ", re.DOTALL)
"""What MLflow puts before the error: the input as pandas prints it."""


def teach() -> None:
    """Let a server that runs in this process read CSV and tell what is wrong in one line; elsewhere nothing is done."""
    server = sys.modules.get(SERVER)
    answer = getattr(server, "invocations", None)
    if answer is None or getattr(answer, "tipcast", False):
        return

    def invocations(data: Any, content_type: Any, model: Any, input_schema: Any) -> Any:
        if "tipcast" not in (model.metadata.metadata or {}):
            return answer(data, content_type, model, input_schema)
        is_csv = str(content_type).partition(";")[0].strip() == "text/csv"
        try:
            found = answer(even(data) if is_csv else data, str(content_type), model, None if is_csv else input_schema)
        except MlflowException as problem:
            problem.message = told(problem.message, input_schema.required_input_names())
            problem.json_kwargs = {}  # the traceback
            raise
        return found._replace(response=found.response.replace("NaN", "null"))  # JSON knows no NaN

    invocations.tipcast = True  # type: ignore[attr-defined]
    server.invocations = invocations  # type: ignore[union-attr]


def even(data: bytes | str) -> bytes | str:
    """Return CSV without what is beyond the header's columns: pandas would take the first column for row labels.

    Raises
    ------
    MlflowException
        400 where that is not empty.

    """
    try:
        text = data.decode() if isinstance(data, bytes) else data
        rows = list(csv.reader(io.StringIO(text)))
    except (UnicodeDecodeError, csv.Error):
        return data  # MLflow tells what is wrong
    width = len(rows[0]) if rows else 0
    if all(len(row) <= width for row in rows):
        return data
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
    ending = f". Fix: {fix or FORMS}"
    what = what.rstrip(".")
    return (what if len(what) + len(ending) <= MOST else f"{what[: MOST - len(ending) - 3]}...") + ending
