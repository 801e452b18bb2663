"""What scoring adds to a file by the kind of the model's task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tipcast.data.taxi.dataset import Taxi
from tipcast.scoring.worker import Work, with_predictions
from tipcast.tasks.base import Task

THREE = ("blue", "green", "red")
KEPT = pa.table({"row": [0, 1, 2]})
BAD = np.array([False, False, True])


def work(kind: str, classes: tuple[str, ...] = ()) -> Work:
    task = Task("asked", kind, ("passenger_count",), classes=classes)
    threshold = 0.5 if kind == "classification" else None
    return Work(Taxi(), task, threshold, None, "named", None, "zstd", {}, None)


@pytest.mark.parametrize(
    ("kind", "classes", "predicted", "expected"),
    [
        (
            "classification",
            ("no", "yes"),
            [0.25, 0.5, 0.75],
            {"probability": ([0.25, 0.5, None], "double"), "prediction": ([0, 1, None], "int8")},
        ),
        (
            "multiclass",
            THREE,
            [[0.5, 0.25, 0.25], [0.125, 0.125, 0.75], [0, 1, 0]],
            {
                "probability_blue": ([0.5, 0.125, None], "double"),
                "probability_green": ([0.25, 0.125, None], "double"),
                "probability_red": ([0.25, 0.75, None], "double"),
                "prediction": (["blue", "red", None], "string"),
            },
        ),
        ("regression", (), [1.5, -2.0, 7.0], {"prediction": ([1.5, -2.0, None], "double")}),
        (
            "clustering",
            (),
            [[2, 0.5], [0, 1.25], [1, 9]],
            {"cluster": ([2, 0, None], "int32"), "distance": ([0.5, 1.25, None], "double")},
        ),
    ],
)
def test_columns_of_each_kind(
    kind: str, classes: tuple[str, ...], predicted: Any, expected: dict[str, tuple[list[Any], str]]
) -> None:
    made = with_predictions(KEPT, np.array(predicted, dtype=np.float32), BAD, work(kind, classes))
    assert made.column_names == ["row", *expected, "model_name", "model_version"]
    for name, (values, type) in expected.items():
        assert made[name].to_pylist() == values
        assert made[name].type == pa.type_for_alias(type)
    assert made["model_name"].to_pylist() == ["named"] * 3
    assert made["model_version"].null_count == 3
