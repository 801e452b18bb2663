"""`tipcast sweep search=halving` as a user runs it: a run for each fit, the same promotions however
it runs, and the models it refuses.
"""

import contextlib
import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from tests.jobs.conftest import children, console_lines, run_job

from tipcast.config.errors import TipcastError

HALVING = (
    "data.rows=5000",
    "search=halving",
    "search.trials=9",
    "search.min_trees=4",
    "model.params.n_estimators=40",
)
TREES = {0: 4, 1: 13, 2: 40}
"""Rung -> trees of its trials."""


@dataclass(frozen=True)
class Halved:
    """What a sweep by halving has left: its last line, its run, the runs of its trials."""

    said: dict[str, Any]
    parent: Any
    trials: dict[int, Any]
    """Number -> the run of the trial."""
    lines: list[str]
    """What the console was told."""

    @property
    def scores(self) -> dict[int, float]:
        return {at: run.data.metrics["validation/auc"] for at, run in self.trials.items()}


def run_sweep(store: str, *words: str) -> Halved:
    with console_lines() as lines:
        ended = run_job(store, "sweep", *words)
    runs = children(mlflow.MlflowClient(store), ended.run)
    trials = {
        int(run.data.tags["trial.number"]): run for run in runs if run.info.status == "FINISHED"
    }
    return Halved(ended.said, ended.run, trials, lines)


