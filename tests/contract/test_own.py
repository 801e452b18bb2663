"""A user's own task and dataset: a yaml in a folder and a function or a class, with no other file touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tipcast
from tipcast import cli
from tipcast.compute.base import Array, Frames
from tipcast.config import conf_files
from tipcast.datasets import registry, table_features
from tipcast.datasets.base import Dataset, Fragment, Listing
from tipcast.tasks import base

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
WAVES_TASK = """
defaults: [/schema/task@_here_, _self_]
name: up
kind: classification
function: up
columns: [height]
features: [phase]
validation: 0.2
"""


def far(columns: Mapping[str, Array], xp: ModuleType, *, miles: float) -> Array:
    """Whether a trip is far."""
    return columns["trip_distance"] > miles


def up(columns: Mapping[str, Array], xp: ModuleType) -> Array:
    """Whether a wave is above the middle."""
    return columns["height"] > 0


@dataclass(frozen=True)
class Waves(Dataset):
    """Heights of a wave by its phase."""

    rows: int = 0

    @classmethod
    def open(cls, spec: Any) -> Waves:
        """Make it of its configuration."""
        return cls(spec.options["rows"])

    @classmethod
    def of_model(cls, manifest: Mapping[str, Any]) -> Waves:
        """Make it of a saved model."""
        return cls()

    @property
    def name(self) -> str:
        """Of the dataset."""
        return "waves"

    @property
    def code(self) -> ModuleType:
        """What travels in saved models."""
        return table_features

    @property
    def features(self) -> tuple[str, ...]:
        """All features."""
        return ("phase",)

    def scan(self, which: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Listing:
        """List one block."""
        names = {"phase": "phase", "height": "height"}
        fragment = Fragment(f"waves://{which}", "waves", (len(which),), names, None, which, self.rows, {"first": 0})
        return Listing((fragment,), None, (fragment.uri,), which, "waves")

    def read(self, fragment: Fragment, frames: Frames, columns: Sequence[str] | None = None) -> dict[str, Array]:
        """Make a block."""
        draw = np.random.default_rng(fragment.part)
        phase = draw.uniform(0, 2 * np.pi, fragment.rows)
        made = {"phase": phase, "height": np.sin(phase) + 0.1 * draw.normal(size=len(phase))}
        return {name: frames.xp.asarray(made[name]) for name in columns or made}


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Train by Python, with a folder of a user's own."""
    for name, text in {"task/far": TASK, "task/up": WAVES_TASK, "data/waves": DATA}.items():
        path = tmp_path / "own" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(base, "_TARGETS", {})
    monkeypatch.setattr(registry, "SOURCES", dict(registry.SOURCES))
    monkeypatch.setattr(registry, "NAMES", dict(registry.NAMES))
    monkeypatch.delenv(conf_files.OWN, raising=False)

    def trained(**settings: Any) -> tipcast.Result:
        return tipcast.train(
            config_dir=tmp_path / "own",
            model={"name": "xgboost", "params": {"n_estimators": 5}},
            tracking={"uri": f"sqlite:///{tmp_path / 'mlflow.db'}", "system_metrics": False},
            cluster={"processes": False, "n_workers": 1, "performance_report": False},
            **settings,
        )

    return trained


def test_a_task(train: Any) -> None:
    base.register("far", far)
    done = train(task="far", data={"rows": 4000})
    assert done.metrics["test/auc"] > 0.7
    assert "--config-dir=" in done.command


def test_a_dataset(train: Any) -> None:
    registry.register("waves", Waves)
    base.register("up", up)
    done = train(data="waves", task="up")
    assert done.metrics["test/auc"] > 0.95
    found = done.load().predict(pd.DataFrame({"phase": [1.5, 4.7]}))
    assert found[0] > 0.6 > 0.4 > found[1]


@pytest.mark.parametrize(
    "keys",
    [
        "{callbacks: {x: {_target_: os.getcwd}}}",
        "{mode: MULTIRUN, launcher: {_target_: os.getcwd}}",
        "{mode: MULTIRUN, sweeper: {_target_: os.getcwd}}",
    ],
)
def test_a_file_that_could_run_code_is_refused(train: Any, tmp_path: Path, keys: str) -> None:
    evil = tmp_path / "own" / "task" / "far.yaml"
    evil.write_text(f"# @package _global_\nhydra: {keys}\n")
    with pytest.raises(tipcast.TipcastError, match="C006"):
        train(task="far", data={"rows": 4000})


def test_several_runs_do_not_go_with_a_folder_of_one_s_own(
    train: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = tmp_path / "own" / "task" / "far.yaml"
    evil.write_text("# @package _global_\nhydra: {launcher: {_target_: os.getcwd}}\n")
    monkeypatch.setenv(conf_files.OWN, "")  # set back at the end
    assert cli.main(["train", f"--config-dir={tmp_path / 'own'}", "task=far", "--multirun", "seed=1,2"]) == 2
    assert "error[C006] --multirun" in capsys.readouterr().err
