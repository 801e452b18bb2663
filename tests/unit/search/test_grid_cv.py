"""GridSearchCV on real workers, heard of trial by trial: what ends well, what fails, and a worker that dies."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import CancelledError, Client, LocalCluster
from distributed.scheduler import KilledWorker
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import roc_auc_score
from tests.conftest import NO_PAGES

from tipcast.evaluation.two_classes import TRIAL_STEPS
from tipcast.models.base import Split
from tipcast.search import grid_cv
from tipcast.search.trial import Begun, Ended, Failed, Lost, Proposal, Study

from .conftest import model


class Noisy(ClassifierMixin, BaseEstimator):
    """Scores by the first feature and some noise; fails, or waits at a gate, where it is told to."""

    def __init__(self, noise: float = 0.0, gate: str = "") -> None:
        self.noise, self.gate = noise, gate

    def fit(self, x: Any, y: Any) -> Noisy:
        if self.noise < 0:
            raise ValueError("noise is below 0")
        if self.gate and self.noise == 1:
            Path(self.gate).with_name(f"{os.getpid()}.process").touch()
            while Path(self.gate).exists():
                time.sleep(0.02)
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, x: Any) -> Any:
        scores = (x[:, 0] + self.noise * np.random.default_rng(0).random(len(x))) / (1 + self.noise)
        if self.noise == 3:
            scores[0] = np.nan
        return np.stack([1 - scores, scores], axis=1)


@pytest.fixture
def rows() -> Split:
    rng = np.random.default_rng(1)
    x, held_out = rng.random((300, 2)), rng.random((200, 2))
    y, labels = ((part[:, 0] > 0.5).astype(np.int32) for part in (x, held_out))
    labels[:40] = 1 - labels[:40]
    return Split(x, y, (held_out, labels))


def proposals(*noises: float) -> list[Proposal]:
    return [Proposal(number, {"noise": noise}) for number, noise in enumerate(noises)]


def test_trials_are_told_one_by_one(pair: Client, study: Callable[..., Study], rows: Split) -> None:
    wanted = proposals(0.0, -1.0, 2.0, 3.0, 0.5)
    events = list(grid_cv.events(pair, study(model("svc")), Noisy(), rows, wanted))
    begun = [event.work.numbers[0] for event in events if isinstance(event, Begun)]
    assert sorted(begun) == [0, 1, 2, 3, 4]
    ended = {event.work.numbers[0]: event.trials[0] for event in events if isinstance(event, Ended)}
    failed = {event.work.numbers[0]: event.problem for event in events if isinstance(event, Failed)}
    assert sorted(ended) == [0, 2, 4]
    assert {number: problem.code for number, problem in failed.items()} == {1: "S006", 3: "M010"}
    assert failed[1].what == "ValueError: noise is below 0"
    held_out, labels = rows.validation
    for number, trial in ended.items():
        same = Noisy(wanted[number].params["noise"]).predict_proba(held_out)[:, 1]
        assert trial.score == pytest.approx(roc_auc_score(labels, same), abs=1e-12)
        assert trial.params == wanted[number].params
        assert trial.worker in pair.nthreads()
        assert len(trial.curve) == TRIAL_STEPS + 1
        assert set(trial.phases) == {"fit", "score"}
    assert len({trial.score for trial in ended.values()}) == 3


def test_all_trials_may_fail(pair: Client, study: Callable[..., Study], rows: Split) -> None:
    events = list(grid_cv.events(pair, study(model("svc")), Noisy(), rows, proposals(-1.0, -2.0)))
    assert [event.problem.code for event in events if isinstance(event, Failed)] == ["S006", "S006"]


def test_the_same_rows_are_searched_again_and_again(pair: Client, study: Callable[..., Study], rows: Split) -> None:
    for noise in np.linspace(0.1, 0.9, 5):
        events = list(grid_cv.events(pair, study(model("svc")), Noisy(), rows, proposals(noise)))
        assert [type(event) for event in events] == [Begun, Ended]


def test_one_thread_is_enough(study: Callable[..., Study], rows: Split) -> None:
    with (
        LocalCluster(processes=False, n_workers=1, threads_per_worker=1, **NO_PAGES) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        events = list(grid_cv.events(client, study(model("svc")), Noisy(), rows, proposals(0.0, 0.5)))
    assert [type(event) for event in events] == [Begun, Ended, Begun, Ended]


def test_a_trial_of_a_worker_that_dies_is_begun_again(
    pair: Client, study: Callable[..., Study], rows: Split, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    events, struck = [], False
    for event in grid_cv.events(pair, study(model("svc")), Noisy(gate=str(gate)), rows, proposals(1.0, 0.5, 0.0)):
        events.append(event)
        if isinstance(event, Begun) and event.work.numbers == (0,) and not struck:
            struck = True
            deadline = time.monotonic() + 10
            while not list(tmp_path.glob("*.process")) and time.monotonic() < deadline:
                time.sleep(0.02)
            (process,) = tmp_path.glob("*.process")
            time.sleep(3)  # the active memory manager looks for copies every two seconds
            os.kill(int(process.stem), signal.SIGKILL)
            gate.unlink()
    assert pair.amm.running()
    of_first = [event for event in events if event.work.numbers == (0,)]
    assert [type(event) for event in of_first] == [Begun, Lost, Begun, Ended]
    assert of_first[1].reason.endswith("died")
    assert of_first[3].trials[0].attempt == 2
    assert sorted(event.work.numbers[0] for event in events if isinstance(event, Ended)) == [0, 1, 2]


def test_a_search_without_workers_ends(forked: None, study: Callable[..., Study], rows: Split, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()

    def killed() -> None:
        while gate.exists():
            for process in tmp_path.glob("*.process"):
                process.unlink()
                os.kill(int(process.stem), signal.SIGKILL)
            time.sleep(0.05)

    with (
        LocalCluster(n_workers=1, threads_per_worker=2, **NO_PAGES, host="127.0.0.1") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        threading.Thread(target=killed, daemon=True).start()
        with pytest.raises((KilledWorker, CancelledError)):  # the fit was tried in vain, or its rows are gone
            list(grid_cv.events(client, study(model("svc")), Noisy(gate=str(gate)), rows, proposals(1.0, 0.0)))
        gate.unlink()


def test_a_search_that_is_left_leaves_the_workers_usable(
    pair: Client, study: Callable[..., Study], rows: Split
) -> None:
    events = grid_cv.events(pair, study(model("svc")), Noisy(), rows, proposals(*np.linspace(0.1, 0.9, 12)))
    assert isinstance(next(events), Begun)
    events.close()
    again = list(grid_cv.events(pair, study(model("svc")), Noisy(), rows, proposals(0.1)))
    assert [type(event) for event in again] == [Begun, Ended]
