"""Trials on real workers: the results of a serial loop bit by bit, rows read once, failures told,
memory freed.
"""

import dataclasses
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
from distributed import Client, LocalCluster, Status
from tests.conftest import NO_PAGES, high_tip_task
from tests.conftest import shipped_model as model
from tests.waiting import WATCHDOG_S, wait_until

from tipcast.compute.cluster import opened
from tipcast.compute.frames import CpuFrames
from tipcast.config import data_schema, schema
from tipcast.datasets.counts import total
from tipcast.datasets.prepare import Recipe, prepare_part
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.datasets.taxi.features import BASE_FEATURES
from tipcast.evaluation import evaluator_of
from tipcast.models.base import Split
from tipcast.search import worker as worker_side
from tipcast.search.halving import plan_rungs
from tipcast.search.pool import Pool
from tipcast.search.proposals import Listed, parse_space, random, searcher
from tipcast.search.trial import (
    Objective,
    Proposal,
    SweepSetup,
    TrialEvent,
    TrialFailed,
    TrialResult,
    TrialStarted,
)
from tipcast.search.trial_workers import TrialWorkers
from tipcast.search.worker import SLOT
from tipcast.tasks.kinds import BINARY, Binary

ROOT = Path(__file__).resolve().parents[3]
MakeSetup = Callable[..., SweepSetup]
FAST = {"n_estimators": 12, "subsample": 0.8}
LIMIT_MIB = 800
SIX_DAYS = 6 * 86_400_000_000  # in microseconds


def swept(
    client: Client, sweep_setup: SweepSetup, proposals: Sequence[Proposal]
) -> tuple[dict[int, TrialResult], list[TrialEvent]]:
    workers = TrialWorkers(client, sweep_setup, 1, WATCHDOG_S)
    with workers.opened():
        workers.load(1)
        events = list(Pool(workers, 3).events(Listed(proposals, {})))
    return {event.number: event for event in events if isinstance(event, TrialResult)}, events


def serial(sweep_setup: SweepSetup, proposals: Sequence[Proposal]) -> dict[int, dict[str, float]]:
    """Metrics of a loop that reads, builds its own matrix and fits for each trial."""
    prepared = [
        prepare_part(part, sweep_setup.frames, sweep_setup.recipe) for part in sweep_setup.parts
    ]
    sides = [[both[side] for both in prepared if both[side].counts.rows] for side in (0, 1)]
    x, held_x = (pd.concat([rows.x for rows in side], ignore_index=True) for side in sides)
    y, held_y = (pd.concat([rows.y for rows in side], ignore_index=True) for side in sides)
    metrics = {}
    for proposal in proposals:
        fitted = sweep_setup.estimator(proposal.params).fit(
            Split(x, y, validation=Split(held_x, held_y)), sweep_setup.seed
        )
        evaluation = evaluator_of(BINARY).evaluate_here(fitted.scorer.score(held_x), held_y)
        metrics[proposal.number] = evaluation.metrics
    return metrics


@pytest.fixture(scope="module")
def sweep_setup() -> Callable[..., SweepSetup]:
    """Make the setup of a sweep on some rows of one month, the last six days held out."""

    def make_sweep_setup(
        spec: schema.ModelSpec, rows: int = 4000, keep_rows: bool = False
    ) -> SweepSetup:
        months = {"train": "2019-01", "test": "2019-02", "months": None}
        data = data_schema.SampleData(
            source="sample", **months, rows=rows, seed=0, colour="yellow", block_rows=rows // 3
        )
        recipe = Recipe(Taxi(), high_tip_task(BASE_FEATURES))
        listing = Taxi(data).scan("train", recipe.columns)
        recipe = dataclasses.replace(recipe, cutoff=listing.period[1] - SIX_DAYS)
        objective = Objective("study", "auc", maximize=True)
        plan = objective, uuid.uuid4().hex, listing.parts, recipe, CpuFrames()
        return SweepSetup(*plan, model=spec, device="cpu", seed=0, keep_rows=keep_rows)

    return make_sweep_setup


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """Two workers of two threads in this process, and a scheduler that others reach."""
    options = {"processes": False, "protocol": "tcp", "memory_limit": 0, **NO_PAGES}
    with LocalCluster(n_workers=2, threads_per_worker=2, **options) as opened_cluster:
        yield opened_cluster


