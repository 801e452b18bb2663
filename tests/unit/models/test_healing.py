"""How often a fit begins again, and where its rows lie then."""

import threading
from dataclasses import dataclass, field
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest
from distributed import Client, LocalCluster
from tests.conftest import NO_PAGES
from tests.waiting import wait_until

from tipcast.compute.cluster import successors
from tipcast.config.errors import TipcastError
from tipcast.datasets.counts import Counts
from tipcast.datasets.rows import Rows
from tipcast.models import fit as fits
from tipcast.models import healing
from tipcast.models.base import Estimator, Fitted

ATTEMPTS: list[str] = []
"""Fits of ``Losing`` since a test began; its tasks run in this process."""
HELD = threading.Lock()
NO_COUNTS = Counts(rows=0, rows_read=0, dropped={})


@dataclass(frozen=True)
class Losing(Estimator):
    """Loses a worker in its first fits."""

    params: dict = field(default_factory=dict)
    fit_settings: dict = field(default_factory=dict)
    device: str = "cpu"
    losses: int = 0
    code: str = "K003"
    every_s: float | None = None

    @property
    def checkpoint_s(self):
        return self.every_s

    def check(self):
        pass

    def fit(self, rows, seed, threads=1):
        with HELD:
            ATTEMPTS.append("fit")
            if len(ATTEMPTS) <= self.losses:
                raise TipcastError(self.code, "tcp://127.0.0.1:1", "worker lost", "repeat")
        return Fitted(scorer=len(rows.x[0]), info={}, format="", content=bytes)

    def fit_distributed(self, client, rows, seed, progress=None):
        raise AssertionError("all rows are on one worker")


@pytest.fixture
def alone():
    """A worker that holds all rows."""
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, **NO_PAGES) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def fit(alone, parts):
    """Fits an estimator on rows of the one worker, with at most so many recoveries."""
    ATTEMPTS.clear()
    x, y = alone.scatter(list(parts[0]), hash=False)
    rows = Rows([x], [y], NO_COUNTS, (len(parts[0][0]),))

    def healed(estimator, recoveries):
        return healing.fit(alone, estimator, {"train": rows}, 0, recoveries=recoveries, wait_s=5.0)

    return healed


def test_a_fit_that_loses_nothing_has_no_recovery(fit):
    healed = fit(Losing(), recoveries=2)
    assert healed.recoveries == 0
    assert healed.waited_s == 0


def test_a_model_with_checkpoints_goes_on_as_often_as_it_may(fit, parts):
    healed = fit(Losing(losses=2, every_s=60.0), recoveries=2)
    assert healed.recoveries == 2
    assert healed.fitted.scorer == len(parts[0][0])
    assert healed.waited_s > 0


def test_one_loss_too_many_ends_the_fit(fit):
    with pytest.raises(TipcastError, match="K003"):
        fit(Losing(losses=3, every_s=60.0), recoveries=2)
    assert len(ATTEMPTS) == 3


def test_a_model_without_checkpoints_begins_again_once(fit):
    with pytest.raises(TipcastError, match="K003"):
        fit(Losing(losses=2), recoveries=5)
    assert len(ATTEMPTS) == 2


def test_no_recovery_was_asked_for(fit):
    with pytest.raises(TipcastError, match="K003"):
        fit(Losing(losses=1, every_s=60.0), recoveries=0)
    assert len(ATTEMPTS) == 1


def test_another_error_ends_the_fit(fit):
    with pytest.raises(TipcastError, match="D015"):
        fit(Losing(losses=1, every_s=60.0, code="D015"), recoveries=2)
    assert len(ATTEMPTS) == 1


def test_a_worker_lost_before_it_is_known_what_it_held(fit, monkeypatch, parts):
    """Its rows were there when all had been read, and are gone when their places are asked for."""
    lost = TipcastError("K003", "a worker that held rows", "worker lost while training", "repeat")
    holders = Mock(wraps=fits.holders, side_effect=[lost, DEFAULT, DEFAULT, DEFAULT])
    monkeypatch.setattr(fits, "holders", holders)
    healed = fit(Losing(), recoveries=1)
    assert healed.recoveries == 1
    assert healed.fitted.scorer == len(parts[0][0])


def test_a_lost_worker_is_named(fit, caplog):
    fit(Losing(losses=1), recoveries=1)
    assert "lost while training: tcp://127.0.0.1:1; a replacement reads" in caplog.text


def test_a_driver_that_is_gone_leaves_no_checkpoint_on_the_scheduler(alone):
    """As on a scheduler that outlives it."""
    scheduler = alone.cluster.scheduler
    variables = scheduler.extensions["variables"].variables
    with (
        Client(alone.cluster, set_as_default=False) as killed,
        healing._variable(alone, b"of another") as others,
    ):
        mine = healing._variable(killed, b"kept").__enter__()
        wait_until(lambda: {others.name, mine.name} <= set(variables))
        killed.close()
        wait_until(lambda: mine.name not in variables)
        assert others.name in variables
        assert mine.name not in scheduler.plugins
    wait_until(lambda: others.name not in variables)
    assert others.name not in scheduler.plugins


def test_rows_that_are_not_at_home_are_copied(pair, parts):
    first, second = sorted(pair.nthreads())
    x = [pair.scatter(x, workers=[first], hash=False) for x, _ in parts[:2]]
    y = [pair.scatter(y, workers=[first], hash=False) for _, y in parts[:2]]
    rows = Rows(x, y, NO_COUNTS, tuple(len(x) for x, _ in parts[:2]))
    moved = rows.moved(pair, [first, second, "", second])
    assert moved.x[0] is x[0]
    assert moved.y[0] is y[0]
    for (frame, target), moved_x, moved_y in zip(parts[:2], moved.x, moved.y, strict=True):
        np.testing.assert_array_equal(moved_x.result(), frame)
        np.testing.assert_array_equal(moved_y.result(), target)
    # Where Dask makes the copies is its choice at last: a busy worker's tasks may be stolen.
    assert moved.x[1].key != x[1].key
    assert moved.y[1].key != y[1].key


@pytest.mark.parametrize(
    ("now", "places"),
    [
        pytest.param({"a": "0", "b": "1"}, {"a": "a", "b": "b"}, id="none is lost"),
        pytest.param({"a": "0", "c": "1"}, {"a": "a", "b": "c"}, id="one came back"),
        pytest.param({"c": "1", "d": "0"}, {"a": "d", "b": "c"}, id="both came back"),
        pytest.param({"a": "0"}, {"a": "a"}, id="one is left"),
        pytest.param({"a": "0", "c": "c"}, {"a": "a", "b": "c"}, id="one came without a name"),
        pytest.param({}, {}, id="all are gone"),
    ],
)
def test_successors(now, places):
    assert successors({"a": "0", "b": "1"}, now) == places
