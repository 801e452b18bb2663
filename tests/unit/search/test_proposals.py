"""Proposals: seeded, in order, independent of everything else; and what decides on the next one."""

from __future__ import annotations

from typing import Any

import pytest

from tipcast.config.errors import TipcastError
from tipcast.search.importance import importance
from tipcast.search.proposals import Halving, InTurn, Listed, Tpe, grid, grouped, ladder, random
from tipcast.search.space import merged, parse
from tipcast.search.trial import Objective, Proposal, Trial

from .conftest import AUC, model, search

SPACE = merged(model("xgboost"), {}, alone=False)


def ended(number: int, params: Any, auc: float, **more: Any) -> Trial:
    values = {"key": str(number), "phases": {}, "worker": "w", "attempt": 1, **more}
    return Trial(number=number, params=params, score=auc, metrics={"auc": auc}, **values)


def test_random_trials_are_those_of_a_shorter_search_and_more() -> None:
    few, many = (random(search("random", trials), SPACE, seed=4) for trials in (5, 40))
    assert many[:5] == few
    assert [proposal.number for proposal in many] == list(range(40))
    assert len({repr(proposal.params) for proposal in many}) == 40
    assert random(search("random", 5), SPACE, seed=5) != few


def test_random_trials_of_a_small_space_come_once(caplog: pytest.LogCaptureFixture) -> None:
    space = parse({"a": [1, 2, 3], "b": {"int": [0, 1]}})
    found = random(search("random", 100), space, 0)
    assert len(found) == len({repr(proposal.params) for proposal in found}) == 6
    assert "6 points" in caplog.text
    assert random(search("random", 4), space, 0) == found[:4]
    assert random(search("random", 4), space, 1) != found[:4]


def test_random_trials_of_a_large_finite_space_come_once() -> None:
    space = parse({"a": {"int": [1, 100]}, "b": {"int": [1, 101]}})
    found = random(search("random", 2000), space, 0)
    assert len({repr(proposal.params) for proposal in found}) == len(found) == 2000
    assert [proposal.number for proposal in found] == list(range(2000))
    assert random(search("random", 300), space, 0) == found[:300]


def test_grid() -> None:
    space = parse({"b": [10, 20], "a": [1, 2, 3]})
    found = grid(search("grid", None), space)
    assert [tuple(p.params.values()) for p in found] == [(1, 10), (1, 20), (2, 10), (2, 20), (3, 10), (3, 20)]
    assert len(grid(search("grid", 6), space)) == 6
    with pytest.raises(TipcastError, match="6 points") as caught:
        grid(search("grid", 5), space)
    assert caught.value.code == "C003"


def test_trials_that_differ_in_trees_alone_are_one_fit() -> None:
    found = grid(search("grid", None), parse({"max_depth": [6, 8], "n_estimators": [50, 100]}))
    works = grouped(found)
    assert [(work.numbers, work.sizes) for work in works] == [((0, 1), (50, 100)), ((2, 3), (50, 100))]
    listed = Listed(found, {1: ended(1, found[1].params, 0.6)}, cuts=True)
    assert [(work.numbers, work.sizes) for work in iter(listed.next, None)] == [((0,), ()), ((2, 3), (50, 100))]


def quality(params: Any) -> float:
    return 0.6 - 0.01 * abs(params["max_depth"] - 9) - 0.1 * abs(params["subsample"] - 0.8)


def asked(
    trials: int,
    at_once: int,
    known: Any = None,
    recorded: Any = None,
    *,
    first: int = 0,
    objective: Objective = AUC,
    baseline: Any = None,
) -> list[Proposal]:
    """Run a search of so many slots; the trial of a place in those that run ends next."""
    sign = 1 if objective.maximize else -1
    searcher = Tpe(SPACE, 3, objective, trials, 4, known or {}, recorded or {}, baseline)
    running: list[Any] = []
    found = []
    while True:
        while len(running) < at_once and (work := searcher.next()):
            found.append(work.proposals[0])
            running.append(work.proposals[0])
        if not running:
            return found
        assert len(running) <= 4, "no more at once than search.max_concurrent"
        proposal = running.pop(first % len(running))
        searcher.tell(ended(proposal.number, proposal.params, sign * quality(proposal.params)))


