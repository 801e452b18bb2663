"""Threads of workers that train together, after a training that has lost a worker."""

import threading
from collections.abc import Iterator

import pytest
from dask.base import annotate
from distributed import Client, LocalCluster
from tests.conftest import NO_PAGES

from tipcast.models import xgboost_workers
from tipcast.models.xgboost_workers import EXECUTOR, TrainingThread, busy_threads

LEFT = threading.Event()
"""Set when the thread that is held may leave; workers are threads of this process."""


def hold() -> None:
    LEFT.wait()


@pytest.fixture
def workers() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, **NO_PAGES) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def test_workers_that_never_trained_together_are_free(workers: Client) -> None:
    assert busy_threads(workers) == []


def test_a_thread_that_is_free_takes_a_task(workers: Client) -> None:
    workers.register_plugin(TrainingThread())
    assert busy_threads(workers) == []


def test_a_thread_that_does_not_leave_its_training_is_busy(
    workers: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xgboost_workers, "LEAVE_S", 0.3)
    workers.register_plugin(TrainingThread())
    first, _ = sorted(workers.nthreads())
    LEFT.clear()
    with annotate(executor=EXECUTOR):
        held = workers.submit(hold, workers=[first], pure=False)
    assert busy_threads(workers) == [first]
    LEFT.set()
    held.result()
