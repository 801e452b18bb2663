"""What each feature contributes to a prediction of an XGBoost model: exact, for rows on any device."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tipcast.compute.base import Array, Frame, to_host
from tipcast.models import native
from tipcast.models.base import Scorer

FORMATS = ("xgboost-ubj",)
"""Formats of models that tell contributions."""
DRAWN_ROWS, FEWEST_DRAWN_ROWS = 500, 50
"""Rows whose contributions a figure shows, and those of models that take long."""
DRAWN_STEPS = 5e8
"""Steps that a figure's contributions may take, about a second of a core."""

Rows = tuple[NDArray[np.floating], NDArray[np.floating]]
"""Features (rows, features) and their contributions (rows, features + 1)."""


def contributions(scorer: Scorer, x: Frame | Array, predicted: Array) -> NDArray[np.float32]:
    """Return what each feature of each row adds to the margin: the prediction before the link function.

    ``x`` is a (rows, features) float32 frame or array on the scorer's device or the host, ``predicted`` what the scorer
    made of it: of several classes, contributions are to the margin of the class predicted. Returns (rows, features + 1)
    on the host, the bias last. Each row sums to its margin but for XGBoost's rounding: 1e-5, of large margins 1e-5 of
    the margin.

    Lundberg et al. (2020), From local explanations to global understanding with explainable AI for trees, Nature
    Machine Intelligence 2, 56-67.
    """
    import xgboost  # of no use to other models

    if not isinstance(scorer, native.XGBoostScorer):
        raise TypeError(f"{type(scorer).__name__} tells no contributions")
    booster, values = scorer.booster, x.values if hasattr(x, "values") else x
    if not len(values):  # a part that no row is taken of; XGBoost would answer with one dimension
        return np.empty((0, values.shape[1] + 1), dtype=np.float32)
    matrix = xgboost.DMatrix(
        values,
        missing=float(booster.attr(native.MISSING) or "nan"),
        nthread=scorer.threads,
        feature_types=booster.feature_types,
        enable_categorical=True,
    )
    added: NDArray[np.float32] = booster.predict(matrix, pred_contribs=True, validate_features=False)
    if added.ndim == 3:
        added = np.take_along_axis(added, to_host(predicted).argmax(axis=1)[:, None, None], axis=1)[:, 0]
    return added


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
    ``starts`` and ``step`` say where in each part to begin, and every how manieth row to take.
    """
    parts = client.map(_of_part, x, list(starts), scorer=scorer, step=step, pure=False, key="explain")
    values, added = zip(*client.gather(parts), strict=True)
    return np.concatenate(values), np.concatenate(added)


def _of_part(x: Frame, start: int, scorer: Scorer, step: int) -> Rows:
    rows = x.iloc[start::step]
    return to_host(rows.values), contributions(scorer, rows, scorer.score(rows))