def test_tpe_proposes_the_same_for_any_number_of_workers_and_learns() -> None:
    found = asked(40, 1)
    assert [proposal.number for proposal in found] == list(range(40))
    for at_once, first in ((1, 0), (3, 0), (3, 1), (16, 0), (16, 3)):
        assert asked(40, at_once, first=first) == found, (at_once, first)
    assert max(map(quality, (p.params for p in found[20:]))) >= max(map(quality, (p.params for p in found[:10])))
    less = Objective("study", "rmse", maximize=False)
    assert asked(40, 2, objective=less) == found, "it is the same search of the same scores with another sign"


def test_tpe_goes_on_where_it_was() -> None:
    whole = asked(40, 2)
    recorded = {p.number: p.params for p in whole[:24]}
    known = {p.number: ended(p.number, p.params, quality(p.params)) for p in whole[:24] if p.number not in {15, 23}}
    rest = asked(40, 3, known, recorded)
    assert [proposal.number for proposal in rest] == [15, 23, *range(24, 40)]
    assert rest == [whole[proposal.number] for proposal in rest]
    other = {**recorded, 3: {**recorded[3], "max_depth": 4}, 15: {**recorded[15], "max_depth": 4}}
    rest = asked(40, 3, known, other)
    assert rest[0].params["max_depth"] == 4, "what was proposed stays, whoever proposed it"


@pytest.mark.parametrize("more", [{}, {"gamma": 9.0, "colsample_bytree": "all"}], ids=["inside", "partly outside"])
def test_tpe_begins_with_the_baseline(more: dict[str, Any]) -> None:
    baseline = {**asked(1, 1)[0].params, "max_depth": 6, "learning_rate": 0.1, **more}
    found = asked(30, 1, baseline=baseline)
    assert found[0].params == baseline
    for at_once, first in ((3, 1), (16, 3)):
        assert asked(30, at_once, first=first, baseline=baseline) == found
    known = {p.number: ended(p.number, p.params, quality(p.params)) for p in found[:20]}
    rest = asked(30, 3, known, {p.number: p.params for p in found[:20]}, baseline=baseline)
    assert rest == found[20:]
    without = asked(30, 1)
    early = {p.number: p.params for p in without[:20]}
    known = {number: ended(number, params, quality(params)) for number, params in early.items()}
    assert asked(30, 1, known, early, baseline=baseline) == without[20:], "what was proposed before there was one stays"


def test_a_search_at_random_begins_with_the_baseline() -> None:
    baseline = {**random(search("random", 1), SPACE, 3)[0].params, "learning_rate": 0.1}
    found = random(search("random", 9), SPACE, 4, None, baseline)
    assert found[0] == Proposal(0, baseline)
    assert found[1:] == [Proposal(p.number + 1, p.params) for p in random(search("random", 8), SPACE, 4)]
    assert random(search("random", 5), SPACE, 4, None, baseline) == found[:5]
    recorded = {p.number: p.params for p in found if p.number in {0, 1, 3}}
    assert random(search("random", 9), SPACE, 4, recorded, baseline) == found


def test_a_baseline_that_leaves_all_parameters_to_the_library() -> None:
    found = random(search("random", 4), SPACE, 4, None, {})
    assert found[0] == Proposal(0, {})
    assert found[1:] == [Proposal(p.number + 1, p.params) for p in random(search("random", 3), SPACE, 4)]


