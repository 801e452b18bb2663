"""A grid search by joblib that is stopped: nothing stays open, and what is missing is run when it is resumed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.faults.conftest import STOP_S

WORDS = (
    "experiment=svc_grid", "data.rows=12000", "model.fit.rows=1200", "search.space.gamma=[0.03,0.3]",
    "print=json", "cluster.performance_report=false",
    "tracking.system_metrics=false", "cluster.n_workers=2", "cluster.threads_per_worker=1",
)  # fmt: skip


def children(store: Path) -> list[tuple[str, int]]:
    """Return the state and the trial of every child."""
    query = (
        "select r.status, t.value from runs r join tags t on t.run_uuid = r.run_uuid and t.key = 'trial.number'"
        " order by r.start_time"
    )
    if not store.exists():
        return []
    with contextlib.closing(sqlite3.connect(store, timeout=20)) as database, contextlib.suppress(sqlite3.Error):
        return [(status, int(number)) for status, number in database.execute(query)]
    return []


@pytest.mark.long
@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_and_resumed(tipcast: Callable[..., Any], tmp_path: Path, number: int, expected: int) -> None:
    store = tmp_path / "mlflow.db"
    where = {"MLFLOW_TRACKING_URI": f"sqlite:///{store}"}
    job = tipcast("sweep", *WORDS, **where)
    job.wait_for(lambda: {"FINISHED", "RUNNING"} <= {status for status, _ in children(store)})
    tree = job.tree()
    assert len(tree) > 2
    if number == signal.SIGINT:
        os.killpg(job.process.pid, number)  # as a terminal does: to every process of the group
    else:
        job.process.send_signal(number)
    assert job.end(STOP_S) == expected, job.err
    _, alive = psutil.wait_procs(tree, timeout=2)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    stopped = Counter(status for status, _ in children(store))
    assert set(stopped) == {"FINISHED", "KILLED"}
    assert len([line for line in job.err.splitlines() if not line.startswith("trial ")]) <= 8, job.err
    assert f"{stopped['FINISHED']} of 6 trials are done; go on with: tipcast sweep resume=" in job.err
    (parent,) = (line.rpartition("resume=")[2] for line in job.err.splitlines() if "resume=" in line)
    again = tipcast("sweep", f"resume={parent}", "print=json", name="again", **where)
    assert again.end() == 0, again.err
    ended = [trial for status, trial in children(store) if status == "FINISHED"]
    assert sorted(ended) == list(range(6)), "none is fitted twice"
    said = json.loads((again.folder / "stdout").read_text().splitlines()[-1])
    assert said["trials"] == {"finished": 6, "failed": 0, "all": 6}
