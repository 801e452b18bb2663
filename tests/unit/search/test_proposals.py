"""Spaces, and mistakes in them; proposals: seeded, in order, independent of everything else."""

import contextlib
import math
import random as chance
from dataclasses import dataclass
from typing import Any

import pytest
from tests.conftest import shipped_model as model

from tipcast.config.errors import TipcastError
from tipcast.config.schema import SearchSpec
from tipcast.search.proposals import (
    check_space,
    grid,
    importance,
    merged_space,
    parse_space,
    points,
    random,
    searcher,
)
from tipcast.search.trial import Objective, Proposal, TrialResult

AUC = Objective("study", "auc", maximize=True)
SPACE = merged_space(model("xgboost"), {}, alone=False)
SMALL = parse_space({"a": [1, 2, 3], "b": {"int": [0, 1]}})
# too many points to list them
LARGE = parse_space({"a": {"int": [1, 100]}, "b": {"int": [1, 101]}})


def ended(number: int, params: Any, auc: float) -> TrialResult:
    return TrialResult(number, params, auc, {"auc": auc}, {}, "w", 1)


@pytest.mark.parametrize(
    ("space", "trials", "number"),
    [(SPACE, 40, 40), (SMALL, 100, 6), (LARGE, 2000, 2000)],
    ids=["40", "6", "2000"],
)
def test_random_trials_come_once(
    space: Any, trials: int, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    drawn = random(SearchSpec("random", trials), space, 4)
    assert [proposal.number for proposal in drawn] == list(range(number))
    assert len({repr(proposal.params) for proposal in drawn}) == number
    assert (f"only {number} distinct points exist" in caplog.text) == (number < trials)


@pytest.mark.parametrize(
    ("space", "trials"),
    [(SPACE, 40), (SMALL, 100), (LARGE, 2000)],
    ids=["40", "6", "2000"],
)
def test_a_longer_random_search_begins_with_the_trials_of_a_shorter(
    space: Any, trials: int
) -> None:
    drawn = random(SearchSpec("random", trials), space, 4)
    assert random(SearchSpec("random", 4), space, 4) == drawn[:4]
    assert random(SearchSpec("random", 4), space, 5) != drawn[:4], "of another seed"


def test_random_trials_begin_with_the_baseline() -> None:
    """Also outside the space, and where it leaves all to the library."""
    others = [Proposal(p.number + 1, p.params) for p in random(SearchSpec("random", 8), SPACE, 4)]
    for params in ({"learning_rate": 9.0}, dict[str, Any]()):
        assert random(SearchSpec("random", 9), SPACE, 4, params) == [Proposal(0, params), *others]
    for a, number in ((2, 6), (7, 7)):  # inside and outside of a small space
        drawn = random(SearchSpec("random", 100), SMALL, 0, {"a": a, "b": 1})
        assert drawn[0].params == {"a": a, "b": 1}
        assert len(drawn) == len({repr(p.params) for p in drawn}) == number


def quality(params: Any) -> float:
    return 0.6 - 0.01 * abs(params["max_depth"] - 9) - 0.1 * abs(params["subsample"] - 0.8)


def propose_all(
    trials: int,
    at_once: int,
    known: Any = None,
    *,
    objective: Objective = AUC,
    baseline: Any = None,
) -> list[Proposal]:
    """Run a search of so many slots whose trials end in any order; every fifth one fails."""
    sign = 1 if objective.maximize else -1
    draw = chance.Random(at_once)
    tpe = searcher(
        SearchSpec("tpe", trials, max_concurrent=4), SPACE, 3, objective, known or {}, baseline
    )
    running: list[Proposal] = []
    proposed: list[Proposal] = []
    while True:
        while len(running) < at_once and (proposal := tpe.next()):
            proposed.append(proposal)
            running.append(proposal)
        if not running:
            return proposed
        assert len(running) <= 4, "no more at once than search.max_concurrent"
        proposal = running.pop(draw.randrange(len(running)))
        tpe.tell(
            proposal.number, None if proposal.number % 5 == 4 else sign * quality(proposal.params)
        )


@dataclass(frozen=True)
class Search:
    """A search of 40 trials by one worker, from parameters that may lie outside the space."""

    baseline: dict[str, Any]
    proposals: list[Proposal]


@pytest.fixture(
    scope="module",
    params=[{}, {"gamma": 9.0, "colsample_bytree": "all"}],
    ids=["inside", "partly outside"],
)
def alone(request: pytest.FixtureRequest) -> Search:
    baseline = {**propose_all(1, 1)[0].params, "max_depth": 6, **request.param}
    return Search(baseline, propose_all(40, 1, baseline=baseline))


def test_tpe_begins_with_the_baseline(alone: Search) -> None:
    assert [proposal.number for proposal in alone.proposals] == list(range(40))
    assert alone.proposals[0].params == alone.baseline


@pytest.mark.parametrize("at_once", [3, 16])
def test_tpe_proposes_the_same_for_any_number_of_workers(alone: Search, at_once: int) -> None:
    assert propose_all(40, at_once, baseline=alone.baseline) == alone.proposals


def test_tpe_proposes_the_same_where_less_is_better(alone: Search) -> None:
    """Of the same scores with another sign."""
    less = Objective("study", "rmse", maximize=False)
    assert propose_all(40, 2, objective=less, baseline=alone.baseline) == alone.proposals


def test_tpe_learns_from_its_trials(alone: Search) -> None:
    qualities = [quality(proposal.params) for proposal in alone.proposals]
    assert max(qualities[20:]) >= max(qualities[:10])


def test_tpe_goes_on_with_the_trials_that_are_missing(alone: Search) -> None:
    whole = alone.proposals
    known = {
        p.number: ended(p.number, p.params, quality(p.params))
        for p in whole[:24]
        if p.number % 5 != 4
    }
    del known[15], known[22]
    rest = propose_all(40, 3, known, baseline=alone.baseline)
    assert [proposal.number for proposal in rest] == [4, 9, 14, 15, 19, 22, *range(24, 40)]
    assert rest == [whole[proposal.number] for proposal in rest]


def random_values(form: Any) -> list[Any]:
    """Draw 200 values of one parameter."""
    space = parse_space({"p": form})
    return [proposal.params["p"] for proposal in random(SearchSpec("random", 200), space, 0)]


BOUNDED = pytest.mark.parametrize(
    ("form", "kind"),
    [
        ({"int": [1, 3]}, int),
        ({"int_log": [3, 300]}, int),
        ({"log": [0.02, 0.3]}, float),
        ({"float": [0.1, 0.7]}, float),
    ],
)
"""Forms of a parameter between two bounds, and the type of its values."""


@BOUNDED
def test_draws_stay_within_bounds(form: dict[str, list[Any]], kind: type) -> None:
    ((low, high),) = form.values()
    values = random_values(form)
    assert low <= min(values) < max(values) <= high


@BOUNDED
def test_draws_are_of_one_type(form: dict[str, list[Any]], kind: type) -> None:
    assert {type(value) for value in random_values(form)} == {kind}


def test_half_of_logarithmic_draws_are_below_the_middle_of_the_logarithms() -> None:
    assert sorted(random_values({"log": [1e-9, 1e-3]}))[100] == pytest.approx(1e-6, rel=2)


def test_draws_from_a_list_are_its_values_of_any_type() -> None:
    assert set(random_values([6, "sqrt", None, True])) == {6, "sqrt", None, True}
    assert sorted(random_values([[50], [50, 20]])) == [[50], [50, 20]]


def test_a_parameter_that_is_set_to_nothing_leaves_the_space() -> None:
    assert parse_space({"a": None, "b": [1]}).keys() == {"b"}


def test_the_parameter_that_decides_the_score_has_most_importance() -> None:
    trials = [
        ended(p.number, p.params, p.params["max_depth"] + 0.1 * p.params["subsample"])
        for p in random(SearchSpec("random", 30), SPACE, 3)
    ]
    shares = importance(trials, SPACE, AUC)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["max_depth"] > 0.8
    assert set(shares) == set(SPACE)
    assert importance(trials[:4], SPACE, AUC) == {}, "of so few trials nothing is known"


def test_nothing_has_importance_where_all_scores_are_equal() -> None:
    tried = random(SearchSpec("random", 30), SPACE, 3)
    trials = [ended(proposal.number, proposal.params, 0.5) for proposal in tried]
    assert importance(trials, SPACE, AUC) == {}


@pytest.mark.parametrize("trials", [None, 6])
def test_a_grid_has_all_points_in_order(trials: int | None) -> None:
    space = parse_space({"b": [10, 20], "a": [1, 2, 3]})
    proposals = grid(SearchSpec("grid", trials), space)
    assert [tuple(proposal.params.values()) for proposal in proposals] == [
        (1, 10),
        (1, 20),
        (2, 10),
        (2, 20),
        (3, 10),
        (3, 20),
    ]


def test_a_grid_of_more_points_than_trials_is_refused() -> None:
    space = parse_space({"b": [10, 20], "a": [1, 2, 3]})
    with pytest.raises(TipcastError, match="C003.*6 points"):
        grid(SearchSpec("grid", 5), space)


@pytest.mark.parametrize(
    ("form", "number", "expected"),
    [
        ({"int": [4, 12]}, 3, (4, 8, 12)),
        ({"int": [4, 5]}, 3, (4, 5)),
        ({"int_log": [50, 800]}, 3, (50, 200, 800)),
        ({"int_log": [1, 4]}, 9, (1, 2, 3, 4)),
        ({"log": [0.01, 1.0]}, 3, (0.01, pytest.approx(0.1), 1.0)),
        ({"float": [0.5, 0.5]}, 3, (0.5,)),
        ([3, 1], 9, (3, 1)),
    ],
)
def test_points_of_an_axis_are_spread_evenly(
    form: Any, number: int, expected: tuple[float, ...]
) -> None:
    assert points(parse_space({"p": form})["p"], number) == expected


def test_the_shipped_space_of_xgboost_has_three_points_an_axis() -> None:
    space = merged_space(model("xgboost"), {}, alone=True)
    assert math.prod(len(points(axis, 3)) for axis in space.values()) == 3**6


@pytest.mark.parametrize(
    "form",
    [
        [],
        [1, 2, 1],
        [{"int": [1, 2]}],
        7,
        {"int": [12, 4]},
        {"int": [4.5, 8]},
        {"int": [True, 8]},
        {"int": 4},
        {"log": [0, 1]},
        {"log": [-1, 1]},
        {"int_log": [0, 9]},
        {"int_log": [1.5, 9]},
        {"float": [0, float("inf")]},
        {"float": ["a", "b"]},
        {"float": [1, 2, 3]},
        {"normal": [0, 1]},
        {"int": [1, 2], "float": [1, 2]},
    ],
)
def test_forms_that_cannot_be(form: Any) -> None:
    with pytest.raises(TipcastError) as caught:
        parse_space({"max_depth": form})
    code, where, what, fix = caught.value.args
    assert (code, where, what) == ("C003", "search.space.max_depth", f"cannot be searched: {form}")
    assert fix.endswith(", each value once, bounds in order, those of logarithms above 0")


@pytest.mark.parametrize(
    ("name", "given_space", "code", "words"),
    [
        ("xgboost", {}, "", []),
        ("random_forest", {}, "", []),
        (
            "xgboost",
            {"max_dept": [4, 6]},
            "C001",
            ["search.space.max_dept", "did you mean search.space.max_depth?"],
        ),
        ("xgboost", {"subsample": [0.5, 1.5]}, "C003", ["search.space.subsample", "1.5"]),
        ("xgboost", {"learning_rate": {"float": [0, 1]}}, "C003", ["search.space.learning_rate"]),
        (
            "xgboost",
            {"max_depth": {"float": [4, 12]}},
            "C003",
            ["search.space.max_depth", "expect int"],
        ),
        (
            "random_forest",
            {"min_samples_leaf": {"log": [1, 64]}},
            "C003",
            ["search.space.min_samples_leaf", "an int"],
        ),
        (
            "random_forest",
            {"max_features": ["sqrt", "root"]},
            "C003",
            ["search.space.max_features", "root"],
        ),
        ("kmeans", {"n_clusters": None}, "C003", ["has no parameters to search"]),
    ],
)
def test_what_the_model_refuses(name: str, given_space: Any, code: str, words: list[str]) -> None:
    """Nothing of the models' own spaces."""
    spec = model(name)
    with pytest.raises(TipcastError, match=code) if code else contextlib.nullcontext() as caught:
        check_space(spec, merged_space(spec, given_space, alone=False), "cpu", ())
    assert [word for word in words if word not in str(caught.value)] == []