@pytest.mark.parametrize(
    ("name", "more"), [("xgboost", FAST), ("random_forest", {"n_estimators": 3})]
)
def test_trials_are_those_of_a_serial_loop(
    cluster: LocalCluster, sweep_setup: MakeSetup, name: str, more: dict[str, Any]
) -> None:
    """Also of a model whose fits share no matrix."""
    common = sweep_setup(model(name, **more), keep_rows=name != "xgboost")
    proposals = random(
        schema.SearchSpec("random", 6), parse_space({"max_depth": {"int": [2, 12]}}), 0
    )
    with Client(cluster) as client:
        trials, events = swept(client, common, proposals)
        assert {trial.worker for trial in trials.values()} == set(client.nthreads())
    for number, metrics in serial(common, proposals).items():
        assert trials[number].score == metrics["auc"]
        assert metrics.items() <= trials[number].metrics.items(), "to the last bit"
    assert [event.proposal for event in events if isinstance(event, TrialStarted)] == proposals
    begun = [TrialStarted(proposal) for proposal in proposals[:4]]
    assert events[:4] == begun, "every slot is filled at once"
    assert all(trial.attempt == 1 and trial.seconds > 0 for trial in trials.values())


@pytest.mark.parametrize("name", ["xgboost", "random_forest"])
def test_survivors_of_a_halving_are_those_of_a_serial_loop(
    cluster: LocalCluster, sweep_setup: MakeSetup, name: str
) -> None:
    """To the last bit, and the worker forgets the fits of trials that cannot go on."""
    spec = schema.SearchSpec("halving", 6, min_trees=2)
    common = sweep_setup(model(name, n_estimators=18), keep_rows=name != "xgboost")
    objective = dataclasses.replace(common.objective, rungs=plan_rungs(spec, 18))
    common = dataclasses.replace(common, objective=objective)
    proposer = searcher(spec, parse_space({"max_depth": {"int": [2, 9]}}), 0, objective, {}, None)

    with Client(cluster) as client:
        workers = TrialWorkers(client, common, 1, WATCHDOG_S)
        with workers.opened():
            workers.load(1)
            events = list(Pool(workers, 3).events(proposer))
            kept = set(worker_side.CACHES[common.sweep_id].fits)

    trials = {event.number: event for event in events if isinstance(event, TrialResult)}
    proposals = [Proposal(trial.number, trial.params) for trial in trials.values()]
    for number, metrics in serial(common, proposals).items():
        assert trials[number].score == metrics["auc"]
        assert metrics.items() <= trials[number].metrics.items()
    assert [trial.fit_info["grown_trees"] for trial in trials.values()] == [6] * 6 + [12] * 2
    assert not kept & {number - 6 for number in trials if number >= 6}, "they have gone on"
    assert len(kept) <= 2


@dataclasses.dataclass(frozen=True)
class CacheUse:
    """What a worker read and kept of a sweep whose trials make so many matrices of its rows."""

    keep_rows: bool
    matrices: int
    parts: int
    reads: int
    """Of parts."""
    rows: int
    kept_matrices: int
    kept_rows: bool
    cached_afterwards: bool
    futures_afterwards: set[Any]


@pytest.fixture(
    scope="module",
    params=[(False, [256]), (True, [64, 128, 256])],
    ids=["one_matrix", "three_matrices"],
)
def cache_use(request: pytest.FixtureRequest, client: Client, sweep_setup: MakeSetup) -> CacheUse:
    keep_rows, bins = request.param
    before = set(client.futures)
    read = Mock(side_effect=prepare_part)
    common = sweep_setup(model("xgboost", **FAST), keep_rows=keep_rows)
    proposals = [Proposal(at, {"max_bin": bins[at % len(bins)]}) for at in range(4)]
    workers = TrialWorkers(client, common, 1, WATCHDOG_S)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_side, "MAX_PREPARED", 2)
        patch.setattr(worker_side, "prepare_part", read)
        with workers.opened():
            counts = workers.load(1)
            assert len(list(Pool(workers, 3).events(Listed(proposals, {})))) == 8
            cache = worker_side.CACHES[common.sweep_id]
            kept_matrices = len(cache.prepared)
            kept_rows = bool(cache.rows)

    return CacheUse(
        keep_rows,
        len(bins),
        len(common.parts),
        read.call_count,
        total([part for both in counts for part in both]).rows,
        kept_matrices,
        kept_rows,
        common.sweep_id in worker_side.CACHES,
        set(client.futures) - before,
    )


