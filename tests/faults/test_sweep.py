"""Sweeps that are hit: every trial is FINISHED exactly once, and nothing that has finished is begun
again.
"""

import json
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

QUICK = (
    "sweep",
    "search.trials=4",
    "data.rows=6000",
    "model.params.n_estimators=20",
    "model.fit.early_stopping_rounds=null",
    "print=json",
    "cluster.performance_report=false",
    "tracking.system_metrics=false",
    "cluster.wait_s=300",
)
ONE = (*QUICK, "cluster.processes=true", "cluster.n_workers=1", "cluster.threads_per_worker=1")
"""One trial after another, in a worker process."""
Start = Callable[..., Any]
Child = tuple[int, int, str]


def children(store: Any) -> list[Child]:
    """Return trial, attempt and state of every child run."""
    rows = store.query(
        "select n.value, a.value, r.status from runs r"
        " join tags n on n.run_uuid = r.run_uuid and n.key = 'trial.number'"
        " join tags a on a.run_uuid = r.run_uuid and a.key = 'trial.attempt'"
    )
    return sorted((int(number), int(attempt), status) for number, attempt, status in rows)


def parent(store: Any) -> tuple[str, str]:
    """Return the sweep's run and its state."""
    ((run_id, status),) = store.query(
        "select r.run_uuid, r.status from runs r join tags t on t.run_uuid = r.run_uuid"
        " where t.key = 'job' and t.value = 'sweep'"
    )
    return run_id, status


def wait_until_held(job: Any, store: Any, number: int) -> None:
    """Wait until a trial is at its gate, and those before it are recorded."""
    job.reached(f"trial-{number}")
    before = [(at, 1, "FINISHED") for at in range(number)]
    job.wait_until(lambda: children(store) == [*before, (number, 1, "RUNNING")])


def test_a_worker_is_killed(tipcast: Start, store: Any) -> None:
    """F05: its trial is begun exactly once more, the others never again."""
    job = tipcast(*QUICK, "cluster.n_workers=2", "cluster.threads_per_worker=1", hold="trial-2")
    (worker,) = job.reached("trial-2")
    os.kill(worker, signal.SIGKILL)
    job.open_gate()
    job.ends(0)
    assert Counter(job.trials()) == {0: 1, 1: 1, 2: 2, 3: 1}
    ended = [
        (0, 1, "FINISHED"),
        (1, 1, "FINISHED"),
        (2, 1, "KILLED"),
        (2, 2, "FINISHED"),
        (3, 1, "FINISHED"),
    ]
    assert children(store) == ended
    (reason,) = store.tag("error.message")
    assert re.fullmatch(r"worker tcp://127\.0\.0\.1:\d+ died or is paused", reason)


def test_a_worker_is_killed_in_the_last_fit(tipcast: Start, store: Any) -> None:
    """It goes on from its checkpoint, as a training does."""
    workers = ("cluster.n_workers=2", "cluster.threads_per_worker=1")
    words = (*QUICK, *workers, "search.trials=2", "model.fit.checkpoint_s=0.000001")
    job = tipcast(*words, hold="checkpoint")
    (worker,) = job.reached("checkpoint")
    os.kill(worker, signal.SIGKILL)
    job.open_gate()
    job.ends(0)
    assert "continues after round 1\n" in job.err
    assert job.trials() == [0, 1]
    assert store.tag("recoveries") == ["1"]


def test_a_trial_that_ends_every_worker(tipcast: Start, store: Any) -> None:
    """F06: it fails and says why, the others are begun once; a resumed sweep tries it again and is
    whole.
    """
    job = tipcast(*ONE, "search.attempts=2", hold="trial-1", name="first")
    for times in (1, 2):
        os.kill(job.reached("trial-1", times)[-1], signal.SIGKILL)
    assert re.match(r"error\[S001\] .*worker tcp://127\.0\.0\.1:\d+ died.* Fix: ", job.ends(7))
    assert Counter(job.trials()) == {0: 1, 1: 2, 2: 1, 3: 1}
    ended = [
        (0, 1, "FINISHED"),
        (1, 1, "KILLED"),
        (1, 2, "FAILED"),
        (2, 1, "FINISHED"),
        (3, 1, "FINISHED"),
    ]
    assert children(store) == ended
    run_id, status = parent(store)
    assert status == "FINISHED"
    assert sorted(store.tag("error.code")) == ["S001", "S007"]
    again = tipcast("sweep", f"resume={run_id}", name="again")
    again.ends(0)
    assert again.trials() == [1]
    assert children(store) == sorted([*ended, (1, 3, "FINISHED")])
    assert store.tag("error.code") == ["S007"], "the sweep has none any more"


