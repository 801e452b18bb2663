"""Warming up runs what the job runs, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from distributed import Client, LocalCluster
from tests.conftest import NO_PAGES

from tipcast.compute.base import Session
from tipcast.config.compose import compose, to_object
from tipcast.evaluation import classification
from tipcast.jobs.train_plan import make_plan
from tipcast.jobs.warm_up import warm_up
from tipcast.models import base, library


@pytest.fixture(scope="module")
def two() -> Iterator[Client]:
    """Two workers in this process."""
    with (
        LocalCluster(processes=False, n_workers=2, threads_per_worker=1, **NO_PAGES) as cluster,
        Client(cluster, set_as_default=False) as connected,
    ):
        yield connected


def planned(*words: str):
    (composed,) = compose("train", ["data.rows=4000", *words])
    config = to_object(composed.config)
    return config, make_plan(config)


@pytest.mark.parametrize("model", ["xgboost", "xgboost_forest", "random_forest", "logistic"])
def test_every_model_warms_up(cpu_session: Session, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    counted, area_under = [], classification.area_under

    def seen(*counts: object) -> object:
        counted.append(counts)
        return area_under(*counts)

    monkeypatch.setattr(classification, "area_under", seen)
    warm_up(cpu_session, *planned(f"model={model}"))
    assert len(counted) == 1


def test_several_workers_warm_up_together(cpu_session: Session, two: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[int] = []
    fit = library.Library.fit_distributed

    def seen(self: object, client: Client, rows: base.Split, **more: object) -> base.Fitted:
        fits.append(rows.x.npartitions)
        return fit(self, client, rows, **more)

    monkeypatch.setattr(library.Library, "fit_distributed", seen)
    session = dataclasses.replace(cpu_session, client=two, n_workers=2)
    warm_up(session, *planned("model=logistic"))
    assert fits == [2]
