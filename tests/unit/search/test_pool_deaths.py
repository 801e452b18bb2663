"""Workers that are processes of one and of three threads: those that die, and those that would never end."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Nanny, Scheduler, SpecCluster

from tipcast.compute.workers import closed
from tipcast.search.pool import Pool
from tipcast.search.proposals import Listed
from tipcast.search.trial import Ended, Event, Failed, Lost, Measured, Proposal, Study, Trial
from tipcast.search.workers import TrialWorkers

from .conftest import model

Made = Callable[..., Study]
FIT_S = 0.4


@pytest.fixture(scope="module")
def workers(forked: None) -> Iterator[Client]:
    """Workers of one thread and of three."""
    options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    spec = {at: {"cls": Nanny, "options": {"nthreads": threads, **options}} for at, threads in enumerate((1, 3))}
    scheduler = {"cls": Scheduler, "options": {"port": 0, **options}}
    with closed(partial(SpecCluster, spec, scheduler, silence_logs=50)) as (_, client):
        yield client


def hit(folder: Path, times: int, how: Callable[[], object]) -> Callable[[Any, Any], Measured]:
    """Return what measures a trial and says when; the first times it dies or hangs."""

    def measure(scores: Any, labels: Any) -> Measured:
        begun = time.time()
        time.sleep(FIT_S)
        for at in range(times):
            try:
                (folder / str(at)).touch(exist_ok=False)
            except FileExistsError:
                continue
            how()
        return Measured({"auc": 0.5, "begun": begun, "ended": time.time()}, ())

    return measure


def events(client: Client, study: Study, trials: int, **more: Any) -> list[Event]:
    workers = TrialWorkers(client, study, 1, 120)
    proposals = [Proposal(at, {"max_depth": 3}) for at in range(trials)]
    with workers.opened():
        workers.load(3)
        return list(Pool(workers, **{"attempts": 3, **more}).events(Listed(proposals, {}, cuts=False)))


def ended(found: list[Event]) -> list[Trial]:
    return [trial for event in found if isinstance(event, Ended) for trial in event.trials]


def made(study: Made, measure: Any) -> Study:
    return Study(**{**vars(study(model("xgboost", n_estimators=2))), "measure": measure})


def test_a_trial_that_is_begun_again_has_its_worker_to_itself(workers: Client, study: Made, tmp_path: Path) -> None:
    common = made(study, hit(tmp_path, 2, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    found = events(workers, common, 12)
    trials = ended(found)
    assert sorted(trial.number for trial in trials) == list(range(12))
    again = [trial for trial in trials if trial.attempt > 1]
    assert {trial.number for trial in again} == {
        n for event in found if isinstance(event, Lost) for n in event.work.numbers
    }
    for one in again:
        for other in trials:
            apart = other.metrics["ended"] <= one.metrics["begun"] or one.metrics["ended"] <= other.metrics["begun"]
            assert other is one or other.worker != one.worker or apart, "it is not alone"


def test_a_trial_that_never_ends(workers: Client, study: Made, tmp_path: Path) -> None:
    common = made(study, hit(tmp_path, 1, lambda: time.sleep(600)))
    found = events(workers, common, 8, limit_s=8)
    (failed,) = [event for event in found if isinstance(event, Failed)]
    assert failed.problem.code == "S008"
    assert "8 s" in str(failed.problem)
    assert len(ended(found)) == 7
    assert not {trial.number for trial in ended(found)} & set(failed.work.numbers)


def test_what_has_ended_is_not_begun_again(workers: Client, study: Made, tmp_path: Path) -> None:
    """The workers die when all is done, and the driver has yet to hear of it."""

    def measure(scores: Any, labels: Any) -> Measured:
        tempfile.mkstemp(dir=tmp_path)
        return Measured({"auc": 0.5})

    hosts = TrialWorkers(workers, made(study, measure), 1, 120)
    proposals = [Proposal(at, {"max_depth": 3}) for at in range(3)]
    found: list[Event] = []
    with hosts.opened():
        hosts.load(3)
        while len(hosts.slots) < len(workers.cluster.workers):  # a test before may have ended one
            time.sleep(0.1)
            hosts.look()
        for event in Pool(hosts, 3).events(Listed(proposals, {}, cuts=False)):
            if not found:
                while len(list(tmp_path.iterdir())) < len(proposals):
                    time.sleep(0.01)
                time.sleep(0.5)
                killed = set(workers.run(os.getpid).values())
                for process in killed:
                    os.kill(process, signal.SIGKILL)
                time.sleep(0.5)
            found.append(event)
    assert sorted(trial.number for trial in ended(found)) == [0, 1, 2]
    assert not [event for event in found if isinstance(event, Lost)]
    while len(set(workers.run(os.getpid, on_error="ignore").values()) - killed) < len(killed):
        time.sleep(0.1)
    assert len(list(tmp_path.iterdir())) == len(proposals)
