"""What a job meets when it begins: another that makes the store's tables, a scheduler without
workers.
"""

import re
from collections.abc import Callable
from typing import Any

WORDS = ("train", "model=logistic", "data.rows=4000", "tracking.system_metrics=false")
Start = Callable[..., Any]


def test_two_processes_open_a_new_store(tipcast: Start, store: Any) -> None:
    """F15: the second waits while the first makes the tables, and both train."""
    store.file.unlink()
    first = tipcast(*WORDS, "cluster.processes=false", hold="tables", name="first")
    first.reached("tables")
    second = tipcast(
        *WORDS, "cluster.processes=false", hold="tables", name="second", gate=first.gate
    )
    second.reached("store", 2)
    first.open_gate()
    first.ends(0)
    second.ends(0)
    opened = [event for event in first.events if event[0] in ("tables", "opened")]
    assert {process for _, process in opened} == {first.process.pid, second.process.pid}
    for begun, ended in zip(opened[::2], opened[1::2], strict=True):
        assert (begun, ended) == (("tables", begun[1]), ("opened", begun[1])), opened
    assert store.statuses() == ["FINISHED", "FINISHED"]


def test_a_scheduler_without_workers(
    tipcast: Start, store: Any, scheduler: Any, worker: Start
) -> None:
    """F24: a job waits for workers for so long; once one is there it trains, and leaves the cluster
    alone.
    """
    _, address = scheduler
    words = (
        *WORDS,
        "cluster=scheduler",
        f"cluster.address={address}",
        "cluster.performance_report=false",
    )
    words += ("cluster.connect_timeout_s=60",)
    job = tipcast(*words, "cluster.wait_s=1", name="early")
    assert re.match(rf"error\[K002\] {address}: 0 of 1 workers after 1 s.* Fix: ", job.ends(4))
    assert store.statuses() == ["FAILED"]
    assert store.tag("error.code") == ["K002"]
    hand = worker()
    tipcast(*words, "cluster.wait_s=300", name="late").ends(0)
    assert store.statuses() == ["FAILED", "FINISHED"]
    assert hand.process.poll() is None, "the cluster is not ours to end"
