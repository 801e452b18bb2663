"""A worker process that its nanny ends because a trial takes more memory than it has."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from distributed import Nanny, Scheduler, SpecCluster

from tipcast.compute.workers import closed
from tipcast.search.pool import Pool
from tipcast.search.proposals import Listed
from tipcast.search.trial import Begun, Failed, Measured, Proposal, Study
from tipcast.search.workers import TrialWorkers

from .conftest import model

LIMIT_MIB = 800


@pytest.mark.usefixtures("forked")
def test_a_trial_that_runs_out_of_memory(study: Callable[..., Study]) -> None:
    """It fails with the limit in its message, and is not begun again: nothing ran beside it."""

    def hungry(scores: Any, labels: Any) -> Measured:
        held = bytearray(b"x") * (LIMIT_MIB << 20)  # above the limit at once, and no further
        threading.Event().wait()
        return Measured({"auc": float(len(held))})

    options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    spec = {0: {"cls": Nanny, "options": {"nthreads": 1, "memory_limit": LIMIT_MIB << 20, **options}}}
    scheduler = {"cls": Scheduler, "options": {"port": 0, **options}}
    common = Study(**{**vars(study(model("xgboost", n_estimators=2))), "measure": hungry})
    with closed(partial(SpecCluster, spec, scheduler, silence_logs=50), "here") as (_, client):
        workers = TrialWorkers(client, common, 1, 120)
        with workers.opened():
            workers.load(1)
            begun, failed = Pool(workers, 3).events(Listed([Proposal(0, {"max_depth": 3})], {}, cuts=False))
    assert isinstance(begun, Begun)
    assert isinstance(failed, Failed)
    assert failed.problem.code == "S005"
    assert f"worker out of memory, limit {LIMIT_MIB} MiB" in failed.problem.what
