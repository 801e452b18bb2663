"""How much each parameter matters to the score: what a forest of regression trees splits on to tell trials apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tipcast.search.space import Space
from tipcast.search.trial import Trial

LEAST = 8
"""Trials below which nothing can be said."""
TREES = 200


def importance(trials: Sequence[Trial], space: Space) -> dict[str, float]:
    """Return parameter -> share of the variance in the score that splits on it explain; empty for too few trials.

    Hutter, Hoos and Leyton-Brown (2014), An Efficient Approach for Assessing Hyperparameter Importance, ICML, use such
    a forest; its mean decrease of impurity stands here for their decomposition.
    """
    if len(trials) < LEAST:
        return {}
    table = np.array([[_number(trial.params[name], name, space) for name in space] for trial in trials])
    scores = np.array([trial.score for trial in trials])
    if not scores.std():
        return {}
    from sklearn.ensemble import RandomForestRegressor  # takes a second, which no start of a sweep should

    forest = RandomForestRegressor(TREES, random_state=0, n_jobs=1).fit(table, scores)
    return {name: float(share) for name, share in zip(space, forest.feature_importances_, strict=True)}


def _number(value: object, name: str, space: Space) -> float:
    axis = space[name]
    return float(axis.values.index(value)) if axis.kind == "list" else float(value)  # type: ignore[arg-type]
