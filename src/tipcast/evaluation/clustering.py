"""Clusters: how near rows are to their centre and how far clusters are apart, from sums made where
the rows lie.

There is no target: rows are judged by their features as the model gets them. The headline is the
mean squared distance to the row's own centre in the model's space. The Davies-Bouldin index, which
more clusters do not improve by themselves, is of the features and of the centroids of the rows at
hand.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from tipcast.compute.base import Array, module_of, to_host
from tipcast.evaluation.base import Evaluation, Evaluator, Metric
from tipcast.evaluation.sums import (
    Floats,
    Ints,
    Parts,
    Sums,
    kept,
    mean_interval,
    summed,
    values_of,
)
from tipcast.tasks.kinds import CLUSTERING

BLOCKS = {"numpy": 1 << 18, "cupy": 1 << 22}
"""Array module -> rows widened to float64 at a time."""
WIDE = 64
"""Columns from which on these are fewer rows: a block has so many values for each of them."""
DRAWN = 4000
"""Rows of the figure, and one more of each part at most."""
DRAWN_VALUES = 1 << 23
"""Values of these rows: of thousands of columns fewer rows are drawn."""
MOST_CLUSTERS = 16
"""Of which each has its own number of rows among the metrics."""


@dataclass(frozen=True)
class Assigned(Sums):
    """Rows by cluster, and sums of their distances to the model's centres."""

    histogram: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(clusters,) rows."""
    squares: float = 0.0
    fourths: float = 0.0


def davies_bouldin(centroids: Floats, distances: Floats) -> float:
    """Return the mean over clusters of the worst ratio of two clusters' spread to their distance.

    ``centroids`` are (clusters, features), ``distances`` (clusters,) those of their rows from them,
    in the mean.

    References
    ----------
    Davies, Bouldin (1979), IEEE Transactions on Pattern Analysis and Machine Intelligence 1(2),
    224-227.

    """
    apart = np.linalg.norm(centroids[:, None] - centroids[None], axis=2)
    spread = distances[:, None] + distances[None]
    if len(apart) < 2 or not spread.any():
        return 0.0

    apart[apart == 0] = np.inf  # a cluster and itself, as scikit-learn has it
    return float((spread / apart).max(axis=1).mean())


@dataclass(frozen=True)
class ClusteringEvaluation(Evaluation):
    """How tight clusters are, and how far apart."""

    centroids: Floats
    """(clusters, features) of all rows; zeros where a cluster has none."""
    sample: Floats
    """(rows, features) of some rows, which stand for all."""
    labels: Ints
    """(rows,) their clusters."""


@final
class Clustering(Evaluator):
    """Judges (rows, 2) labels and distances; ``targets`` are the rows' (rows, features) frames."""

    kind = CLUSTERING
    sums = Assigned
    metrics = (
        Metric("inertia", False, label="inertia per row"),
        Metric("davies_bouldin", False),
    )
    plots = ("clusters",)
    odd_predictions = (
        "rows have no cluster or no finite distance",
        "check the model and its input",
    )

    def _evaluate(self, parts: Parts, sums: Assigned, threshold: float | None) -> Any:
        """Sum features of each cluster in one pass, distances from the rows' centroids in
        another.
        """
        rows = sums.rows
        of_each = sums.histogram
        [features] = parts.add(functools.partial(_sums, len(of_each)), summed)
        centroids = features / np.maximum(of_each, 1)[:, None]
        drawn = max(min(DRAWN, DRAWN_VALUES // features.shape[1]), 1)
        around = parts.add(functools.partial(_around, centroids, -(-rows // drawn)), list)
        distances, sample, labels = zip(*around, strict=True)
        some = of_each > 0  # clusters without rows count for nothing, as scikit-learn has it
        metrics = {
            "inertia": sums.squares / rows,
            "davies_bouldin": davies_bouldin(centroids[some], sum(distances)[some] / of_each[some]),
        }
        interval = mean_interval(rows, sums.squares, sums.fourths)

        return ClusteringEvaluation(
            metrics, interval, sums, centroids, np.concatenate(sample), np.concatenate(labels)
        )

    def details(self, evaluation: Any, classes: Sequence[str] = ()) -> dict[str, float]:
        """Return the rows of each cluster."""
        counts = evaluation.sums.histogram.tolist()
        return {
            f"cluster_{at}/rows": float(count)
            for at, count in enumerate(counts)
            if len(counts) <= MOST_CLUSTERS
        }

    def count(
        self, predictions: Array, target: Any = None, *, threshold: float | None = None
    ) -> Assigned:
        """Count rows by cluster, and sum their distances."""
        assigned = values_of(predictions)
        xp = module_of(assigned)
        odd, (assigned,) = kept(xp.isfinite(assigned).all(axis=1) & (assigned[:, 0] >= 0), assigned)
        if not len(assigned):
            return Assigned(not_numbers=odd)
        squares = assigned[:, 1].astype(xp.float64) ** 2
        rows = to_host(xp.bincount(assigned[:, 0].astype(xp.int64)))
        return Assigned(
            len(assigned), odd, 0, rows, float(squares.sum()), float(xp.dot(squares, squares))
        )

    def summary(self, sums: Assigned, classes: Sequence[str] = ()) -> dict[str, float]:
        """Return the inertia and the share of the rows in each cluster."""
        counts = sums.histogram[:MOST_CLUSTERS].tolist()
        rates = {f"cluster_{at}_rate": count / sums.rows for at, count in enumerate(counts)}
        return {"inertia": sums.squares / sums.rows} | rates if counts else {}


def _blocks(predictions: Any, x: Any) -> Any:
    """Yield labels and features in float64, some rows at a time."""
    labels = values_of(predictions)[:, 0]
    features = values_of(x)
    xp = module_of(labels)  # labels' device; features may not exist before rows are taken
    size = BLOCKS[xp.__name__]
    size = max(min(size, size * WIDE // features.shape[1]), 1)
    for start in range(0, len(labels), size):
        yield (
            labels[start : start + size].astype(xp.int64),
            features[start : start + size].astype(xp.float64),
        )


def _sums(clusters: int, predictions: Any, x: Any) -> list[Floats]:
    """Return the (clusters, features) sums of a part's rows."""
    sums = np.zeros((clusters, values_of(x).shape[1]))
    for labels, features in _blocks(predictions, x):
        xp = module_of(features)
        columns = [xp.bincount(labels, weights=column, minlength=clusters) for column in features.T]
        sums += to_host(xp.stack(columns, axis=1))
    return [sums]


def _around(centroids: Floats, step: int, predictions: Any, x: Any) -> tuple[Floats, Floats, Ints]:
    """Sum a part's distances from the centroids by cluster; return every ``step``-th row beside."""
    distances = np.zeros(len(centroids))
    for labels, features in _blocks(predictions, x):
        xp = module_of(features)
        away = features - xp.asarray(centroids)[labels]
        norms = xp.sqrt((away * away).sum(axis=1))
        distances += to_host(xp.bincount(labels, weights=norms, minlength=len(centroids)))
    sample = to_host(values_of(x)[::step]).astype(np.float64)
    return distances, sample, to_host(values_of(predictions)[::step, 0]).astype(np.int64)
