"""What a worker keeps: trees that may be grown on, of many the better ones; rows as they were wanted last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from distributed import Client

from tipcast.models.base import Grown
from tipcast.models.build import build
from tipcast.search import task
from tipcast.search.pool import Pool
from tipcast.search.proposals import Halving, random
from tipcast.search.space import merged
from tipcast.search.trial import Study
from tipcast.search.workers import TrialWorkers

from .conftest import AUC, model, search

Made = Callable[..., Study]


def test_trees_that_cannot_grow_on_are_dropped(client: Client, study: Made) -> None:
    common = study(model("xgboost", n_estimators=9, learning_rate=0.05))
    proposals = random(search("halving", 9), merged(common.model, {}, alone=False), 0)
    workers = TrialWorkers(client, common, 1, 10)
    with workers.opened():
        workers.load(1)
        own = task.CACHES[common.sweep]
        ended = [
            event
            for event in Pool(workers, 3).events(Halving(proposals, (1, 3, 9), 3, {}, AUC))
            if hasattr(event, "trials")
        ]
        reached = {trial.number: trial.rounds for event in ended for trial in event.trials}
        assert 9 in reached.values()
        assert {number: trees for number, (_, trees, _) in own.grown.items()} == {
            number: trees for number, trees in reached.items() if trees != 9
        }


def test_the_better_trees_are_kept(study: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "MOST_GROWN", 3)
    own = task.WorkerCache(study(model("xgboost")))
    for number, score in enumerate((0.5, 0.8, 0.6, 0.7, 0.55, 0.9)):
        own.keep(number, Grown(fitted=None, trees=4, state="state", over=False), score, most=8)
    assert sorted(own.grown) == [1, 3, 5]
    own.keep(3, Grown(fitted=None, trees=8, state="state", over=False), 0.75, most=8)
    own.keep(5, Grown(fitted=None, trees=6, state="state", over=True), 0.95, most=8)
    assert sorted(own.grown) == [1]


def test_rows_that_were_wanted_last_stay(study: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "MOST_PREPARED", 2)
    own = task.WorkerCache(study(model("xgboost"), again=True))
    made: dict[int, Any] = {}
    for bins in (64, 128, 64, 256):
        made[bins], _ = own.ready(build(model("xgboost", max_bin=bins), "cpu"), 1)
    assert list(own.prepared.values()) == [made[64], made[256]]
