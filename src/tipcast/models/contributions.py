"""What each feature contributes to predictions of an XGBoost model: a sample of rows for a figure."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tipcast.compute.base import Frame, to_host
from tipcast.models.native import XGBoostScorer

FORMATS = ("xgboost-ubj",)
"""Formats of models that tell contributions."""
DRAWN_ROWS, FEWEST_DRAWN_ROWS = 500, 50
"""Rows whose contributions a figure shows, and those of models that take long."""
DRAWN_STEPS = 5e8
"""Steps that a figure's contributions may take, about a second of a core."""

Rows = tuple[NDArray[np.floating], NDArray[np.floating]]
"""Features (rows, features) and their contributions (rows, features + 1)."""


def drawn_rows(booster: Any) -> int:
    """Return how many rows' contributions a figure shows: fewer of deep trees.

    A row takes as many steps as there are leaves times their depth's square (Lundberg et al. 2020, algorithm 2); the
    depth is taken for that of balanced trees.
    """
    described = json.loads(booster.save_config())["learner"]["gradient_booster"]
    trees = max(int(described.get("gbtree", described)["gbtree_model_param"]["num_trees"]), 1)
    leaves = trees + sum(booster.get_score(importance_type="weight").values())
    steps = leaves * max(math.log2(leaves / trees), 1) ** 2
    return max(min(DRAWN_ROWS, int(DRAWN_STEPS / steps)), FEWEST_DRAWN_ROWS)


def of_sample(client: Any, scorer: Any, x: Sequence[Any], starts: Sequence[int], step: int) -> Rows:
    """Return some rows of parts, and the contributions to them; each part's are computed where it lies.

    ``scorer`` is a future as of ``fit.hold_saved``, ``x`` are futures of (rows, features) float32 DataFrames;
    ``starts`` and ``step`` say where in each part to begin, and every how manieth row to take. Of several classes,
    contributions are to the margin of the class predicted.
    """
    parts = client.map(_of_part, x, list(starts), scorer=scorer, step=step, pure=False, key="explain")
    values, added = zip(*client.gather(parts), strict=True)
    return np.concatenate(values), np.concatenate(added)


def _of_part(x: Frame, start: int, scorer: XGBoostScorer, step: int) -> Rows:
    rows = x.iloc[start::step]
    added = scorer.contributions(rows)
    if added.ndim == 3:
        predicted = to_host(scorer.score(rows)).argmax(axis=1)
        added = np.take_along_axis(added, predicted[:, None, None], axis=1)[:, 0]
    return to_host(rows.values), added
