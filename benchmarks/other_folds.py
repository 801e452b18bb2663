"""Folds of a training, held against scikit-learn's `cross_validate` of the same rows, and against
what no fold may do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from sklearn.model_selection import cross_validate

from by_sklearn import Side, estimator_of, judged, told_by, weights_of_fit
from package_tables import Table
from score_ways import scores_of

FOLDS = 5
LINE = re.compile(r"^\| \d+ \| ([\d,]+) \| [\d,]+ \| ", re.MULTILINE)
"""A fold's line of the run's note: its training rows."""
RowNumbers = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Folds:
    """What a run tells of its folds."""

    predictions: pd.DataFrame
    """Of each row that a fold tests: ``row``, its number in the file, ``fold``, ``target`` and
    scores.
    """
    metrics: dict[str, list[float]]
    """Metric -> its value in each fold."""
    train_rows: list[int]
    """Rows that each fold's model has learned from."""


def read_folds(client: mlflow.MlflowClient, run_id: str, folder: Path) -> Folds:
    """Read what a run has recorded of its folds."""
    file = client.download_artifacts(run_id, "folds/predictions.parquet", str(folder))
    run = client.get_run(run_id)
    names = [name for name in run.data.metrics if name.startswith("folds/")]
    values = {}
    for name in names:
        history = sorted(client.get_metric_history(run_id, name), key=lambda entry: entry.step)
        values[name.removeprefix("folds/")] = [entry.value for entry in history]

    lines = LINE.findall(run.data.tags["mlflow.note.content"])
    return Folds(pd.read_parquet(file), values, [int(rows.replace(",", "")) for rows in lines])


def splits_of(
    table: Table, side: Side, predictions: pd.DataFrame
) -> list[tuple[RowNumbers, RowNumbers]]:
    """Return the places among the training rows of those that each fold may learn from, and of
    those that it tests.
    """
    place = pd.Series(np.arange(len(side.rows)), side.rows.index)
    splits = []
    for fold in range(1, FOLDS + 1):
        numbers = predictions.loc[predictions["fold"] == fold, "row"]
        tested = place[numbers].to_numpy()
        learned = np.setdiff1d(place, tested)
        if table.time:
            times = side.rows[table.time].to_numpy()
            learned = np.flatnonzero(times < times[tested].min())
        splits.append((learned, tested))

    return splits


def by_cross_validate(
    table: Table,
    kind: str,
    manifest: dict[str, Any],
    side: Side,
    splits: Sequence[tuple[RowNumbers, RowNumbers]],
) -> dict[str, list[float]]:
    """Return the metrics of each fold of scikit-learn's `cross_validate`."""
    estimator = estimator_of(table, kind, manifest, side.x)
    classes = side.y.nunique()

    def score(fitted: Any, x: pd.DataFrame, y: pd.Series) -> dict[str, float]:
        weight = None if side.weight is None else side.weight[x.index]
        return judged(kind, y, told_by(fitted, x, kind, classes), weight)

    found = cross_validate(
        estimator,
        side.x,
        side.y,
        cv=splits,
        scoring=score,
        params=weights_of_fit(estimator, side.weight),
        error_score="raise",
    )
    return {
        name.removeprefix("test_"): values.tolist()
        for name, values in found.items()
        if name.startswith("test_")
    }


def by_predictions(kind: str, side: Side, predictions: pd.DataFrame) -> dict[str, list[float]]:
    """Return scikit-learn's metrics of what each fold's model has told of its test rows."""
    found: dict[str, list[float]] = {}
    for _, own in predictions.groupby("fold"):
        weight = None if side.weight is None else side.weight[own["row"]]
        for name, value in judged(kind, side.y[own["row"]], scores_of(own), weight).items():
            found.setdefault(name, []).append(value)
    return found


def broken(
    table: Table,
    folds: Folds,
    train: Side,
    test: Side,
    splits: Sequence[tuple[RowNumbers, RowNumbers]],
) -> dict[str, int]:
    """Return how many rows or groups are where none may be: 0 each.

    A model does not tell which rows it has learned from, but their number: it is that of the rows
    that it may learn from.
    """
    rows = folds.predictions["row"]
    may_learn = [len(learned) for learned, _ in splits]
    too_many = sum(abs(own - most) for own, most in zip(folds.train_rows, may_learn, strict=True))
    found = {
        "rows_on_two_sides": int(rows.duplicated().sum()),
        "rows_learned_apart": too_many,
        "targets_of_other_rows": other_targets(table, folds.predictions, train),
    }

    if table.time:
        found["rows_later_than_tests"] = later_rows(table, folds.predictions, train)
    if table.group:
        fold_of = folds.predictions["fold"].set_axis(rows)
        groups = train.rows.loc[rows, table.group]
        in_folds = fold_of.groupby(groups).nunique()
        both = set(train.rows[table.group]) & set(test.rows[table.group])
        found["groups_in_two_folds"] = int((in_folds > 1).sum())
        found["groups_on_two_sides"] = len(both)

    return found


def other_targets(table: Table, predictions: pd.DataFrame, train: Side) -> int:
    """Return how many predictions have another target than the row of their number."""
    numbers = predictions["row"]
    told = predictions["target"]
    if told.dtype.kind in "if":
        return int((~np.isclose(told, train.y[numbers], rtol=1e-6)).sum())
    return int((told.to_numpy() != train.rows.loc[numbers, table.target].astype(str)).sum())


def later_rows(table: Table, predictions: pd.DataFrame, train: Side) -> int:
    """Return how many rows of earlier folds are not before the first test row of a fold."""
    time = train.rows.loc[predictions["row"], table.time].set_axis(predictions.index)
    count = 0
    for fold in range(2, FOLDS + 1):
        begins = time[predictions["fold"] == fold].min()
        count += int((time[predictions["fold"] < fold] >= begins).sum())
    return count
