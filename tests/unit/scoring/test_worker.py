"""The columns that scoring adds, for every kind of task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tipcast.datasets.made import Blobs
from tipcast.evaluation.base import KINDS
from tipcast.scoring.worker import Work, with_predictions
from tipcast.scoring.writing import added_columns
from tipcast.tasks.base import Task

STAMP = {"model_name": ["m", "m", "m"], "model_version": ["7", "7", "7"]}
CASES: dict[str, tuple[tuple[str, ...], Any, dict[str, list[Any]]]] = {
    "classification": (
        ("no", "yes"),
        np.float32([0.25, 0.75, 0.5]),
        {"probability": [0.25, None, 0.5], "prediction": [0, None, 1]},
    ),
    "multiclass": (
        ("a", "b", "c"),
        np.float32([[0.5, 0.25, 0.25], [0, 0, 1], [0.25, 0.5, 0.25]]),
        {
            "probability_a": [0.5, None, 0.25],
            "probability_b": [0.25, None, 0.5],
            "probability_c": [0.25, None, 0.25],
            "prediction": ["a", None, "b"],
        },
    ),
    "regression": ((), np.float32([1.5, 2, -3]), {"prediction": [1.5, None, -3.0]}),
    "clustering": (
        (),
        np.float32([[4, 0.5], [1, 2], [0, 8]]),
        {"cluster": [4, None, 0], "distance": [0.5, None, 8.0]},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_columns_by_kind(kind: str) -> None:
    classes, predicted, expected = CASES[kind]
    task = Task("t", kind, ("x0",), classes=classes)
    threshold = 0.5 if kind == "classification" else None
    work = Work(Blobs(1), task, threshold, None, "m", "7", "zstd", "", {}, "", None)
    bad = np.array([False, True, False])
    for kept in (pa.table({"id": [1, 2, 3]}), pa.table({})):
        made = with_predictions(kept, predicted, bad, work)
        assert made.to_pydict() == {**kept.to_pydict(), **expected, **STAMP}
        assert tuple(made.column_names[kept.num_columns :]) == added_columns(task)
    with pytest.raises(ValueError, match="2 rows were kept and 3 scored"):
        with_predictions(pa.table({"id": [1, 2]}), predicted, bad, work)
