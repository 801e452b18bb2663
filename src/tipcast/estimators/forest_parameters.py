"""A user's parameters of scikit-learn's random forest: unknown names and impossible values are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestClassifier

from tipcast.config.errors import TipcastError
from tipcast.estimators.parameters import check_names, positive_int

RESERVED = {
    "random_state": "seed=...",
    "n_jobs": "cluster.threads_per_worker",
    "verbose": "nothing: the progress bar shows the trees",
    "warm_start": "nothing: a run grows its trees once",
    "oob_score": "task.validation",
}

COLUMNS, PER_COLUMN = 64, {"monotonic_cst"}
"""Of the rows that parameters are tried on: as many as any choice of features, and what only the real number fits."""


def try_out(params: Mapping[str, Any], training: Mapping[str, Any]) -> None:
    """Let scikit-learn itself judge the values, by one tree on eight rows of many columns."""
    valid = set(RandomForestClassifier().get_params()) - set(RESERVED)
    check_names("params", list(params), valid, RESERVED)
    check_names("fit", list(training), (), {})
    positive_int("model.params.n_estimators", params.get("n_estimators", 100))
    x = np.arange(8 * COLUMNS, dtype=np.float32).reshape(8, COLUMNS)
    given = {name: value for name, value in params.items() if name not in PER_COLUMN}
    try:
        RandomForestClassifier(**{**given, "n_estimators": 1}).fit(x, np.array([0, 1] * 4))
    except (ValueError, TypeError) as problem:
        name = next((name for name in params if name in str(problem)), "")
        raise TipcastError(
            "C003", f"model.params.{name}".rstrip("."), str(problem), "see RandomForestClassifier's documentation"
        ) from problem
