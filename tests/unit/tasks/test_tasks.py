"""Tasks: the shipped ones on trips whose targets are known, and a user's own."""

import importlib.metadata
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tipcast.config.compose import compose, to_object
from tipcast.config.errors import TipcastError
from tipcast.config.schema import TaskSpec
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.tasks import base
from tipcast.tasks.base import Task, from_manifest
from tipcast.tasks.kinds import REGRESSION
from tipcast.tasks.make import make_task

MINUTE = 60_000_000
NULL = np.iinfo(np.int64).min
TRIPS: dict[str, Any] = {
    "pickup": np.array([0, 0, 0, 0, NULL]),
    "dropoff": np.array([0, 10 * MINUTE, 60 * MINUTE, 61 * MINUTE, MINUTE]),
    "fare_amount": np.array([10.0, 10.0, 10.0, 10.0, 10.0]),
    "tip_amount": np.array([2.0, 2.01, 3.0, 0.0, 5.0]),
    "payment_type": np.array([1, 1, 2, 1, 1]),
}


def shipped(name: str, *words: str) -> Task:
    """A task of conf/task, for trips."""
    (composed,) = compose("train", [f"task={name}", *words])
    return make_task(to_object(composed.config).task, Taxi())


ANSWERS: list[tuple[str, str, list[float] | None]] = [
    ("high_tip", "classification", [0, 1, 1, 0, 1]),
    ("high_tip_card", "classification", [0, 1, -1, 0, 1]),
    ("tip_amount", "regression", [2.0, 2.01, np.nan, 0.0, 5.0]),
    ("duration", "regression", [np.nan, 10.0, 60.0, np.nan, np.nan]),
    ("clusters", "clustering", None),
]


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("duration", "duration (minutes)"),
        ("tip_amount", "tip_amount (dollars)"),
        ("high_tip", "high_tip"),
        ("clusters", ""),
    ],
)
def test_the_name_of_a_target_has_its_unit(name: str, target: str) -> None:
    assert shipped(name).target_name == target


def test_a_column_is_called_by_its_name_without_a_unit() -> None:
    """Also one that has the name of a function whose unit is known."""
    assert Task("target", REGRESSION, ("a",), columns=("duration",)).target_name == "duration"


@pytest.mark.parametrize(("name", "kind", "expected"), ANSWERS)
def test_answers_of_trips_are_those_of_the_saved_task(
    name: str, kind: str, expected: list[float] | None
) -> None:
    task = shipped(name)
    assert task.kind.name == kind
    again = from_manifest(task.to_manifest(), task.features, task.description)
    assert (again.name, again.kind.name, again.classes, again.columns) == (
        task.name,
        kind,
        task.classes,
        task.columns,
    )
    columns = {column: TRIPS[column] for column in task.columns}
    for one in (task, again):
        with np.errstate(all="ignore"):
            found = one.target(columns, np)
        if expected is None:
            assert found is None
            assert "zone_pair" not in one.features, "of use as a category alone"
        else:
            np.testing.assert_array_equal(np.asarray(found, dtype=float), expected)


def test_whole_numbers_below_zero_are_values() -> None:
    task = Task("target", REGRESSION, ("a",), (), (), ("balance",))
    found = task.target({"balance": np.array([-500, 3])}, np)
    assert found.dtype == np.float64, "of whole numbers those below 0 would have no target"
    np.testing.assert_array_equal(found, [-500, 3])


def test_no_column_of_the_answer_is_a_feature_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_TARGETS", {"dear": lambda columns, xp: columns["price"] > 9})
    table = SimpleNamespace(features=("price", "size"), nominal=())
    spec = TaskSpec(
        name="mine",
        kind="classification",
        function="dear",
        columns=["price"],
        features=None,
        validation=0,
    )
    assert make_task(spec, table).features == ("size",)


def far(columns: Any, xp: Any, *, miles: float) -> Any:
    """Whether a trip is far."""
    return columns["trip_distance"] > miles


def far_task(**settings: Any) -> TaskSpec:
    """A user's task."""
    spec = {
        "name": "far",
        "kind": "classification",
        "function": "far",
        "columns": ["trip_distance"],
        "validation": 0.1,
    }
    return TaskSpec(**spec | {"params": {"miles": 5.0}, "features": ["pickup_hour"]} | settings)


def test_a_function_that_python_registers_or_an_installed_package_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def entry_points(group: str, name: str) -> list[Any]:
        assert group == "tipcast.targets"
        return [SimpleNamespace(name="far", load=lambda: far)] if name == "far" else []

    for install in (
        lambda: base.register("far", far),
        lambda: monkeypatch.setattr(importlib.metadata, "entry_points", entry_points),
    ):
        monkeypatch.setattr(base, "_TARGETS", {})
        install()
        task = make_task(far_task(), Taxi())
        assert task.classes == ("0", "1")
        # as in another process, which gets the task with its function
        monkeypatch.setattr(base, "_TARGETS", {})
        assert task.target({"trip_distance": np.array([1.0, 9.0])}, np).tolist() == [False, True]


def test_what_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_TARGETS", {"far": far})
    for key, settings in [
        *(("task.function", {"function": name}) for name in ("os.getcwd", "builtins.exec", "near")),
        ("task.kind", {"kind": None}),
        ("task.params", {"params": {"near": 1}}),
        ("task.classes", {"kind": "multiclass"}),
        ("task.features", {"features": []}),
        ("task.features", {"features": ["pickup_hour", "pickup_hour"]}),
        ("task.features", {"features": ["tip"]}),
        ("task.categorical", {"categorical": ["PULocationID"]}),
        ("task.target", {"function": None, "columns": [], "params": {}}),
        ("task.columns", {"function": None}),
        ("task.threshold", {"function": None, "columns": [], "threshold": 0.2}),
        ("task.target", {"target": "tip_amount"}),
    ]:
        with pytest.raises(TipcastError) as caught:
            make_task(far_task(**settings), Taxi())
        assert caught.value.where == key, settings
        assert (
            key != "task.function"
            or "C003" in str(caught.value)
            and "unknown target function" in str(caught.value)
        )