def best_of(swept: Halved, rung: int, count: int) -> set[int]:
    """Return the trials of a rung with the highest scores."""
    numbers = [number for number in swept.trials if number // 9 == rung]
    return set(sorted(numbers, key=lambda at: (-swept.scores[at], at))[:count])


@pytest.fixture(scope="module")
def in_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Artifacts of new experiments go below a folder of that name."""
    return lambda name: contextlib.chdir(tmp_path_factory.mktemp(name))


@pytest.fixture(scope="module")
def halved(store: str, in_folder: Callable[[str], Any]) -> Halved:
    """A search of nine trials on the sample data, on one worker."""
    with in_folder("halved"):
        return run_sweep(store, *HALVING)


def test_the_best_of_each_rung_go_on(halved: Halved) -> None:
    assert halved.said["trials"] == {"finished": 13, "failed": 0, "all": 13}
    for rung, count in ((0, 3), (1, 1)):
        promoted = {number - 9 for number in halved.trials if number // 9 == rung + 1}
        assert promoted == best_of(halved, rung, count)


def test_fits_and_rungs_are_said_before_the_first(halved: Halved) -> None:
    assert "fits     13 in 3 rungs" in halved.lines
    assert "rungs    4, 13, 40 trees" in halved.lines


def test_a_trial_tells_its_trees(halved: Halved) -> None:
    for number, run in halved.trials.items():
        assert run.data.params["model.params.n_estimators"] == str(TREES[number // 9])
        assert json.loads(run.data.tags["trial.params"])["n_estimators"] == TREES[number // 9]
        assert run.data.metrics["fit/rounds"] <= TREES[number // 9]


def test_a_trial_grows_the_trees_that_are_new(halved: Halved) -> None:
    for number in range(9, 27):
        if number in halved.trials:
            earlier = halved.trials[number - 9].data.metrics["fit/rounds"]
            metrics = halved.trials[number].data.metrics
            assert metrics["fit/grown_trees"] == metrics["fit/rounds"] - earlier


def test_the_best_trial_is_of_the_last_rung(halved: Halved) -> None:
    (number,) = best_of(halved, 2, 1)
    assert halved.said["best"]["trial"] == number
    assert halved.said["best"]["n_estimators"] == 40
    assert halved.parent.data.metrics["validation/auc"] == pytest.approx(halved.scores[number])


def test_the_leaderboard_shows_the_trees(halved: Halved, store: str) -> None:
    client = mlflow.MlflowClient(store)
    path = client.download_artifacts(halved.said["run_id"], "sweep/leaderboard.json")
    table = json.loads(Path(path).read_text())
    trees = [row[table["columns"].index("n_estimators")] for row in table["data"]]
    assert trees == [40, 13, 13, 13, *[4] * 9]
    assert "n_estimators" in halved.parent.data.tags["mlflow.note.content"]


def test_survivors_are_trained_as_in_one_go(
    halved: Halved, store: str, in_folder: Callable[[str], Any]
) -> None:
    with in_folder("in_full"):
        whole = run_sweep(store, HALVING[0], "search.trials=9", HALVING[-1])
    (number,) = best_of(halved, 2, 1)
    own = halved.trials[number].data.metrics
    of_one_go = whole.trials[number - 18].data.metrics
    for name in own:
        if name.startswith("validation/"):
            assert own[name] == pytest.approx(of_one_go[name], abs=1e-6)


@pytest.mark.parametrize("workers", [2, 4])
def test_the_same_trials_go_on_with_more_workers(
    halved: Halved, store: str, in_folder: Callable[[str], Any], workers: int
) -> None:
    words = (f"cluster.n_workers={workers}", "cluster.threads_per_worker=1")
    with in_folder(f"on_{workers}"):
        assert run_sweep(store, *HALVING, *words).scores == halved.scores


class Interrupting(logging.Handler):
    """Stands for Ctrl-C after so many trials."""

    def __init__(self, trials: int) -> None:
        super().__init__()
        self._left = trials

    def emit(self, record: logging.LogRecord) -> None:
        self._left -= bool(re.match(r"trial +\d+ \(", record.getMessage()))
        if not self._left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("count", [4, 10])
def test_the_same_trials_go_on_after_a_stop(
    halved: Halved, store: str, in_folder: Callable[[str], Any], count: int
) -> None:
    """Of a sweep that was stopped in its first rung, and in its second."""
    handler = Interrupting(count)
    with in_folder(f"stopped_{count}"), console_lines():
        logging.getLogger("tipcast").addHandler(handler)
        with pytest.raises(KeyboardInterrupt):
            run_sweep(store, *HALVING)
        logging.getLogger("tipcast").removeHandler(handler)
        resumed = run_sweep(store, "resume=last")

    assert resumed.scores == halved.scores
    assert resumed.said["best"] == halved.said["best"]


def test_a_table_is_searched_by_tpe_and_forests(store: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rows = pd.DataFrame(draw.normal(size=(600, 3)), columns=["a", "b", "c"])
    rows["grade"] = draw.normal(size=600) + rows["a"] * rows["b"] > 0
    rows.to_csv(tmp_path / "rows.csv", index=False)
    words = ("data=table", f"data.train={tmp_path / 'rows.csv'}", "task.target=grade")
    forest = ("model=random_forest", "search.sampler=tpe", "search.max_concurrent=3")
    with contextlib.chdir(tmp_path):
        halved = run_sweep(store, *HALVING[1:], *words, *forest)

    grown = [halved.trials[at].data.metrics["fit/grown_trees"] for at in sorted(halved.trials)]
    assert grown == [*[4.0] * 9, *[9.0] * 3, 27.0]
    (number,) = best_of(halved, 2, 1)
    assert halved.said["best"]["trial"] == number


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model=extra_trees"], r"C003.*\bsearch\b.*extra_trees cannot.*model=xgboost.*random_for"),
        (["model=xgboost_forest"], r"C003.*\bsearch\b.*xgboost_forest cannot"),
        (["model.fit.num_boost_round=20"], r"C003.*\bsearch\b.*xgboost cannot"),
        (["search.sampler=grid"], "C003.*search.sampler"),
        (["search.min_trees=20"], "C003.*search.min_trees.*only one rung"),
        (["model.params.n_estimators=many"], "C003.*model.params.n_estimators"),
        (["model.params.n_estimators=null"], "C003.*model.params.n_estimators: must be a whole"),
        (
            ["search.space.n_estimators=[10,20]"],
            "C003.*search.space.n_estimators: halving sets it itself",
        ),
    ],
)
def test_mistakes(store: str, words: list[str], message: str) -> None:
    with pytest.raises(TipcastError, match=message):
        run_sweep(store, *HALVING, *words)
