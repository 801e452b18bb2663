"""A watch that is killed: the next one goes on where it was, and trains and promotes each once."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from tests import warm
from tests.faults.conftest import PATIENCE_S

Start = Callable[..., Any]


def _killed(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_training() -> None:
    """Let the challenger's training be killed, once its run is open and its workers are up."""
    from tipcast.jobs import train

    train.finish = _killed  # type: ignore[assignment]


def before_promotion() -> None:
    """Let the watch be killed, once the challenger is registered."""
    from tipcast.jobs import promote

    promote._rescored = _killed  # type: ignore[assignment]


def before_the_end() -> None:
    """Let the watch be killed, once the challenger is the champion."""
    from tipcast.jobs import watch

    watch._keep = _killed  # type: ignore[assignment]


def test_killed_and_taken_up(tipcast: Start, registered: Path, tmp_path: Path) -> None:
    store = f"sqlite:///{shutil.copy(registered, tmp_path / 'store.db')}"
    client, months = mlflow.MlflowClient(store), tmp_path / "months"
    words = ["prepare", "data.rows=6000", "data.months=2019-05..2019-06", f"out={months}", "cluster.processes=false"]
    assert warm.start(words, tmp_path, warm.environment()).wait(PATIENCE_S) == 0
    for path in months.glob("*.parquet"):
        frame = pd.read_parquet(path)
        frame["tip_amount"] = np.where(frame["tpep_pickup_datetime"].dt.hour < 12, 0.5, 0) * frame["fare_amount"]
        frame.to_parquet(path, index=False)
    words = ["watch", "model_uri=models:/tipcast/1", f"input={months}/*.parquet", f"output={tmp_path / 'scored'}"]
    words += ["retrain=watched", f"tracking.uri={store}", "tracking.system_metrics=false", "cluster.n_workers=1"]
    client.set_registered_model_alias("tipcast", "champion", "1")
    for at, before in enumerate((in_training, before_promotion, before_the_end)):
        own = () if at == 0 else ("cluster.processes=false",)  # the first has worker processes
        job = tipcast(*words, *own, name=before.__name__, before=before)
        assert job.end() == -signal.SIGKILL, job.err
        assert len(client.search_model_versions("name='tipcast'")) == (1 if at == 0 else 2)
        assert int(client.get_registered_model("tipcast").aliases["champion"]) == (2 if at == 2 else 1)
    words.append("cluster.processes=false")
    job = tipcast(*words)
    assert job.end() == 10, job.err
    assert len(client.search_model_versions("name='tipcast'")) == 2
    assert int(client.get_registered_model("tipcast").aliases["champion"]) == 2
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".scored")] == []
    found = client.search_runs([each.experiment_id for each in client.search_experiments()])
    jobs = [run.data.tags["job"] for run in found if run.info.status == "FINISHED"]
    assert sorted(jobs) == ["promote", "train", "train", "watch"]
    job = tipcast(*words, name="again")
    assert job.end() == 10, "it is as it was"
    assert len(client.search_runs([each.experiment_id for each in client.search_experiments()])) == len(found)