@pytest.mark.parametrize(("a", "points"), [(2, 6), (7, 7)], ids=["inside", "outside"])
def test_the_baseline_of_a_small_space(a: int, points: int) -> None:
    space = parse({"a": [1, 2, 3], "b": {"int": [0, 1]}})
    found = random(search("random", 100), space, 0, None, {"a": a, "b": 1})
    assert found[0].params == {"a": a, "b": 1}
    assert len(found) == len({repr(p.params) for p in found}) == points


def test_tpe_survives_failures() -> None:
    searcher = Tpe(SPACE, 0, AUC, 15, 2, {}, {})
    for number in range(15):
        work = searcher.next()
        assert work is not None
        if number % 2:
            searcher.fail(number)
        else:
            searcher.tell(ended(number, work.proposals[0].params, 0.5))
    assert searcher.next() is None


def test_what_was_recorded_stays() -> None:
    for space, trials in ((SPACE, 9), (parse({"a": [1, 2, 3], "b": {"int": [0, 2]}}), 9)):
        whole = random(search("random", trials), space, 0)
        recorded = {p.number: p.params for p in whole if p.number in {0, 1, 3}}
        assert random(search("random", trials), space, 0, recorded) == whole
        other = {number: whole[number + 4].params for number in recorded}
        found = random(search("random", trials), space, 0, other)
        assert all(found[number].params == params for number, params in other.items())
        assert len({repr(dict(p.params)) for p in found}) == len(found) == trials, "none comes twice"


def test_importance() -> None:
    found = asked(30, 1)
    trials = [ended(p.number, p.params, p.params["max_depth"] + 0.1 * p.params["subsample"]) for p in found]
    shares = importance(trials, SPACE, AUC)
    assert sum(shares.values()) == pytest.approx(1)
    assert set(shares) == set(SPACE)
    assert shares["max_depth"] > 0.8
    assert importance(trials[:4], SPACE, AUC) == {}
    assert importance([ended(p.number, p.params, 0.5) for p in found], SPACE, AUC) == {}


@pytest.mark.parametrize(
    ("most", "eta", "least", "rungs"),
    [
        (200, 3, None, (33, 99, 200)),
        (100, 3, None, (16, 48, 100)),
        (100, 2, None, (25, 50, 100)),
        (200, 4, 12, (12, 48, 200)),
        (100, 2, 25, (25, 50, 100)),
        (4, 3, None, (1, 4)),
        (1, 3, None, (1,)),
        (10, 3, 50, (10,)),
    ],
)
def test_rungs(most: int, eta: int, least: int | None, rungs: tuple[int, ...]) -> None:
    assert ladder(most, eta, least) == rungs


def halved(
    trials: int,
    eta: int,
    rungs: tuple[int, ...],
    at_once: int,
    over: int = 0,
    objective: Objective = AUC,
    *,
    baseline: bool = False,
) -> tuple[Any, dict[int, int]]:
    proposals = [Proposal(number, {"number": number}) for number in range(trials)]
    searcher = Halving(proposals, rungs, eta, {}, objective, baseline=baseline)
    running: list[Any] = []
    reached: dict[int, int] = {}
    grown = 0
    while True:
        while len(running) < at_once and (work := searcher.next()):
            running.append(work)
        if not running:
            assert grown == sum(reached.values()), "no tree was grown twice"
            return searcher, reached
        work = running.pop(0)
        (number,) = work.numbers
        assert work.rounds is not None
        assert work.rounds > reached.get(number, 0)
        assert work.worker == ("w" if number in reached else None), "a promotion goes where its trees are"
        grown += work.rounds - reached.get(number, 0)
        reached[number] = work.rounds
        score = 0.5 + number / (1000 if objective.maximize else -1000)
        searcher.tell(ended(number, work.proposals[0].params, score, rounds=work.rounds, over=number == over))


