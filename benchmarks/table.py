"""Print README's table of results from the committed result files: `python benchmarks/table.py`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from harness import RESULTS

Result = dict[str, Any]


def _ratio(at: int = 0) -> Callable[[Result], str]:
    return lambda result: f"{result['results'][at]['ratio']:.2f} x"


def _million(number: int) -> str:
    return f"{number / 1e6:g}M"


ROWS: tuple[tuple[str, str, Callable[[Result], str]], ...] = (
    (
        "all metrics and curves of {rows} scores, against scikit-learn's `roc_auc_score` and `roc_curve`",
        "exact_auc",
        _ratio(),
    ),
    ("reading and preparing {rows} rows, against pyarrow decoding the same columns", "read_prepare", _ratio(1)),
    ("the same, against `pandas.read_parquet`", "read_prepare", _ratio()),
    ("XGBoost through Dask, {rows} rows, against `xgboost.train`", "xgboost_dask", _ratio()),
    (
        "the whole `train` job, {rows} rows, against pandas, `xgboost.train` and scikit-learn alone",
        "train_job",
        _ratio(),
    ),
    ("memory of that job, all processes", "train_job", lambda result: f"{result['facts']['peak_bytes'] / 1e9:.1f} GB"),
    (
        "a run's parameters, metrics and tags in MLflow's sqlite store",
        "tracking",
        lambda result: f"{result['facts']['ms_per_trial']['tracking.run.Run']:.0f} ms",
    ),
)
"""What is measured, result file, what the file says."""


def read(name: str) -> Result:
    """Return a result file."""
    found: Result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def times() -> str:
    """Return the table of ratios and sizes."""
    lines = ["| time or memory, two CPU cores | measured |", "|---|---|"]
    for what, name, say in ROWS:
        result = read(name)
        rows = _million(result["facts"].get("rows", 0))
        lines.append(f"| {what.format(rows=rows)} | {say(result)} |")
    return "\n".join(lines)


def aucs() -> str:
    """Return the table of test AUCs on real trips, a row for each model."""
    found = read("real_trips")["results"]
    trips = list(dict.fromkeys(result["trips"] for result in found))
    lines = [f"| test AUC | {' | '.join(trips)} |", "|---|" + "---|" * len(trips)]
    for model in dict.fromkeys(result["model"] for result in found):
        values = [result["test/auc"] for result in found if result["model"] == model]
        lines.append(f"| `{model}` | {' | '.join(f'{value:.3f}' for value in values)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(aucs(), times(), sep="\n\n")
