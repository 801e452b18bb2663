"""Spaces as yaml and the command line have them, and every mistake in them told before anything starts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tipcast.config.compose import compose, to_object
from tipcast.config.errors import TipcastError
from tipcast.search.proposals import FORMS, check_space, merged_space, parse_space, random

from .conftest import model, search


def drawn(form: Any, trials: int = 200) -> list[Any]:
    return [found.params["p"] for found in random(search("random", trials), parse_space({"p": form}), 0)]


def test_draws_stay_within_bounds_and_types() -> None:
    for form in ({"int": [1, 3]}, {"int_log": [3, 300]}, {"log": [0.02, 0.3]}, {"float": [0.1, 0.7]}):
        ((kind, (low, high)),) = form.items()
        found = drawn(form)
        assert low <= min(found) < max(found) <= high
        assert {type(value) for value in found} == {int if kind.startswith("int") else float}
    assert sorted(drawn({"log": [1e-9, 1e-3]}))[100] == pytest.approx(1e-6, rel=2), "half of them below the middle"
    assert set(drawn([6, "sqrt", None, True, 1])) == {6, "sqrt", None, True}
    assert len(drawn([True, 1])) == 2
    assert parse_space({"a": None, "b": [1]}).keys() == {"b"}


def test_points_of_a_grid() -> None:
    assert parse_space({"p": {"int": [4, 12]}})["p"].points(3) == (4, 8, 12)
    assert parse_space({"p": {"int": [4, 5]}})["p"].points(3) == (4, 5)
    assert parse_space({"p": {"int_log": [50, 800]}})["p"].points(3) == (50, 200, 800)
    assert parse_space({"p": {"int_log": [1, 4]}})["p"].points(9) == (1, 2, 3, 4)
    assert len(set(parse_space({"p": {"int_log": [1, 6]}})["p"].points(5))) >= 4
    assert parse_space({"p": {"float": [0.5, 1.0]}})["p"].points(3) == (0.5, 0.75, 1.0)
    assert parse_space({"p": {"log": [0.01, 1.0]}})["p"].points(3) == (0.01, pytest.approx(0.1), 1.0)
    assert parse_space({"p": {"float": [0.5, 0.5]}})["p"].points(3) == (0.5,)
    assert parse_space({"p": [3, 1]})["p"].points(9) == (3, 1)
    assert math.prod(len(axis.points(3)) for axis in merged_space(model("xgboost"), {}, alone=True).values()) == 3**6


@pytest.mark.parametrize(
    "form",
    [
        [], [1, 2, 1], [{"int": [1, 2]}], 7, {"int": [12, 4]}, {"int": [4.5, 8]}, {"int": [True, 8]}, {"int": 4},
        {"log": [0, 1]}, {"log": [-1, 1]}, {"int_log": [0, 9]}, {"int_log": [1.5, 9]}, {"float": [0, float("inf")]},
        {"float": ["a", "b"]}, {"float": [1, 2, 3]}, {"normal": [0, 1]}, {"int": [1, 2], "float": [1, 2]},
    ],
)  # fmt: skip
def test_forms_that_cannot_be(form: Any) -> None:
    with pytest.raises(TipcastError) as caught:
        parse_space({"max_depth": form})
    fix = f"write {FORMS}, each value once, bounds in order, those of logarithms above 0"
    assert caught.value.args == ("C003", "search.space.max_depth", f"cannot be searched: {form}", fix)


@pytest.mark.parametrize(
    ("name", "own", "code", "words"),
    [
        ("xgboost", {"max_dept": [4, 6]}, "C001", ["search.space.max_dept", "did you mean search.space.max_depth?"]),
        ("xgboost", {"subsample": [0.5, 1.5]}, "C003", ["search.space.subsample", "1.5"]),
        ("xgboost", {"learning_rate": {"float": [0, 1]}}, "C003", ["search.space.learning_rate"]),
        ("xgboost", {"max_depth": {"float": [4, 12]}}, "C003", ["search.space.max_depth", "expect int"]),
        ("random_forest", {"min_samples_leaf": {"log": [1, 64]}}, "C003", ["search.space.min_samples_leaf", "an int"]),
        ("random_forest", {"max_features": ["sqrt", "root"]}, "C003", ["search.space.max_features", "root"]),
        ("kmeans", {"n_clusters": None}, "C003", ["nothing is searched"]),
    ],
)
def test_what_the_model_refuses(name: str, own: Any, code: str, words: list[str]) -> None:
    spec = model(name)
    with pytest.raises(TipcastError) as caught:
        check_space(spec, merged_space(spec, own, alone=False), "cpu", ())
    assert caught.value.code == code, caught.value
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["xgboost", "random_forest"])
def test_the_models_own_spaces_are_right(name: str) -> None:
    spec = model(name)
    check_space(spec, merged_space(spec, {}, alone=False), "cpu", ())


def test_the_command_line_overrides_the_models_space() -> None:
    words = ["search.space.max_depth=[6,8,10]", "search.space.subsample=null", "search.space.gamma={log:[0.1,10]}"]
    from tipcast.config.arguments import to_overrides

    (composed,) = compose("sweep", to_overrides(words))
    config = to_object(composed.config)
    space = merged_space(config.model, config.search.space, alone=False)
    assert list(space) == ["colsample_bytree", "gamma", "learning_rate", "max_depth", "min_child_weight"]
    assert space["max_depth"].values == (6, 8, 10)
    assert (space["gamma"].kind, space["gamma"].low, space["gamma"].high) == ("log", 0.1, 10)
    assert list(merged_space(config.model, {"max_depth": [6, 8]}, alone=True)) == ["max_depth"]
