"""A user's own model, task, dataset and metric: a yaml in a folder or a function, with no other
file touched.
"""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest

import tipcast
from tipcast import evaluation
from tipcast.compute.base import Array, Frames
from tipcast.config import conf_files
from tipcast.datasets import registry
from tipcast.datasets.base import Dataset
from tipcast.datasets.listing import Listing
from tipcast.datasets.parts import Part
from tipcast.datasets.table import features as table_features
from tipcast.tasks import base

pytestmark = pytest.mark.usefixtures("small_pictures")

TASK = """
defaults: [/schema/task@_here_, _self_]
name: far
kind: classification
function: far
columns: [trip_distance]
params: {miles: 3.0}
description: trip_distance > {miles:g}
features: [pickup_hour, PULocationID, DOLocationID]
validation: 0.15
"""
DATA = """
defaults: [/schema/dataset@_here_, _self_]
source: waves
train: null
test: null
months: null
options: {rows: 3000}
"""
MODEL = """
defaults: [/schema/model@_here_, _self_]
name: boosted_stumps
kinds: [classification]
params: {n_estimators: 20, learning_rate: 0.5}
classes:
  classification:
    cpu: {local: sklearn.ensemble.AdaBoostClassifier}
tiny: {n_estimators: 2}
"""
WAVES_TASK = """
defaults: [/schema/task@_here_, _self_]
name: up
kind: classification
function: up
columns: [height]
features: [phase]
validation: 0.2
"""
OPTIONS = {
    "model/boosted_stumps": MODEL,
    "task/far": TASK,
    "task/up": WAVES_TASK,
    "data/waves": DATA,
}


def far(columns: Mapping[str, Array], xp: ModuleType, *, miles: float) -> Array:
    """Whether a trip is far."""
    return columns["trip_distance"] > miles


def within_a_tenth(target: Array, prediction: Array) -> Array:
    """Whether a trip's score is nearly its label."""
    return abs(prediction - target) <= 0.1


def up(columns: Mapping[str, Array], xp: ModuleType) -> Array:
    """Whether a wave is above the middle."""
    return columns["height"] > 0


@dataclass(frozen=True, kw_only=True)
class WavesPart(Part):
    """Waves that the name of their side decides."""

    def read(self, frames: Frames, columns: Sequence[str] | None = None) -> dict[str, Array]:
        draw = np.random.default_rng(len(self.uri))
        phase = draw.uniform(0, 2 * np.pi, self.rows)
        waves = {"phase": phase, "height": np.sin(phase) + 0.1 * draw.normal(size=len(phase))}
        return {name: frames.xp.asarray(waves[name]) for name in columns or waves}


@dataclass(frozen=True)
class Waves(Dataset):
    """Heights of a wave by its phase."""

    rows: int = 0
    name = "waves"
    code = table_features
    features = ("phase",)

    @classmethod
    def open(cls, spec: Any) -> Waves:
        return cls(spec.options["rows"])

    @classmethod
    def of_model(cls, manifest: Mapping[str, Any]) -> Waves:
        return cls()

    def scan(self, which: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Listing:
        part = WavesPart(uri=f"waves://{which}", digest=which, rows=self.rows)
        return Listing((part,), None, (part.uri,), which, "waves")


@pytest.fixture
def train(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Train by Python, with a folder of a user's own."""
    for name, text in OPTIONS.items():
        path = tmp_path / "own" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shutil.copy(tables, tmp_path)
    monkeypatch.setattr(base, "_TARGETS", dict(base._TARGETS))
    monkeypatch.setattr(registry, "BY_SOURCE", dict(registry.BY_SOURCE))
    monkeypatch.setattr(registry, "BY_NAME", dict(registry.BY_NAME))
    monkeypatch.delenv(conf_files.OWN, raising=False)

    def trained(**settings: Any) -> tipcast.Result:
        return tipcast.train(
            config_dir=tmp_path / "own",
            model=settings.pop("model", {"name": "xgboost", "params": {"n_estimators": 5}}),
            tracking={"uri": f"sqlite:///{tmp_path / 'mlflow.db'}", "system_metrics": False},
            cluster={"processes": False, "n_workers": 1, "performance_report": False},
            **settings,
        )

    return trained


def test_a_model(train: Any) -> None:
    done = train(model="boosted_stumps", data={"rows": 6000})
    assert done.metrics["test/auc"] > 0.52
    assert "model=boosted_stumps" in done.command
    model = done.load()
    assert np.ptp(model.predict(model.input_example)) > 0


def test_what_each_takes_is_counted() -> None:
    def lines(text: str) -> int:
        return sum(bool(line.strip()) for line in text.splitlines())

    def python(thing: Any) -> int:
        return lines(re.sub(r'^ +""".*"""$', "", inspect.getsource(thing), flags=re.MULTILINE))

    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    assert f"| a model | {lines(MODEL)} lines of yaml |" in page
    assert f"| a task | {lines(TASK)} lines of yaml, {python(far)} of Python |" in page
    dataset = python(WavesPart) + python(Waves)
    assert f"| a dataset | {lines(DATA)} lines of yaml, {dataset} of Python |" in page
    assert dataset <= 27
    assert f"| a metric | {python(within_a_tenth)} lines of Python |" in page


def test_a_task(train: Any) -> None:
    base.register("far", far)
    done = train(task="far", data={"rows": 4000})
    assert done.metrics["test/auc"] > 0.7
    assert "--config-dir=" in done.command


def test_a_metric(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(evaluation.base.OWN, "classification", {})
    evaluation.metric("classification", maximize=True)(within_a_tenth)
    done = train(data={"rows": 4000})
    run = mlflow.MlflowClient(done.tracking_uri).get_run(done.run_id)
    assert 0 <= run.data.metrics["test/within_a_tenth"] <= 1


def test_a_dataset(train: Any) -> None:
    registry.register("waves", Waves)
    base.register("up", up)
    done = train(data="waves", task="up")
    assert done.metrics["test/auc"] > 0.95
    found = done.load().predict(pd.DataFrame({"phase": [1.5, 4.7]}))
    assert found[0] > 0.6 > 0.4 > found[1]
