"""Python code that loads a saved model and predicts rows, for the page of a registered version."""

import json
import re
from collections.abc import Sequence

from tipcast.datasets.base import RawColumn, raw_columns
from tipcast.datasets.csv_cells import number_pattern
from tipcast.datasets.csv_part import CsvPart
from tipcast.datasets.feather import FeatherPart
from tipcast.datasets.json_lines import JsonPart
from tipcast.datasets.parquet import ParquetPart
from tipcast.datasets.parts import Part
from tipcast.jobs.train_plan import Plan

OF_FILES = """import mlflow
import pandas as pd

model = mlflow.pyfunc.load_model("{uri}")
rows = {read}  # a file with the columns of the training files
model.predict(rows)
"""
OF_EXAMPLE = """import mlflow

model = mlflow.pyfunc.load_model("{uri}")
rows = model.input_example  # or any DataFrame with these columns
model.predict(rows)
"""
USUAL = {"sep": ",", "decimal": ".", "encoding": "utf-8"}
"""Defaults of pandas' functions that read text files."""


def usage(uri: str, plan: Plan) -> str:
    """Return code that reads rows as the training files are written, and predicts them.

    For rows that are made, not read from files, it predicts the model's input example. ``uri`` is
    the model's, as ``models:/m-...``.
    """
    columns = raw_columns(plan.dataset, plan.task.features, plan.train.info)
    read = _reading(plan.train.parts[0], columns)
    if read:
        return OF_FILES.format(uri=uri, read=read)
    return OF_EXAMPLE.format(uri=uri)


def _reading(part: Part, columns: Sequence[RawColumn]) -> str:
    """Return the call of pandas that reads a file such as the part's; empty if there is none."""
    if isinstance(part, ParquetPart):
        return 'pd.read_parquet("rows.parquet")'
    if isinstance(part, FeatherPart):
        return 'pd.read_feather("rows.feather")'
    if isinstance(part, JsonPart):
        return f'pd.read_json("rows.jsonl", lines=True{_options(encoding=part.encoding)})'
    if isinstance(part, CsvPart):
        written = part.dialect
        options = _options(
            sep=written.separator, decimal=written.decimal, encoding=written.encoding
        )
        return f'pd.read_csv("rows.csv"{options}{_texts(columns, written.decimal)})'
    return ""


def _texts(columns: Sequence[RawColumn], decimal: str) -> str:
    """Return a further argument for columns of texts that pandas would read as numbers, such as
    ``01``; empty if there are none.
    """
    number = number_pattern(decimal)
    names = [
        json.dumps(column.spellings[0], ensure_ascii=False)
        for column in columns
        if any(re.fullmatch(number, text.strip()) for text in column.categories)
    ]
    if not names:
        return ""
    return f", dtype={{{', '.join(f'{name}: str' for name in names)}}}"


def _options(**options: str) -> str:
    """Return further arguments of a call, without those that have the usual value."""
    unusual = {name: value for name, value in options.items() if value != USUAL[name]}
    return "".join(f", {name}={json.dumps(value)}" for name, value in unusual.items())
