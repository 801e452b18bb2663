"""Spaces and proposals, seeded and in order; and what the pool makes of trials that end, workers that die and time."""

import contextlib
import math
import random as chance
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from distributed.scheduler import KilledWorker
from tests.conftest import shipped_model as model

from tipcast.config.errors import TipcastError
from tipcast.config.schema import SearchSpec
from tipcast.search import proposals
from tipcast.search.pool import Pool, TrialWorkers
from tipcast.search.proposals import check_space, grid, importance, merged_space, parse_space, points, random, searcher
from tipcast.search.trial import Event, Failed, Objective, Proposal, Trial

AUC = Objective("study", "auc", maximize=True)
SPACE = merged_space(model("xgboost"), {}, alone=False)
SMALL = parse_space({"a": [1, 2, 3], "b": {"int": [0, 1]}})
LARGE = parse_space({"a": {"int": [1, 100]}, "b": {"int": [1, 101]}})  # too many points to list them


def ended(number: int, params: Any, auc: float) -> Trial:
    return Trial(number, params, auc, {"auc": auc}, {}, "w", 1)


@pytest.mark.parametrize(
    ("space", "trials", "number"), [(SPACE, 40, 40), (SMALL, 100, 6), (LARGE, 2000, 2000)], ids=["40", "6", "2000"]
)
def test_random_trials_come_once_and_a_longer_search_has_those_of_a_shorter(
    space: Any, trials: int, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    drawn = random(SearchSpec("random", trials), space, 4)
    assert [proposal.number for proposal in drawn] == list(range(number))
    assert len({repr(proposal.params) for proposal in drawn}) == number
    assert (f"{number} points" in caplog.text) == (number < trials)
    assert random(SearchSpec("random", 4), space, 4) == drawn[:4]
    assert random(SearchSpec("random", 4), space, 5) != drawn[:4]


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


def asked(
    trials: int, at_once: int, known: Any = None, *, objective: Objective = AUC, baseline: Any = None
) -> list[Proposal]:
    """Run a search of so many slots whose trials end in any order; every fifth one fails."""
    sign, draw = 1 if objective.maximize else -1, chance.Random(at_once)
    tpe = searcher(SearchSpec("tpe", trials, max_concurrent=4), SPACE, 3, objective, known or {}, baseline)
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
        tpe.tell(proposal.number, None if proposal.number % 5 == 4 else sign * quality(proposal.params))


@pytest.mark.parametrize("outside", [{}, {"gamma": 9.0, "colsample_bytree": "all"}], ids=["inside", "partly outside"])
def test_tpe_proposes_the_same_for_any_number_of_workers_and_where_it_goes_on(outside: dict[str, Any]) -> None:
    baseline = {**asked(1, 1)[0].params, "max_depth": 6, **outside}
    whole = asked(40, 1, baseline=baseline)
    assert [proposal.number for proposal in whole] == list(range(40))
    assert whole[0].params == baseline
    for at_once in (3, 16):
        assert asked(40, at_once, baseline=baseline) == whole, at_once
    less = Objective("study", "rmse", maximize=False)
    assert asked(40, 2, objective=less, baseline=baseline) == whole, "the same scores with another sign"
    assert max(map(quality, (p.params for p in whole[20:]))) >= max(map(quality, (p.params for p in whole[:10])))
    known = {p.number: ended(p.number, p.params, quality(p.params)) for p in whole[:24] if p.number % 5 != 4}
    del known[15], known[22]
    rest = asked(40, 3, known, baseline=baseline)
    assert [proposal.number for proposal in rest] == [4, 9, 14, 15, 19, 22, *range(24, 40)]
    assert rest == [whole[proposal.number] for proposal in rest]


def test_draws_stay_within_bounds_and_types_and_have_their_importance() -> None:
    def drawn(form: Any) -> list[Any]:
        return [proposal.params["p"] for proposal in random(SearchSpec("random", 200), parse_space({"p": form}), 0)]

    for form in ({"int": [1, 3]}, {"int_log": [3, 300]}, {"log": [0.02, 0.3]}, {"float": [0.1, 0.7]}):
        ((kind, (low, high)),) = form.items()
        values = drawn(form)
        assert low <= min(values) < max(values) <= high
        assert {type(value) for value in values} == {int if kind.startswith("int") else float}
    assert sorted(drawn({"log": [1e-9, 1e-3]}))[100] == pytest.approx(1e-6, rel=2), "half of them below the middle"
    assert set(drawn([6, "sqrt", None, True])) == {6, "sqrt", None, True}
    assert sorted(drawn([[50], [50, 20]])) == [[50], [50, 20]]
    assert parse_space({"a": None, "b": [1]}).keys() == {"b"}
    tried = random(SearchSpec("random", 30), SPACE, 3)
    trials = [ended(p.number, p.params, p.params["max_depth"] + 0.1 * p.params["subsample"]) for p in tried]
    shares = importance(trials, SPACE, AUC)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["max_depth"] > 0.8
    assert set(shares) == set(SPACE)
    assert importance(trials[:4], SPACE, AUC) == {}
    assert importance([ended(p.number, p.params, 0.5) for p in tried], SPACE, AUC) == {}


def test_a_grid_and_its_points() -> None:
    space = parse_space({"b": [10, 20], "a": [1, 2, 3]})
    for trials in (None, 6):
        every = [tuple(proposal.params.values()) for proposal in grid(SearchSpec("grid", trials), space)]
        assert every == [(1, 10), (1, 20), (2, 10), (2, 20), (3, 10), (3, 20)]
    with pytest.raises(TipcastError, match="C003.*6 points"):
        grid(SearchSpec("grid", 5), space)
    for form, number, expected in (
        ({"int": [4, 12]}, 3, (4, 8, 12)),
        ({"int": [4, 5]}, 3, (4, 5)),
        ({"int_log": [50, 800]}, 3, (50, 200, 800)),
        ({"int_log": [1, 4]}, 9, (1, 2, 3, 4)),
        ({"log": [0.01, 1.0]}, 3, (0.01, pytest.approx(0.1), 1.0)),
        ({"float": [0.5, 0.5]}, 3, (0.5,)),
        ([3, 1], 9, (3, 1)),
    ):
        assert points(parse_space({"p": form})["p"], number) == expected
    assert math.prod(len(points(axis, 3)) for axis in merged_space(model("xgboost"), {}, alone=True).values()) == 3**6


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
    code, where, what, fix = caught.value.args
    assert (code, where, what) == ("C003", "search.space.max_depth", f"cannot be searched: {form}")
    assert fix.endswith(", each value once, bounds in order, those of logarithms above 0")


@pytest.mark.parametrize(
    ("name", "own", "code", "words"),
    [
        ("xgboost", {}, "", []),
        ("random_forest", {}, "", []),
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
    """Nothing of the models' own spaces."""
    spec = model(name)
    with pytest.raises(TipcastError, match=code) if code else contextlib.nullcontext() as caught:
        check_space(spec, merged_space(spec, own, alone=False), "cpu", ())
    assert [word for word in words if word not in str(caught.value)] == []


# The pool, on a test's own workers and clock


class Future:
    """A task on a worker, as Dask's client holds it."""

    def __init__(self, key: str, worker: str, proposal: Proposal, attempt: int, done: list[Any]) -> None:
        self.key, self.worker, self.proposal, self.attempt, self._done = key, worker, proposal, attempt, done
        self.status, self._problem, self.alone = "pending", None, True

    def done(self) -> bool:
        return self.status != "pending"

    def exception(self) -> Any:
        return self._problem

    def end(self, status: str = "finished", problem: Any = None) -> None:
        if not self.done():
            self.status, self._problem = status, problem
            self._done.append(self)

    def release(self, force: bool = False) -> None:
        self.end("cancelled")

    cancel = release


class Workers:
    """Workers of so many slots; ``act`` decides what happens when the pool waits, by default the first task ends."""

    wait_s = 60.0

    def __init__(self, slots: dict[str, int], act: Callable[[Any], None] | None = None) -> None:
        self.study = SimpleNamespace(sweep="s", objective=AUC)
        self.slots, self.lost, self.memory = slots, set[str](), set[str]()
        self.reports: dict[tuple[int, int], Trial] = {}
        self.running: list[Future] = []
        self.done: list[Future] = []
        self.seconds = 0.0
        self._act = act or (lambda workers: workers.end(workers.running[0]))

    def submit(self, worker: str, key: str, proposal: Proposal, attempt: int) -> Future:
        beside = [other for other in self.running if other.worker == worker]
        assert len(beside) < self.slots[worker]
        self.running.append(Future(key, worker, proposal, attempt, self.done))
        for future in (*beside, self.running[-1]):
            future.alone = future.alone and not beside
        assert all(future.alone for future in self.running if future.attempt > 1), "a retried trial is alone"
        return self.running[-1]

    def wait(self) -> list[Future]:
        self._act(self)
        done = self.done.copy()
        self.done.clear()
        return done

    def ended_for_memory(self, worker: str) -> bool:
        return worker in self.memory

    def report(self, future: Future) -> None:
        number, params = future.proposal.number, future.proposal.params
        score = 0.5 + params["depth"] / 100
        self.reports[number, future.attempt] = Trial(number, params, score, {}, {}, future.worker, future.attempt)

    def end(self, future: Future) -> None:
        self.running.remove(future)
        self.report(future)
        future.end()

    def die(self, worker: str) -> None:
        """Let a worker die with all its tasks; its nanny starts it again."""
        gone = [future for future in self.running if future.worker == worker]
        self.running = [future for future in self.running if future.worker != worker]
        for future in gone:
            future.end("error", KilledWorker(future.key, SimpleNamespace(memory_limit=2**30), 0))

    restart = die


def listed(trials: int) -> proposals.Listed:
    return proposals.Listed([Proposal(at, {"depth": at % 5}) for at in range(trials)], {})


def events(workers: Any, trials: int | Any, attempts: int = 3, **more: Any) -> list[Event]:
    searched = listed(trials) if isinstance(trials, int) else trials
    return list(Pool(workers, attempts, now=lambda: workers.seconds, **more).events(searched))


def finished(happened: list[Event]) -> list[int]:
    return sorted(event.number for event in happened if isinstance(event, Trial))


def failures(happened: list[Event]) -> list[tuple[int, str, bool]]:
    return [(event.number, event.problem.code, event.retried) for event in happened if isinstance(event, Failed)]


@pytest.mark.parametrize("seed", range(20))
def test_every_trial_ends_once_whichever_workers_die(seed: int) -> None:
    draw = chance.Random(seed)

    def act(workers: Workers) -> None:
        if not workers.running:
            return
        future = draw.choice(workers.running)
        if draw.random() < 0.6:
            workers.end(future)
        elif draw.random() < 0.3:  # when all is done, and the driver has yet to hear of it
            workers.report(future)
            workers.die(future.worker)
        elif draw.random() < 0.5:
            workers.die(future.worker)
        else:
            workers.lost.add(future.key)
            workers.running.remove(future)

    happened = events(Workers({"a": 1, "b": 3, "c": 2}, act), 20, attempts=1000)
    assert finished(happened) == list(range(20))
    begun = Counter(event.number for event in happened if isinstance(event, Proposal))
    lost = Counter(event.number for event in happened if isinstance(event, Failed) and event.retried)
    assert begun == lost + Counter(range(20)), "each is begun once more for each worker that it lost"
    assert all(event.attempt == begun[event.number] for event in happened if isinstance(event, Trial))
    assert {code for _, code, _ in failures(happened)} == {"S007"}


def test_a_trial_that_is_out_of_memory_alone_has_failed() -> None:
    """Of one whose workers all die tests/faults tell."""

    def full(workers: Workers) -> None:
        workers.memory = {"a"}
        workers.die("a")

    for slots, expected in ((1, [(0, "S005", False)]), (2, [(0, "S005", True), (0, "S005", False)])):
        happened = events(Workers({"a": slots}, full), 1)
        assert failures(happened) == expected
        assert isinstance(happened[-1], Failed)
        assert happened[-1].problem.what == "worker out of memory, limit 1024 MiB"


def test_no_trial_takes_too_long() -> None:
    """Those beside one that does are begun again. Of the time of a whole sweep tests/jobs/test_sweep.py tells."""

    def slow(workers: Workers) -> None:
        workers.seconds += 1
        if others := [future for future in workers.running if future.proposal.number != 2]:
            workers.end(others[0])

    happened = events(Workers({"a": 1, "b": 3}, slow), 8, attempts=1, limit_s=8)
    (failed,) = [event for event in happened if isinstance(event, Failed)]
    assert (failed.problem.code, failed.number, failed.retried) == ("S008", 2, False)
    assert "8 s" in str(failed.problem)
    assert finished(happened) == [0, 1, 3, 4, 5, 6, 7]
    with pytest.raises(CancelledError):  # by others
        events(Workers({"a": 1}, lambda workers: workers.running[0].end("cancelled")), 1)


@pytest.mark.parametrize("comes", [True, False])
def test_workers_that_go_and_come(comes: bool) -> None:
    """K003 comes when none has been at work for too long: not while one has a trial, nor where another comes."""

    def act(workers: Workers) -> None:
        workers.seconds += 30
        if workers.seconds == 30:  # the only one is paused
            workers.slots = {}
        elif workers.seconds < 300:
            return
        elif workers.seconds == 300:  # it goes
            workers.lost.add(workers.running.pop().key)
        elif workers.seconds == 360 and comes:
            workers.slots = {"b": 1}
        elif workers.running:
            workers.end(workers.running[0])

    workers = Workers({"a": 1}, act)
    if comes:
        assert [type(event) for event in events(workers, 2)] == [Proposal, Failed, Proposal, Trial, Proposal, Trial]
    else:
        with pytest.raises(TipcastError, match="K003"):
            events(workers, 2)
        assert workers.seconds == 420


def test_rows_are_read_by_the_workers_that_there_are() -> None:
    counts, gone, data = (("counts",),), OSError("gone"), TipcastError("D007", "file", "no column", "")
    study: Any = SimpleNamespace(sweep="s", topic="t")
    for answers, memory, code, asked in (
        ([counts], False, "", 1),
        ([gone, counts], False, "", 2),  # another came
        ([gone] * 4, False, "K003", 3),
        ([gone], False, "K003", 1),
        ([data, counts], False, "D007", 1),
        ([gone, counts], True, "K003.*lost while they read", 1),  # the next would run out of memory as well
    ):
        client, slept = Mock(), list[float]()
        client.wait_for_workers.side_effect = [None] * len(answers) + [TimeoutError]
        client.run_on_scheduler.return_value = {"a": 1}, set()
        client.run.side_effect = [{"a": answer} for answer in answers]
        logged = [(0.0, {"worker": "a"})] if memory else []  # a little later
        client.get_events.side_effect = lambda _, logged=logged, slept=slept: logged if len(slept) > 3 else []
        with pytest.raises(TipcastError, match=code) if code else contextlib.nullcontext():
            assert TrialWorkers(client, study, 1, 60, sleep=slept.append).load(3) == counts
        assert client.run.call_count == asked
