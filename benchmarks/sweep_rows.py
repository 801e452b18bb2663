"""Rows, parameters and setup of the sweeps that benchmarks run: one Parquet month of synthetic
trips that all read.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from tipcast.compute.base import Frames
from tipcast.compute.frames import CpuFrames
from tipcast.config.compose import compose, to_object
from tipcast.config.conf_files import conf_dir
from tipcast.config.schema import ModelSpec, SearchSpec
from tipcast.datasets.prepare import Recipe, prepare_part
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.jobs import prepare
from tipcast.search.proposals import merged_space, random
from tipcast.search.trial import Objective, Proposal, SweepSetup
from tipcast.tasks.make import make_task

DAYS = 6
"""Of the month that are held out."""


def model(rounds: int, **params: Any) -> ModelSpec:
    """Return XGBoost as conf/model has it, with so many rounds and without early stopping."""
    shipped = yaml.safe_load((conf_dir() / "model" / "xgboost.yaml").read_text(encoding="utf-8"))
    shipped.pop("defaults")
    shipped["params"] |= {"n_estimators": rounds, **params}
    return ModelSpec(**{**shipped, "fit": {}})


def proposals(spec: ModelSpec, trials: int, seed: int = 0) -> list[Proposal]:
    """Return parameters drawn from the model's space."""
    return random(
        SearchSpec(name="random", trials=trials), merged_space(spec, {}, alone=False), seed
    )


def month(folder: Path, rows: int, name: str = "2019-01") -> Path:
    """Write a month of synthetic trips."""
    words = [
        f"data.months={name}",
        f"data.rows={rows}",
        f"out={folder}",
        "print=json",
        "cluster.processes=false",
    ]
    (composed,) = compose("prepare", words)
    prepare.run(to_object(composed.config), "prepare")
    return next(folder.glob("*.parquet"))


def sweep_setup(
    file: Path, spec: ModelSpec, device: str = "cpu", frames: Frames | None = None
) -> SweepSetup:
    """Return what the trials on a file have in common."""
    (composed,) = compose("train", ["data=files", f"data.train={file}", f"data.test={file}"])
    config = to_object(composed.config)
    recipe = Recipe(Taxi(), make_task(config.task, Taxi()))
    listing = Taxi(config.data).scan("train", recipe.columns)

    return SweepSetup(
        objective=Objective("bench", "auc", maximize=True),
        sweep_id=uuid.uuid4().hex[:8],
        parts=listing.parts,
        recipe=dataclasses.replace(recipe, cutoff=listing.period[1] - DAYS * 86_400_000_000),
        frames=frames or CpuFrames(),
        model=spec,
        device=device,
        seed=0,
        keep_rows=False,
    )


def frames(common: SweepSetup) -> Sequence[Any]:
    """Return training and validation rows in memory: x, y, x, y."""
    prepared = [prepare_part(part, common.frames, common.recipe) for part in common.parts]
    sides = [[both[side] for both in prepared if both[side].counts.rows] for side in (0, 1)]
    return [
        pd.concat([getattr(rows, name) for rows in side], ignore_index=True)
        for side in sides
        for name in ("x", "y")
    ]
