"""A worker process that is ended: for a trial that hangs, and by its nanny for one that takes too much memory."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from distributed import Nanny, Scheduler, SpecCluster

from tipcast.compute.workers import closed
from tipcast.search.pool import Pool, TrialWorkers
from tipcast.search.proposals import Listed
from tipcast.search.trial import Ended, Failed, Measured, Proposal, Study

from .conftest import model

LIMIT_MIB = 800


@pytest.mark.usefixtures("forked")
def test_real_workers_that_are_started_anew(study: Callable[..., Study], tmp_path: Path) -> None:
    """Neither trial is begun again: one had its time, nothing ran beside the other."""
    hangs, hungry = tmp_path / "hangs", tmp_path / "hungry"

    def measure(scores: Any, labels: Any) -> Measured:
        if not hangs.exists():
            hangs.touch()
            threading.Event().wait()
        if not hungry.exists():
            hungry.touch()
            held = bytearray(b"x") * (LIMIT_MIB << 20)  # above the limit at once, and no further
            threading.Event().wait()
            assert held
        return Measured({"auc": 0.5}, ())

    options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    spec = {0: {"cls": Nanny, "options": {"nthreads": 1, "memory_limit": LIMIT_MIB << 20, **options}}}
    scheduler = {"cls": Scheduler, "options": {"port": 0, **options}}
    common = dataclasses.replace(study(model("xgboost", n_estimators=2)), measure=measure)
    with closed(partial(SpecCluster, spec, scheduler, silence_logs=50), "here") as (_, client):
        workers = TrialWorkers(client, common, 1, 120)
        with workers.opened():
            workers.load(3)
            pool = Pool(workers, 3, limit_s=8, now=lambda: 9.0 if hangs.exists() and not ended else 0.0)
            ended: list[Any] = []
            for event in pool.events(Listed([Proposal(at, {"max_depth": 3}) for at in range(3)], {})):
                if not isinstance(event, Ended | Failed):
                    continue
                ended.append(event)
    slow, large, last = ended
    assert (slow.number, slow.problem.code) == (0, "S008")
    assert (large.number, large.problem.code) == (1, "S005")
    assert f"worker out of memory, limit {LIMIT_MIB} MiB" in large.problem.what
    assert last.trial.number == 2