def test_a_sweep_reads_each_part_once(cache_use: CacheUse) -> None:
    assert cache_use.reads == cache_use.parts


def test_a_sweep_counts_the_rows_that_it_reads(cache_use: CacheUse) -> None:
    assert cache_use.rows == pytest.approx(4000, rel=0.02)


def test_at_most_so_many_matrices_are_kept(cache_use: CacheUse) -> None:
    assert cache_use.kept_matrices == min(cache_use.matrices, 2)


def test_rows_are_kept_where_trials_need_them_again(cache_use: CacheUse) -> None:
    assert cache_use.kept_rows == cache_use.keep_rows


def test_rows_are_freed_at_the_end_of_a_sweep(cache_use: CacheUse) -> None:
    assert not cache_use.cached_afterwards


def test_a_sweep_leaves_no_task_behind(cache_use: CacheUse) -> None:
    assert not cache_use.futures_afterwards


def test_a_failing_trial_does_not_stop_the_others(client: Client, sweep_setup: MakeSetup) -> None:
    spec = model("xgboost", **FAST, min_child_weight=0, reg_lambda=0)
    spec.fit = {}  # else the rounds before the numbers overflow would be kept
    tried = [
        {"learning_rate": 0.1},
        {"learning_rate": 3.4e38},
        {"base_score": 7.0},
        {"learning_rate": 0.2},
    ]
    trials, events = swept(
        client, sweep_setup(spec), [Proposal(at, params) for at, params in enumerate(tried)]
    )
    failed = {event.number: event.problem for event in events if isinstance(event, TrialFailed)}
    assert {number: problem.code for number, problem in failed.items()} == {1: "M010", 2: "S006"}
    assert "non-finite metric" in str(failed[1])
    assert "base_score" in str(failed[2]), "what the library says is passed on"
    assert sorted(trials) == [0, 3]


