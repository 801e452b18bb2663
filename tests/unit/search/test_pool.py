"""Trials on real workers: the results of a serial loop bit by bit, rows read once, failures told, memory freed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from tests.conftest import NO_PAGES
from tests.waiting import WATCHDOG_S

from tipcast.config.schema import ModelSpec
from tipcast.datasets import rows
from tipcast.datasets.rows import prepare_fragment
from tipcast.models.base import Split
from tipcast.models.build import build
from tipcast.search import task
from tipcast.search.pool import Pool
from tipcast.search.proposals import Halving, InTurn, Listed, grid, random
from tipcast.search.space import merged, parse
from tipcast.search.task import SLOT
from tipcast.search.trial import Begun, Ended, Failed, Measured, Proposal, Study, Trial
from tipcast.search.workers import TrialWorkers

from .conftest import AUC, model, search

Made = Callable[..., Study]
FAST = {"n_estimators": 12, "subsample": 0.8}


def digest(scores: Any, labels: Any) -> Measured:
    """Stands for the quality of a trial: the bits of its predictions."""
    found = hashlib.sha256(np.ascontiguousarray(scores).tobytes()).digest()
    return Measured({"auc": int.from_bytes(found[:6], "big") / 2**48}, ())


def swept(client: Client, study: Study, searcher: Any, **more: Any) -> tuple[dict[int, Trial], list[Any]]:
    workers = TrialWorkers(client, study, 1, WATCHDOG_S)
    with workers.opened():
        workers.load(1)
        events = list(Pool(workers, more.get("attempts", 3)).events(searcher))
    return {trial.number: trial for event in events if isinstance(event, Ended) for trial in event.trials}, events


def serial(study: Study, proposals: Sequence[Proposal]) -> dict[int, float]:
    """What a loop gets that reads, builds its own matrix and fits for each trial."""
    parts = [prepare_fragment(fragment, study.frames, study.recipe) for fragment in study.fragments]
    sides = [[both[side] for both in parts if both[side].counts.rows] for side in (0, 1)]
    x, held_x = (pd.concat([part.x for part in side], ignore_index=True) for side in sides)
    y, held_y = (pd.concat([part.y for part in side], ignore_index=True) for side in sides)
    found = {}
    for proposal in proposals:
        spec = ModelSpec(**{**vars(study.model), "params": {**study.model.params, **proposal.params}})
        fitted = build(spec, "cpu").fit(Split(x, y, (held_x, held_y)), study.seed)
        found[proposal.number] = digest(fitted.scorer.score(held_x), held_y).metrics["auc"]
    return found


@pytest.fixture(
    params=[(1, 2), pytest.param((2, 1), marks=pytest.mark.long), (2, 4)], ids=["1x2", "2x1", "2x4"], scope="module"
)
def workers(request: pytest.FixtureRequest) -> Any:
    """Workers and threads of each, in this process."""
    number, threads = request.param
    options = {"processes": False, **NO_PAGES}
    with LocalCluster(n_workers=number, threads_per_worker=threads, **options) as cluster, Client(cluster) as client:
        yield client


def made_with(study: Study, **more: Any) -> Study:
    return Study(**{**vars(study), "measure": digest, **more})


def test_trials_are_those_of_a_serial_loop(workers: Client, study: Made) -> None:
    common = made_with(study(model("xgboost", **FAST)))
    proposals = random(search("random", 9), merged(common.model, {}, alone=False), 0)
    trials, events = swept(workers, common, Listed(proposals, {}, cuts=False))
    assert {number: trial.score for number, trial in trials.items()} == serial(common, proposals)
    assert [event.work.numbers[0] for event in events if isinstance(event, Begun)] == list(range(9)), "in order"
    threads = sum(workers.nthreads().values())
    first = [isinstance(event, Begun) for event in events[: min(threads, 9)]]
    assert all(first), "every slot is filled at once"
    assert {trial.worker for trial in trials.values()} == set(workers.nthreads())
    assert all(trial.attempt == 1 and trial.seconds > 0 for trial in trials.values())


def test_a_grid_over_trees_is_fitted_once_for_each_depth(client: Client, study: Made) -> None:
    space = parse({"max_depth": [3, 5], "n_estimators": [4, 12, 8]})
    for name in ("xgboost", "random_forest"):
        common = made_with(study(model(name)))
        proposals = grid(search("grid", None), space)
        trials, events = swept(client, common, Listed(proposals, {}, cuts=True))
        assert len([event for event in events if isinstance(event, Begun)]) == 2
        assert {number: trial.score for number, trial in trials.items()} == serial(common, proposals), name
        fits = [trials[number].phases["fit"] for number in range(3)]
        assert fits == pytest.approx([fits[0], 3 * fits[0], 2 * fits[0]]), "seconds of one fit are split by trees"


def test_models_that_take_turns(client: Client, study: Made) -> None:
    models = model("xgboost", n_estimators=3), model("logistic"), model("random_forest", n_estimators=3)
    common = made_with(study(models[0], again=True), others=models[1:])
    spaces = [merged(each, {}, alone=False) for each in models]
    lists = [random(search("random", 2), space, 0) for space in spaces]
    trials, _ = swept(client, common, InTurn([Listed(proposals, {}, cuts=False) for proposals in lists]))
    assert sorted(trials) == list(range(6))
    for turn, (each, proposals) in enumerate(zip(models, lists, strict=True)):
        alone = serial(made_with(study(each)), proposals)
        assert {number: trials[number * 3 + turn].score for number in alone} == alone, each.name


def test_models_without_shared_matrices(client: Client, study: Made) -> None:
    common = made_with(study(model("logistic"), again=True))
    proposals = random(search("random", 4), merged(common.model, {}, alone=False), 0)
    trials, _ = swept(client, common, Listed(proposals, {}, cuts=False))
    assert {number: trial.score for number, trial in trials.items()} == serial(common, proposals)


def test_rows_are_read_once_and_freed(client: Client, study: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    before = set(client.futures)
    monkeypatch.setattr(task, "prepare_fragment", lambda *given: read.append(given) or prepare_fragment(*given))
    for again, bins in ((False, [256]), (True, [64, 128, 256])):
        read.clear()
        common = study(model("xgboost", **FAST), again=again)
        space = parse({"max_depth": {"int": [2, 5]}, "max_bin": bins})
        kept: list[Any] = []
        workers = TrialWorkers(client, common, 1, WATCHDOG_S)
        with workers.opened():
            counts = workers.load(1)
            for _ in Pool(workers, 3).events(Listed(random(search("random", 8), space, 0), {}, cuts=False)):
                kept.append(task.CACHES[common.sweep])
            assert len(kept[-1].prepared) == len(bins)
            assert (kept[-1].rows is not None) == again
        assert len(read) == len(common.fragments)
        assert rows.total([part for both in counts for part in both]).rows == pytest.approx(4000, rel=0.02)
        with pytest.raises(KeyError):
            task.CACHES[common.sweep]
    assert client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.allowed_failures) == 3
    assert set(client.futures) <= before


def test_threads_that_come_together_read_once(client: Client, study: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    monkeypatch.setattr(task, "prepare_fragment", lambda *given: read.append(given) or prepare_fragment(*given))
    common = study(model("xgboost", **FAST))
    own = task.WorkerCache(common)
    estimator = build(common.model, "cpu")
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: own.ready(estimator, 2), range(8)))
    assert len(read) == len(common.fragments)
    assert len({id(prepared) for prepared, _ in found}) == 1


def test_a_failing_trial_does_not_stop_the_others(client: Client, study: Made) -> None:
    spec = model("xgboost", **FAST, min_child_weight=0, reg_lambda=0)
    spec.fit = {}  # else the rounds before the numbers overflow would be kept
    common = study(spec)
    space = parse({"learning_rate": [0.1, 3.4e38, 0.2], "max_depth": [3, 4]})
    trials, events = swept(client, common, Listed(grid(search("grid", None), space), {}, cuts=False))
    failed = [event for event in events if isinstance(event, Failed)]
    assert sorted(event.work.numbers[0] for event in failed) == [2, 3]
    assert {event.problem.code for event in failed} == {"M010"}
    assert "non-finite metric" in str(failed[0].problem)
    assert sorted(trials) == [0, 1, 4, 5]


def test_what_the_library_says_of_a_failure_is_passed_on(client: Client, study: Made) -> None:
    common = study(model("xgboost", **FAST))
    impossible = [Proposal(0, {"base_score": 7.0}), Proposal(1, {"max_depth": 3})]
    trials, events = swept(client, common, Listed(impossible, {}, cuts=False))
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert failed.problem.code == "S006"
    assert "base_score" in str(failed.problem)
    assert list(trials) == [1]


def test_halving_goes_on_with_the_trees_there_are(client: Client, study: Made) -> None:
    common = study(model("xgboost", n_estimators=27, learning_rate=0.05))
    proposals = random(search("halving", 12), merged(common.model, {}, alone=False), 0)
    trials, events = swept(client, common, Halving(proposals, (3, 9, 27), 3, {}, AUC))
    given: dict[int, list[tuple[int | None, int]]] = {}
    for event in events:
        for trial in event.trials if isinstance(event, Ended) else ():
            given.setdefault(trial.number, []).append((trial.rounds, trial.grown))
    assert len(given) == 12
    for steps in given.values():
        assert steps == [(3, 3), (9, 6), (27, 18)][: len(steps)], "no tree is grown twice"
    assert sum(len(steps) == 3 for steps in given.values()) >= 1
    best = max(trials.values(), key=lambda trial: trial.score)
    estimator = build(ModelSpec(**{**vars(common.model), "params": {**common.model.params, **best.params}}), "cpu")
    own = task.WorkerCache(common)
    prepared, (x, y) = own.ready(estimator, 1)
    state = None
    for stop in (3, 9, 27)[: len(given[best.number])]:
        grown = estimator.grow(prepared, stop, state, common.seed)
        state = grown.state
    assert common.measure(grown.fitted.scorer.score(x), y).metrics == best.metrics


def test_trees_that_were_lost_are_grown_again_as_they_were(client: Client, study: Made) -> None:
    common = made_with(study(model("xgboost", n_estimators=27, subsample=0.7)))
    proposals = [Proposal(number, {"max_depth": number + 2}) for number in range(3)]
    rungs = (3, 9, 27)

    def judged(sweep: str, known: dict[int, Trial]) -> dict[tuple[int, int | None], float]:
        _, events = swept(client, Study(**{**vars(common), "sweep": sweep}), Halving(proposals, rungs, 3, known, AUC))
        trials = [trial for event in events if isinstance(event, Ended) for trial in event.trials]
        again.update({trial.number: trial for trial in trials if trial.rounds == 3})
        return {(trial.number, trial.rounds): trial.score for trial in trials}

    again: dict[int, Trial] = {}
    whole = judged("whole", {})
    resumed = judged("resumed", dict(again))  # the trees of the first rung were in the shelf of the first sweep
    assert {rounds for _, rounds in resumed} == {9, 27}
    assert resumed == {place: score for place, score in whole.items() if place[1] != 3}


def test_slots_are_a_resource_of_the_workers(client: Client, study: Made) -> None:
    common = study(model("xgboost", **FAST))
    workers = TrialWorkers(client, common, 1, WATCHDOG_S)
    with workers.opened():
        workers.await_one()
        assert workers.slots == client.nthreads()
        (worker,) = client.scheduler_info()["workers"].values()
        assert worker["resources"] == {SLOT: 2}
    gpu = Study(**{**vars(common), "device": "cuda", "sweep": "gpu"})
    workers = TrialWorkers(client, gpu, 5, WATCHDOG_S)
    with workers.opened():
        workers.await_one()
        assert list(workers.slots.values()) == [5], "several trials share a GPU, whatever threads its worker has"
