"""Trials on real workers: the results of a serial loop bit by bit, rows read once, failures told, memory freed."""

import dataclasses
import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster, Status
from tests.conftest import NO_PAGES
from tests.waiting import WATCHDOG_S, wait_until

from tipcast.datasets import rows
from tipcast.datasets.rows import prepare_fragment
from tipcast.models.base import Split
from tipcast.models.build import build
from tipcast.search import trial as worker_side
from tipcast.search.pool import Pool, TrialWorkers
from tipcast.search.proposals import Listed, parse_space, random
from tipcast.search.trial import SLOT, Begun, Ended, Event, Failed, Measured, Proposal, Study, Trial

from .conftest import model, search

Made = Callable[..., Study]
FAST = {"n_estimators": 12, "subsample": 0.8}
FIT = worker_side.fit


def digest(scores: Any, labels: Any) -> Measured:
    """Stands for the quality of a trial: the bits of its predictions."""
    found = hashlib.sha256(np.ascontiguousarray(scores).tobytes()).digest()
    return Measured({"auc": int.from_bytes(found[:6], "big") / 2**48}, ())


def swept(client: Client, study: Study, proposals: Sequence[Proposal]) -> tuple[dict[int, Trial], list[Event]]:
    workers = TrialWorkers(client, study, 1, WATCHDOG_S)
    with workers.opened():
        workers.load(1)
        events = list(Pool(workers, 3).events(Listed(proposals, {})))
    return {event.trial.number: event.trial for event in events if isinstance(event, Ended)}, events


def serial(study: Study, proposals: Sequence[Proposal]) -> dict[int, float]:
    """What a loop gets that reads, builds its own matrix and fits for each trial."""
    parts = [prepare_fragment(fragment, study.frames, study.recipe) for fragment in study.fragments]
    sides = [[both[side] for both in parts if both[side].counts.rows] for side in (0, 1)]
    x, held_x = (pd.concat([part.x for part in side], ignore_index=True) for side in sides)
    y, held_y = (pd.concat([part.y for part in side], ignore_index=True) for side in sides)
    found = {}
    for proposal in proposals:
        spec = dataclasses.replace(study.model, params={**study.model.params, **proposal.params})
        fitted = build(spec, "cpu").fit(Split(x, y, (held_x, held_y)), study.seed)
        found[proposal.number] = digest(fitted.scorer.score(held_x), held_y).metrics["auc"]
    return found


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """Two workers of two threads, in this process."""
    with LocalCluster(n_workers=2, threads_per_worker=2, processes=False, **{**NO_PAGES, "memory_limit": 0}) as made:
        yield made


@pytest.mark.parametrize(("name", "more"), [("xgboost", FAST), ("random_forest", {"n_estimators": 3})])
def test_trials_are_those_of_a_serial_loop(cluster: LocalCluster, study: Made, name: str, more: dict[str, Any]) -> None:
    """Also of a model whose fits share no matrix."""
    common = dataclasses.replace(study(model(name, **more), again=name != "xgboost"), measure=digest)
    proposals = random(search("random", 6), parse_space({"max_depth": {"int": [2, 12]}}), 0)
    with Client(cluster) as client:
        trials, events = swept(client, common, proposals)
        assert {trial.worker for trial in trials.values()} == set(client.nthreads())
    assert {number: trial.score for number, trial in trials.items()} == serial(common, proposals)
    assert [event.proposal for event in events if isinstance(event, Begun)] == proposals
    assert all(isinstance(event, Begun) for event in events[:4]), "every slot is filled at once"
    assert all(trial.attempt == 1 and trial.seconds > 0 for trial in trials.values())