@pytest.mark.parametrize(("at_once", "maximize"), [(1, True), (1, False), (4, True)])
def test_halving_gives_the_best_the_most(at_once: int, maximize: bool) -> None:
    _, reached = halved(27, 3, (1, 3, 9), at_once, objective=Objective("study", "score", maximize))
    assert len(reached) == 27
    assert reached[26] == 9
    assert sum(reached.values()) <= 81 + at_once * 9, "a third of the trees of all, about"
    if at_once == 1:
        assert sorted(reached.values()) == [1] * 18 + [3] * 6 + [9] * 3
        assert {number for number, rounds in reached.items() if rounds == 9} == {24, 25, 26}


@pytest.mark.parametrize("at_once", [1, 4])
def test_the_baseline_of_halving_gets_all_its_trees_beside_the_others(at_once: int) -> None:
    _, without = halved(27, 3, (1, 3, 9), 1, over=-1)
    _, reached = halved(27, 3, (1, 3, 9), at_once, over=-1, baseline=True)
    assert reached[0] == 9
    assert reached[26] == 9
    if at_once == 1:
        assert reached == without | {0: 9}, "it takes nobody's place"
    _, few = halved(2, 3, (1, 3), 1, over=-1, baseline=True)
    assert few == {0: 3, 1: 3}


def test_several_searches_take_turns() -> None:
    lists = [[Proposal(number, {"of": name}) for number in range(count)] for name, count in (("a", 3), ("b", 1))]
    third = Tpe(parse({"c": [1, 2, 3, 4]}), 0, AUC, 2, 1, {}, {})
    searcher = InTurn([*(Listed(proposals, {}, cuts=False) for proposals in lists), third])
    assert searcher.total == 6
    found = {}
    while work := searcher.next():
        (proposal,) = work.proposals
        found[proposal.number] = proposal.params
        if "c" in proposal.params:
            searcher.tell(ended(proposal.number, proposal.params, 0.5))
    assert list(found)[:4] == [0, 1, 2, 3]
    assert [number for number, params in found.items() if "of" not in params] == [2, 5], "the second after the first"
    listed = {number: params["of"] for number, params in found.items() if "of" in params}
    assert listed == {0: "a", 1: "b", 3: "a", 6: "a"}


def test_a_trial_that_needs_no_more_trees_keeps_its_place() -> None:
    _, reached = halved(9, 3, (1, 3, 9), 1, over=8)
    assert reached[8] == 1, "it would have stopped early: nothing more to fit"


def test_halving_goes_on_where_it_was() -> None:
    proposals = [Proposal(number, {}) for number in range(9)]
    known = {n: ended(n, {}, 0.5 + n / 100, rounds=3 if n == 5 else 1) for n in range(6)}
    searcher = Halving(proposals, (1, 3, 9), 3, known, AUC)
    given = []
    while work := searcher.next():
        (number,) = work.numbers
        given.append((number, work.rounds))
        if number == 4:
            searcher.fail(4)
        else:
            searcher.tell(ended(number, {}, {6: 0.9}.get(number, 0.1), rounds=work.rounds))
    assert given[:3] == [(6, 1), (7, 1), (8, 1)]
    assert set(given[3:5]) == {(6, 3), (4, 3)}
    assert (5, 3) not in given, "it has them already"
    assert given[-1] == (6, 9)


def test_halving_goes_on_with_the_scores_of_each_rung() -> None:
    proposals = [Proposal(number, {}) for number in range(9)]
    late = {0: 0.9, 1: 0.51, 2: 0.5}  # at the second rung; at the first one they were the three best
    known = {n: ended(n, {}, 0.5 + n / 100, rounds=1) for n in range(3, 9)}
    known |= {n: ended(n, {}, auc, rounds=3, rungs=[(1, 0.6 - n / 1000)]) for n, auc in late.items()}
    searcher = Halving(proposals, (1, 3, 9), 3, known, AUC)
    work = searcher.next()
    assert work is not None
    assert (work.numbers, work.rounds, work.stops) == ((0,), 9, (1, 3)), (
        "the three best of the first rung were promoted"
    )
