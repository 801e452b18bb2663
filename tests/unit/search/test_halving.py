"""Halving: which trials go on, whatever the order in which they end, and how far a resumed search
is.
"""

import random as chance
from dataclasses import replace
from typing import Any

import pytest
from tests.conftest import shipped_model as model

from tipcast.config.errors import TipcastError
from tipcast.config.schema import SearchSpec
from tipcast.search.halving import plan_rungs
from tipcast.search.proposals import merged_space, searcher
from tipcast.search.trial import Objective, Proposal, TrialResult

SPEC = SearchSpec("halving", trials=20, factor=3, min_trees=5)
RUNGS = plan_rungs(SPEC, 60)
AUC = Objective("study", "auc", maximize=True, rungs=RUNGS)
SPACE = merged_space(model("xgboost"), {}, alone=False)


def quality(proposal: Proposal) -> float:
    """Return a score that grows with the trees; some trials have equal ones."""
    params = proposal.params
    return round(0.6 - 0.01 * abs(params["max_depth"] - 9), 2) + params["n_estimators"] / 1e4


def search(
    at_once: int,
    known: dict[int, TrialResult] | None = None,
    failing: tuple[int, ...] = (),
    sampler: str = "random",
    objective: Objective = AUC,
) -> list[Proposal]:
    """Run a search of so many slots whose trials end in any order; return its trials."""
    sign = 1 if objective.maximize else -1
    draw = chance.Random(at_once)
    spec = replace(SPEC, sampler=sampler, max_concurrent=4)
    halving = searcher(spec, SPACE, 3, objective, known or {}, {"max_depth": 6})
    running: list[Proposal] = []
    proposed: list[Proposal] = []
    while True:
        while len(running) < at_once and (proposal := halving.next()):
            proposed.append(proposal)
            running.append(proposal)
        if not running:
            return proposed
        ended = running.pop(draw.randrange(len(running)))
        score = None if ended.number in failing else sign * quality(ended)
        halving.tell(ended.number, score)


def rung(proposals: list[Proposal], at: int) -> list[Proposal]:
    return [proposal for proposal in proposals if RUNGS.of(proposal.number) == at]


def best(proposals: list[Proposal], count: int) -> list[int]:
    """Return the trials of the highest scores, the first of equals."""
    ranked = sorted(proposals, key=lambda trial: (-quality(trial), trial.number))
    return [trial.number for trial in ranked[:count]]


@pytest.mark.parametrize(
    ("trials", "trees", "factor", "least", "expected"),
    [
        (32, 200, 3, 10, [(32, 22), (11, 66), (4, 200)]),
        (32, 200, 3, 1, [(32, 7), (11, 22), (4, 66), (2, 200)]),
        (32, 200, 2, 10, [(32, 12), (16, 25), (8, 50), (4, 100), (2, 200)]),
        (3, 30, 3, 10, [(3, 10), (1, 30)]),
    ],
)
def test_rungs_share_out_trials_and_trees(
    trials: int, trees: int, factor: int, least: int, expected: list[tuple[int, int]]
) -> None:
    spec = SearchSpec("halving", trials, factor=factor, min_trees=least)
    rungs = plan_rungs(spec, trees)
    assert list(zip(rungs.sizes(trials), rungs.trees, strict=True)) == expected


@pytest.mark.parametrize(("trials", "trees"), [(2, 200), (32, 29)])
def test_one_rung_alone_is_refused(trials: int, trees: int) -> None:
    with pytest.raises(TipcastError, match=r"C003.*search.min_trees.*only one rung"):
        plan_rungs(SearchSpec("halving", trials), trees)


def test_the_best_of_a_rung_go_on_with_more_trees() -> None:
    whole = search(1)
    assert [len(rung(whole, at)) for at in range(3)] == [20, 7, 3]
    for at, count in ((0, 7), (1, 3)):
        going_on = [proposal.number - 20 for proposal in rung(whole, at + 1)]
        assert going_on == best(rung(whole, at), count)


def test_a_trial_keeps_its_parameters_on_all_rungs() -> None:
    whole = {proposal.number: dict(proposal.params) for proposal in search(1)}
    for number, params in whole.items():
        assert params == whole[number % 20] | {"n_estimators": RUNGS.trees[RUNGS.of(number)]}


@pytest.mark.parametrize("sampler", ["random", "tpe"])
@pytest.mark.parametrize("at_once", [2, 4, 16])
def test_the_same_trials_go_on_for_any_number_of_workers(sampler: str, at_once: int) -> None:
    assert search(at_once, sampler=sampler) == search(1, sampler=sampler)


def test_the_same_trials_go_on_where_less_is_better() -> None:
    less = Objective("study", "rmse", maximize=False, rungs=RUNGS)
    assert search(4, objective=less) == search(1)


def test_failed_trials_do_not_go_on() -> None:
    first, second, *_ = best(rung(search(1), 0), 7)
    whole = search(3, failing=(first, second, *range(40, 60)))
    promoted = [proposal.number - 20 for proposal in rung(whole, 1)]
    assert len(promoted) == 7
    assert not {first, second} & set(promoted)


def test_a_rung_has_fewer_trials_where_few_end_well() -> None:
    whole = search(2, failing=tuple(range(2, 20)))
    assert [len(rung(whole, at)) for at in range(3)] == [20, 2, 1]


def test_a_search_ends_where_all_trials_fail() -> None:
    assert len(search(2, failing=tuple(range(20)))) == 20


@pytest.mark.parametrize("sampler", ["random", "tpe"])
@pytest.mark.parametrize("count", [1, 11, 20, 23, 27, 29, 30])
def test_a_resumed_search_makes_the_same_promotions(sampler: str, count: int) -> None:
    """With so many of its trials ended."""
    whole = search(1, sampler=sampler)
    known = {
        trial.number: TrialResult(trial.number, trial.params, quality(trial), {}, {}, "w", 1)
        for trial in whole[:count]
    }
    assert search(3, known, sampler=sampler) == whole[count:]


def test_trials_of_the_last_rung_are_ranked_first() -> None:
    trials: list[Any] = [
        TrialResult(number, {}, score, {}, {}, "w", 1)
        for number, score in ((0, 0.9), (1, 0.8), (21, 0.7), (20, 0.6), (41, 0.5))
    ]
    ranked = sorted(trials, key=AUC.rank)
    assert [trial.number for trial in ranked] == [41, 21, 20, 0, 1]
