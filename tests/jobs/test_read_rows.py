"""What the driver does while the workers read a training's rows."""

import os
import signal
import sys
from typing import Any, cast

import pytest
from distributed import Client
from tests.waiting import wait_until

from tipcast.compute.base import Session
from tipcast.compute.cluster import worker_names
from tipcast.compute.frames import CpuFrames
from tipcast.config.compose import compose, to_object
from tipcast.jobs import train
from tipcast.jobs.train import load_modules, loading_logging
from tipcast.jobs.train_plan import Plan, make_plan, read_rows
from tipcast.models.base import Estimator
from tipcast.models.build import build_for_task

WORDS = ("data.rows=20000", "data.block_rows=2000")


def planned(*words: str) -> tuple[Any, Plan]:
    """Return the configuration and the plan of a training."""
    config = to_object(compose("train", [*WORDS, *words])[0].config)
    return config, make_plan(config)


def test_a_worker_may_be_lost_while_the_driver_imports(short_lived: Client) -> None:
    config, plan = planned()
    session = Session(short_lived, "cpu", CpuFrames(), 2, 2)
    lost = min(worker_names(short_lived))
    process = short_lived.run(os.getpid, workers=[lost])[lost]

    def kill() -> None:
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: lost not in worker_names(short_lived))

    splits = read_rows(session, config, plan, kill)
    again = read_rows(session, config, plan)
    assert {name: rows.counts for name, rows in splits.items()} == {
        name: rows.counts for name, rows in again.items()
    }


def estimator_of(device: str, *words: str) -> tuple[Plan, Estimator]:
    """Return a training's plan and estimator."""
    config, plan = planned(*words)
    return plan, build_for_task(config.model, device, plan.task)


def test_a_fit_by_one_worker_needs_no_dask_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost.dask", None)
    _, estimator = estimator_of("cpu")
    estimator.load_fit(1, 20_000)
    with pytest.raises(ImportError, match=r"xgboost\.dask"):
        estimator.load_fit(2, 20_000)


def test_trees_that_gpus_grow_apart_need_no_dask_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuml", None)
    _, estimator = estimator_of("cuda", "model=random_forest")
    estimator.load_fit(2, 80_000_000)
    with pytest.raises(ImportError, match="cuml"):
        estimator.load_fit(2, 20_000)


def test_a_module_that_cannot_be_imported_ends_no_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "xgboost.dask", None)
    plan, estimator = estimator_of("cpu")
    session = Session(cast("Client", None), "cpu", CpuFrames(), 2, 2)
    load_modules(session, plan, estimator)


@pytest.mark.parametrize(
    ("device", "n_workers", "at_once"), [("cpu", 2, True), ("cuda", 1, True), ("cuda", 2, False)]
)
def test_imports_for_logging_do_not_slow_a_fit_by_several_gpus(
    monkeypatch: pytest.MonkeyPatch, device: str, n_workers: int, at_once: bool
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(train, "load_logging", lambda: loaded.append("plots"))
    plan, estimator = estimator_of("cpu")
    session = Session(cast("Client", None), device, CpuFrames(), n_workers, 2)

    load_modules(session, plan, estimator)
    assert bool(loaded) == at_once

    with loading_logging():
        loaded.clear()
    assert loaded
