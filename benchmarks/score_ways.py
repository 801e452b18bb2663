"""Every way to score the rows of a file by a registered model, and how far two ways are apart."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness import tipcast
from serving import served

BATCH = 20_000
"""Rows of a request."""
TIMEOUT_S = 120


def of_pandas(file: Path) -> pd.DataFrame:
    """Return a file's rows as anyone reads them."""
    return pd.read_csv(file) if file.suffix == ".csv" else pd.read_parquet(file)


def matrix(predictions: Any) -> np.ndarray[Any, Any]:
    """Return what a model tells of each row as doubles, (rows, 1) or (rows, classes)."""
    values = np.asarray(predictions, dtype=np.float64)
    return values.reshape(len(values), -1)


def asked(port: int, body: bytes, form: str) -> pd.DataFrame:
    """Return a server's answer."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/invocations", body, {"Content-Type": form}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return pd.DataFrame(json.load(answer)["predictions"])


def by_server(uri: str, store: str, rows: pd.DataFrame) -> dict[str, np.ndarray[Any, Any]]:
    """Return what a server tells of rows sent as CSV and as JSON."""
    found: dict[str, list[pd.DataFrame]] = {"server, CSV": [], "server, JSON": []}
    with served(uri, store) as port:
        for start in range(0, len(rows), BATCH):
            part = rows.iloc[start : start + BATCH]
            split = part.astype(object).where(part.notna(), None).to_dict("split", index=False)
            text = part.to_csv(index=False).encode()
            found["server, CSV"].append(asked(port, text, "text/csv"))
            body = json.dumps({"dataframe_split": split}).encode()
            found["server, JSON"].append(asked(port, body, "application/json"))
    return {way: matrix(pd.concat(answers)) for way, answers in found.items()}


def by_score(uri: str, file: Path, folder: Path) -> np.ndarray[Any, Any]:
    """Return what `tipcast score` writes."""
    output = folder / f"scored-{file.suffix[1:]}"
    tipcast(
        "score", f"model_uri={uri}", f"input={file}", f"output={output}", "keep=[]", folder=folder
    )
    return scores_of(pd.read_parquet(output))


def scores_of(scored: pd.DataFrame) -> np.ndarray[Any, Any]:
    """Return what a model tells of the rows of a scored file, as ``matrix``."""
    told = [name for name in scored if name.startswith("probability")] or ["prediction"]
    return matrix(scored[told])


def furthest(ways: dict[str, np.ndarray[Any, Any]]) -> float:
    """Return the largest difference between two ways, relative to the largest value; NaN where one
    lacks a value.
    """
    values = np.stack(list(ways.values()))
    lacking = np.isnan(values)
    if (lacking != lacking[0]).any():
        return float("nan")
    return float(np.nanmax(np.ptp(values, axis=0)) / max(1.0, np.nanmax(np.abs(values))))


def every_way(
    uri: str, store: str, model: Any, files: Mapping[str, Path], folder: Path
) -> dict[str, np.ndarray[Any, Any]]:
    """Return what is told of a file's rows in each way; ``files`` are its forms."""
    ways = {}
    for form, file in files.items():
        ways[f"tipcast score, {form}"] = by_score(uri, file, folder)
        ways[f"the model in Python, {form}"] = matrix(model.predict(of_pandas(file)))
    return ways | by_server(uri, store, of_pandas(files["csv"]))
