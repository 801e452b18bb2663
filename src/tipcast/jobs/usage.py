"""Python code that loads a saved model and predicts rows, for the page of a registered version."""

import json

from tipcast.datasets.csv_part import CsvPart
from tipcast.datasets.feather import FeatherPart
from tipcast.datasets.json_lines import JsonPart
from tipcast.datasets.listing import Listing
from tipcast.datasets.parquet import ParquetPart
from tipcast.datasets.parts import Part

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


def usage(uri: str, trained_on: Listing) -> str:
    """Return code that reads rows as the training files are written, and predicts them.

    For rows that are made, not read from files, it predicts the model's input example. ``uri`` is
    the model's, as ``models:/m-...``.
    """
    read = _reading(trained_on.parts[0])
    if read:
        return OF_FILES.format(uri=uri, read=read)
    return OF_EXAMPLE.format(uri=uri)


def _reading(part: Part) -> str:
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
        return f'pd.read_csv("rows.csv"{options})'
    return ""


def _options(**options: str) -> str:
    """Return further arguments of a call, without those that have the usual value."""
    unusual = {name: value for name, value in options.items() if value != USUAL[name]}
    return "".join(f", {name}={json.dumps(value)}" for name, value in unusual.items())