def test_rows_are_read_once_and_freed(client: Client, study: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    before = set(client.futures)
    monkeypatch.setattr(worker_side, "prepare_fragment", lambda *given: read.append(given) or prepare_fragment(*given))
    for again, bins in ((False, [256]), (True, [64, 128, 256])):
        read.clear()
        common = study(model("xgboost", **FAST), again=again)
        proposals = [Proposal(at, {"max_bin": bins[at % len(bins)]}) for at in range(4)]
        workers = TrialWorkers(client, common, 1, WATCHDOG_S)
        with workers.opened():
            counts = workers.load(1)
            assert len(list(Pool(workers, 3).events(Listed(proposals, {})))) == 8
            kept = worker_side.CACHES[common.sweep]
            assert len(kept.prepared) == len(bins)
            assert (kept.rows is not None) == again
        assert len(read) == len(common.fragments)
        assert rows.total([part for both in counts for part in both]).rows == pytest.approx(4000, rel=0.02)
        assert common.sweep not in worker_side.CACHES
    assert set(client.futures) <= before


def test_what_a_process_keeps(study: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that come together read once; of matrices those stay that were wanted last."""
    read: list[Any] = []
    monkeypatch.setattr(worker_side, "prepare_fragment", lambda *given: read.append(given) or prepare_fragment(*given))
    monkeypatch.setattr(worker_side, "MOST_PREPARED", 2)
    own = worker_side.WorkerCache(study(model("xgboost"), again=True))
    wanted = [build(model("xgboost", max_bin=bins), "cpu") for bins in (64, 128, 64, 256)]
    with ThreadPoolExecutor(8) as threads:
        first = list(threads.map(lambda _: own.ready(wanted[0], 2)[0], range(8)))
    made = [own.ready(estimator, 1)[0] for estimator in wanted]
    assert len(read) == len(own.study.fragments)
    assert all(each is made[0] for each in first)
    assert list(own.prepared.values()) == [made[2], made[3]]


def test_a_failing_trial_does_not_stop_the_others(client: Client, study: Made) -> None:
    spec = model("xgboost", **FAST, min_child_weight=0, reg_lambda=0)
    spec.fit = {}  # else the rounds before the numbers overflow would be kept
    tried = [{"learning_rate": 0.1}, {"learning_rate": 3.4e38}, {"base_score": 7.0}, {"learning_rate": 0.2}]
    trials, events = swept(client, study(spec), [Proposal(at, params) for at, params in enumerate(tried)])
    failed = {event.number: event.problem for event in events if isinstance(event, Failed)}
    assert {number: problem.code for number, problem in failed.items()} == {1: "M010", 2: "S006"}
    assert "non-finite metric" in str(failed[1])
    assert "base_score" in str(failed[2]), "what the library says is passed on"
    assert sorted(trials) == [0, 3]


def test_slots_are_a_resource_of_the_workers(client: Client, study: Made) -> None:
    common = study(model("xgboost", **FAST))
    gpu = dataclasses.replace(common, device="cuda", sweep="gpu")  # whose trials share it, whatever threads there are
    for each, per_gpu, slots in ((common, 1, 2), (gpu, 5, 5)):
        workers = TrialWorkers(client, each, per_gpu, WATCHDOG_S)
        with workers.opened():
            workers.look()
            assert list(workers.slots.values()) == [slots]
            (worker,) = client.scheduler_info()["workers"].values()
            assert worker["resources"] == {SLOT: slots}


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Set when a trial has begun; the first one goes on when the other is set."""
    begun, gate = threading.Event(), threading.Event()

    def fit(*given: Any) -> Trial:
        if not begun.is_set():
            begun.set()
            gate.wait(WATCHDOG_S)
        return FIT(*given)

    monkeypatch.setattr(worker_side, "fit", fit)
    yield begun, gate
    gate.set()


def test_a_look_at_workers_that_are_busy_paused_or_gone(cluster: LocalCluster, study: Made, held: Any) -> None:
    begun, gate = held
    with Client(cluster) as client:
        workers = TrialWorkers(client, study(model("xgboost", **FAST)), 1, WATCHDOG_S)
        with workers.opened():
            workers.look()
            first, second = sorted(workers.slots)
            assert (workers.slots, workers.busy, workers.lost) == ({first: 2, second: 2}, False, set())
            trial = workers.submit(first, f"one-{workers.study.sweep}", Proposal(0, {}), 1)
            assert begun.wait(WATCHDOG_S)
            client.run(lambda dask_worker: setattr(dask_worker, "status", Status.paused))
            wait_until(lambda: workers.look() or not workers.slots)
            assert workers.busy, "what runs on a paused worker runs on"
            late = workers.submit(second, f"two-{workers.study.sweep}", Proposal(1, {}), 1)
            wait_until(lambda: workers.look() or workers.lost)
            assert workers.lost == {late.key}
            gate.set()
            wait_until(lambda: workers.wait() == [trial])
            assert workers.reports[0, 1].worker == first
            wait_until(lambda: workers.look() or not workers.busy)
            trial.release()
            client.run(lambda dask_worker: setattr(dask_worker, "status", Status.running))
            wait_until(lambda: workers.look() or len(workers.slots) == 2)
            client.retire_workers([second])
            wait_until(lambda: workers.look() or list(workers.slots) == [first])
            gone = workers.submit(second, f"three-{workers.study.sweep}", Proposal(2, {}), 1)
            wait_until(lambda: workers.look() or gone.key in workers.lost)
