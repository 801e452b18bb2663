"""A small study on synthetic trips, and real workers to run it on."""

import dataclasses
import uuid
from collections.abc import Callable
from functools import partial

import pytest
from tests.conftest import high_tip_task, shipped_model

from tipcast.compute.frames import CpuFrames
from tipcast.config.schema import ModelSpec, SampleData
from tipcast.datasets.rows import Recipe
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.datasets.taxi.features import BASE_FEATURES
from tipcast.jobs import measured as measured_by
from tipcast.search.trial import Objective, Study

measured = partial(measured_by, "classification")
SIX_DAYS = 6 * 86_400_000_000  # in microseconds
model = shipped_model
AUC = Objective("study", "auc", maximize=True)


@pytest.fixture
def study() -> Callable[..., Study]:
    """Make a study of some rows of one month, the last six days held out."""

    def made(spec: ModelSpec, rows: int = 4000, again: bool = False) -> Study:
        months = {"train": "2019-01", "test": "2019-02", "months": None}
        data = SampleData(source="sample", **months, rows=rows, seed=0, colour="yellow", block_rows=rows // 3)
        recipe = Recipe(Taxi(), high_tip_task(BASE_FEATURES))
        listing = Taxi(data).scan("train", recipe.columns)
        recipe = dataclasses.replace(recipe, cutoff=listing.period[1] - SIX_DAYS)
        plan = {"fragments": listing.fragments, "recipe": recipe, "frames": CpuFrames(), "measure": measured}
        fit = {"model": spec, "device": "cpu", "categorical": (), "seed": 0, "again": again}
        return Study(objective=AUC, sweep=uuid.uuid4().hex, **plan, **fit)

    return made