@pytest.mark.parametrize(
    ("number", "code", "word"), [("SIGTERM", 143, "terminated"), ("SIGINT", 130, "interrupted")]
)
def test_stopped(tipcast: Start, store: Any, number: str, code: int, word: str) -> None:
    """F08, F09: everything is closed as KILLED, and the sweep says how to go on."""
    job = tipcast(*ONE, hold="trial-2")
    wait_until_held(job, store, 2)
    # Ctrl-C of a terminal goes to every process of the group
    (os.killpg if number == "SIGINT" else os.kill)(job.process.pid, signal.Signals[number])
    assert re.fullmatch(f"{word}: the open run is closed as KILLED", job.ends(code))
    run_id, status = parent(store)
    assert status == "KILLED"
    assert f"2 of 4 trials are done; continue with: tipcast sweep resume={run_id}\n" in job.err
    assert children(store) == [(0, 1, "FINISHED"), (1, 1, "FINISHED"), (2, 1, "KILLED")]


def test_a_sweep_that_was_killed_is_resumed_by_one_process(tipcast: Start, store: Any) -> None:
    """F10, F28: a resumed sweep begins what is missing and nothing else, in one process at a
    time.
    """
    first = tipcast(*ONE, "search=tpe", hold="trial-2", name="first")
    wait_until_held(first, store, 2)
    os.kill(first.process.pid, signal.SIGKILL)
    first.ends(-signal.SIGKILL)
    run_id, status = parent(store)
    assert status == "RUNNING", "nobody was left to close it"
    second = tipcast("sweep", f"resume={run_id}", "print=json", hold="trial-3", name="second")
    second.reached("trial-3")
    third = tipcast("sweep", f"resume={run_id}", name="third")
    holder = f"process {second.process.pid} on {socket.gethostname()}"
    assert re.match(rf"error\[S002\] {run_id}: {re.escape(holder)} .* Fix: ", third.ends(7))
    second.open_gate()
    second.ends(0)
    assert second.trials() == [2, 3]
    ended = [
        (0, 1, "FINISHED"),
        (1, 1, "FINISHED"),
        (2, 1, "KILLED"),
        (2, 2, "FINISHED"),
        (3, 1, "FINISHED"),
    ]
    assert children(store) == ended
    said = json.loads((second.folder / "stdout").read_text().splitlines()[-1])
    assert said["trials"] == {"finished": 4, "failed": 0, "all": 4}
    assert parent(store) == (run_id, "FINISHED")


def scores(store: Any, run_id: str) -> dict[int, float]:
    """Return trial -> validation AUC, of the trials of a sweep that ended well."""
    rows = store.query(
        "select n.value, m.value from runs r"
        f" join tags p on p.run_uuid = r.run_uuid and p.value = '{run_id}'"
        " and p.key = 'mlflow.parentRunId'"
        " join tags n on n.run_uuid = r.run_uuid and n.key = 'trial.number'"
        " join latest_metrics m on m.run_uuid = r.run_uuid and m.key = 'validation/auc'"
        " where r.status = 'FINISHED'"
    )
    return {int(number): float(score) for number, score in rows}


def test_a_halving_that_was_killed_makes_the_same_promotions(tipcast: Start, store: Any) -> None:
    """It was killed between the two trials of its last rung: the second grows all its trees."""
    words = (*ONE, "search=halving", "search.trials=6", "search.min_trees=6")
    whole = tipcast(*words, name="whole")
    whole.ends(0)
    whole_id, _ = parent(store)
    begun = [int(point.partition("-")[2]) for point, _ in whole.events if "trial-" in point]
    last = begun[-1]

    first = tipcast(*words, hold=f"trial-{last}", name="first")
    first.reached(f"trial-{last}")
    first.wait_until(lambda: [status for *_, status in children(store)].count("FINISHED") == 15)
    os.kill(first.process.pid, signal.SIGKILL)
    first.ends(-signal.SIGKILL)

    second = tipcast("sweep", "resume=last", "print=json", name="second")
    second.ends(0)
    said = json.loads((second.folder / "stdout").read_text().splitlines()[-1])
    assert len(begun) == 8
    assert first.trials() == sorted(begun)
    assert second.trials() == [last]
    assert said["run_id"] != whole_id
    assert scores(store, said["run_id"]) == scores(store, whole_id)


def test_the_scheduler_is_killed(tipcast: Start, store: Any, scheduler: Any, worker: Start) -> None:
    """F22: what has finished is kept, and goes on elsewhere."""
    process, address = scheduler
    hand = worker(hold="trial-2")
    job = tipcast(*QUICK, "cluster=scheduler", f"cluster.address={address}", name="first")
    hand.reached("trial-2")
    two = [(0, 1, "FINISHED"), (1, 1, "FINISHED")]
    job.wait_until(lambda: children(store) == [*two, (2, 1, "RUNNING")])
    process.process.kill()
    assert re.match(rf"error\[K004\] {address}: the scheduler is gone\. Fix: ", job.ends(4))
    assert [(number, attempt) for number, attempt, _ in children(store)] == [(0, 1), (1, 1), (2, 1)]
    assert children(store)[:2] == two
    run_id, status = parent(store)
    assert status == "FAILED"
    assert store.tag("error.code") == ["K004"]
    again = tipcast(
        "sweep", f"resume={run_id}", "cluster=local", "cluster.processes=false", name="again"
    )
    again.ends(0)
    assert again.trials() == [2, 3]
