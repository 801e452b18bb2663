"""Nearest neighbours among a sample of the rows, for classification and regression.

The model is the sample itself, in one scorer that every worker gets; cuML's distributed classes have no model to save.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
from sklearn.preprocessing import StandardScaler

from tipcast.compute.base import Array, device_of
from tipcast.config.errors import TipcastError
from tipcast.models.base import Fitted, array_model, check_names, positive_int
from tipcast.models.native_knn import FORMAT, WEIGHTS, KnnScorer
from tipcast.models.sampled import Sampled, Taken, joined

NEIGHBOURS = 100
HINTS = {
    "algorithm": "nothing: the search is exact, by a k-d tree or on a GPU",
    "metric": "nothing: distances are Euclidean, of standardised features",
    "p": "nothing: distances are Euclidean, of standardised features",
    "leaf_size": "nothing: the search is exact, by a k-d tree or on a GPU",
    "n_jobs": "cluster.threads_per_worker",
    "k": "n_neighbors",
}


@final
class Knn(Sampled):
    """One model of the sample."""

    ROWS = 20_000

    def check(self) -> None:
        """Refuse unknown parameters and impossible values."""
        check_names("params", list(self.params), ("n_neighbors", "weights"), HINTS)
        check_names("fit", list(self.training), ("rows",), {})
        number = positive_int("model.params.n_neighbors", self.params.get("n_neighbors", NEIGHBOURS))
        if self.params.get("weights", "uniform") not in WEIGHTS:
            what = f"no such weights: {self.params['weights']}"
            raise TipcastError("C003", "model.params.weights", what, f"use {' or '.join(WEIGHTS)}")
        if self.most is not None and number > positive_int("model.fit.rows", self.most):
            raise _too_many(number, f"model.fit.rows keeps {self.most:,} rows")

    def learn(self, taken: Taken, features: Sequence[str], seed: int, threads: int) -> Fitted:
        """Keep the sample."""
        x, y = joined(taken)
        there, classes = len(np.unique(y)), self._classes(y)
        if there < classes:
            what = f"the {len(y):,} rows that knn keeps are of {there} of {classes} classes"
            fix = "raise model.fit.rows, or check the target and its threshold"
            raise TipcastError("D015", "training rows", what, fix)
        number = int(self.params.get("n_neighbors", NEIGHBOURS))
        if number > len(y):
            raise _too_many(number, f"there are {len(y):,} training rows")
        weights = str(self.params.get("weights", "uniform"))
        found = kept(x, y, number, weights, classes)
        return array_model(
            found,
            FORMAT,
            info={"device": device_of(taken[0][0]), "rows": len(y), "distinct_rows": len(found.rows)},
        )

    def _classes(self, y: Array) -> int:
        """Return how many classes there are; 0 where the target is a value."""
        if self.kind == "regression":
            return 0
        return self.classes or max(int(y.max(initial=0)) + 1, 2)


def kept(x: Array, y: Array, number: int, weights: str, classes: int = 2) -> KnnScorer:
    """Return the scorer that keeps (n, features) float64 rows and their (n,) targets; ``classes`` 0 of values."""
    scaler = StandardScaler().fit(x)
    distinct, which = np.unique(x, axis=0, return_inverse=True)
    if classes > 2:
        sums = np.stack([np.bincount(which, weights=y == each) for each in range(classes)])
    else:
        sums = np.bincount(which, weights=y)
    return KnnScorer(
        rows=scaler.transform(distinct),
        counts=np.bincount(which),
        sums=sums,
        n_neighbors=number,
        weights=weights,
        mean=scaler.mean_,
        scale=scaler.scale_,
    )


def _too_many(number: int, there: str) -> TipcastError:
    fix = "use fewer neighbours, or more rows (model.fit.rows)"
    return TipcastError("C003", "model.params.n_neighbors", f"{number} neighbours, but {there}", fix)