def test_slots_are_a_resource_of_the_workers(
    cluster: LocalCluster, sweep_setup: MakeSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that are there: a look tells which are paused or gone; what runs on one runs on."""
    begun = threading.Event()
    gate = threading.Event()
    fit_trial = worker_side.fit_trial

    def wait_and_fit(*given: Any) -> TrialResult:
        begun.set()
        gate.wait(WATCHDOG_S)
        return fit_trial(*given)

    monkeypatch.setattr(worker_side, "fit_trial", wait_and_fit)
    with Client(cluster) as client:
        workers = TrialWorkers(client, sweep_setup(model("xgboost", **FAST)), 1, WATCHDOG_S)
        with workers.opened():
            workers.update_slots()
            first, second = sorted(workers.slots)
            assert (workers.slots, workers.lost) == ({first: 2, second: 2}, set())
            resources = [
                worker["resources"] for worker in client.scheduler_info()["workers"].values()
            ]
            assert resources == [{SLOT: 2}, {SLOT: 2}]
            trial = workers.submit(first, f"one-{workers.sweep_setup.sweep_id}", Proposal(0, {}), 1)
            assert begun.wait(WATCHDOG_S)
            client.run(lambda dask_worker: setattr(dask_worker, "status", Status.paused))
            wait_until(lambda: workers.update_slots() or not workers.slots)
            late = workers.submit(second, f"two-{workers.sweep_setup.sweep_id}", Proposal(1, {}), 1)
            wait_until(lambda: workers.update_slots() or workers.lost)
            assert workers.lost == {late.key}
            gate.set()
            wait_until(lambda: workers.wait() == [trial])
            assert workers.reports[0, 1].worker == first
            trial.release()
            client.run(lambda dask_worker: setattr(dask_worker, "status", Status.running))
            wait_until(lambda: workers.update_slots() or len(workers.slots) == 2)
            client.retire_workers([second])
            wait_until(lambda: workers.update_slots() or list(workers.slots) == [first])
            gone = workers.submit(
                second, f"three-{workers.sweep_setup.sweep_id}", Proposal(2, {}), 1
            )
            wait_until(lambda: workers.update_slots() or gone.key in workers.lost)
        on_gpus = TrialWorkers(
            client,
            dataclasses.replace(workers.sweep_setup, device="cuda", sweep_id="gpu"),
            5,
            WATCHDOG_S,
        )
        with on_gpus.opened():  # trials share it, whatever threads there are
            on_gpus.update_slots()
            assert on_gpus.slots == {first: 5}


@pytest.mark.usefixtures("forked_workers")
def test_real_workers_that_are_started_anew(sweep_setup: MakeSetup, tmp_path: Path) -> None:
    """Neither trial is begun again: one had its time, nothing ran beside the other."""
    hangs = tmp_path / "hangs"
    hungry = tmp_path / "hungry"

    class Hanging(Binary):
        """Two classes, whose first evaluation on a worker hangs; the second takes all memory."""

        @property
        def evaluator(self) -> str:
            if not hangs.exists():
                hangs.touch()
                threading.Event().wait()

            if not hungry.exists():
                hungry.touch()
                memory = bytearray(b"x") * (LIMIT_MIB << 20)  # above the limit at once
                threading.Event().wait()
                assert memory

            return BINARY.evaluator

    spec = schema.LocalCluster(
        "local", n_workers=1, threads_per_worker=1, memory_limit=f"{LIMIT_MIB}MiB"
    )
    common = sweep_setup(model("xgboost", n_estimators=2))
    task = dataclasses.replace(common.recipe.task, kind=Hanging())
    common = dataclasses.replace(common, recipe=dataclasses.replace(common.recipe, task=task))
    ended: list[Any] = []
    with opened(spec) as client:
        workers = TrialWorkers(client, common, 1, 120)
        with workers.opened():
            workers.load(3)
            pool = Pool(
                workers, 3, limit_s=8, now=lambda: 9.0 if hangs.exists() and not ended else 0.0
            )
            for event in pool.events(
                Listed([Proposal(at, {"max_depth": 3}) for at in range(3)], {})
            ):
                ended += [] if isinstance(event, TrialStarted) else [event]
    slow, large, last = ended
    assert (slow.number, slow.problem.code) == (0, "S008")
    assert (large.number, large.problem.code, large.retried) == (1, "S005", False)
    assert f"worker out of memory, limit {LIMIT_MIB} MiB" in large.problem.what
    assert last.number == 2


DRIVER = """
import sys
sys.path.insert(0, "tests")
import tipcast.jobs, tipcast.search.worker
heavy = {"matplotlib", "mlflow", "optuna", "pandas", "scipy", "sklearn"}
assert not heavy & set(sys.modules), "workers start light"
from distributed import Client
from tipcast.search.trial_workers import TrialWorkers
from unit.search.test_trials import model, sweep_setup
with Client(sys.argv[1]) as client:
    common = sweep_setup.__wrapped__()(model("xgboost"))
    workers = TrialWorkers(client, common, 1, 120)
    with workers.opened():
        workers.load(1)
        print(common.sweep_id, flush=True)
        sys.stdin.read()
"""


def traces(cluster: LocalCluster, sweep: str) -> list[Any]:
    """Return what there is of a sweep on the scheduler and on the worker."""
    scheduler = cluster.scheduler
    plugins = [name for name in (*scheduler.plugins, *scheduler.worker_plugins) if sweep in name]
    return [*plugins, *([sweep] if sweep in worker_side.CACHES else [])]


def test_sweeps_at_once_leave_the_scheduler_as_it_is(
    cluster: LocalCluster, sweep_setup: Any
) -> None:
    """Also where a driver was killed. Tasks of the sweep alone are given up when their worker
    dies.
    """
    command = [sys.executable, "-c", DRIVER, cluster.scheduler_address]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as driver:
        assert driver.stdout is not None
        sweep = driver.stdout.readline().strip()
        assert len(traces(cluster, sweep)) == 3
        driver.kill()
    wait_until(lambda: not traces(cluster, sweep))
    scheduler = cluster.scheduler
    before = scheduler.allowed_failures
    with Client(cluster) as first, Client(cluster) as second:
        one, other = (
            TrialWorkers(client, sweep_setup(model("xgboost")), 1, 120)
            for client in (first, second)
        )
        with one.opened():
            with other.opened():
                assert (
                    len(traces(cluster, one.sweep_setup.sweep_id))
                    == len(traces(cluster, other.sweep_setup.sweep_id))
                    == 3
                )
                keys = (f"trial-{one.sweep_setup.sweep_id}", "of-another")
                tasks = [first.submit(abs, -1, key=key, pure=False) for key in keys]
                first.gather(tasks)
                assert [before - scheduler.tasks[key].suspicious for key in keys] == [0, before]
            assert len(traces(cluster, one.sweep_setup.sweep_id)) == 3
            assert not traces(cluster, other.sweep_setup.sweep_id)
        assert not traces(cluster, one.sweep_setup.sweep_id)
    assert scheduler.allowed_failures == before > 0
