"""Clusters: how close rows are to their centre and how far apart clusters are, from sums counted
where the rows lie.

There is no target: metrics are computed from the features as the model gets them. The headline is
the mean squared distance of rows to the centre of their cluster in the model's space. The
Davies-Bouldin index uses the features and the centroids of the evaluated rows; more clusters alone
do not improve it.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tipcast.compute.base import Array, Frame, module_of, to_host
from tipcast.evaluation.base import Evaluation, Evaluator, Metric
from tipcast.evaluation.sums import (
    Floats,
    Ints,
    PartedColumns,
    Sums,
    select_good,
    sum_columns,
    values_of,
    weight_sums,
    weighted_mean_sums,
)
from tipcast.tasks.kinds import CLUSTERING

BLOCKS = {"numpy": 1 << 18, "cupy": 1 << 22}
"""Array module -> rows widened to float64 at a time."""
WIDE = 64
"""With more columns than this, a block has fewer rows, so that it has no more values."""
DRAWN = 4000
"""Rows of the figure; each part may add one more."""
DRAWN_VALUES = 1 << 23
"""Most values of these rows: with thousands of columns, fewer rows are drawn."""
MOST_CLUSTERS = 16
"""Most clusters whose numbers of rows are metrics."""


@dataclass(frozen=True)
class ClusterSums(Sums):
    """Rows by cluster, and sums of their distances to the model's centres."""

    histogram: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(clusters,) rows."""
    squares: float = 0.0
    """Sum of the squared distances times the weights."""
    fourths: float = 0.0
    """Sum of the squared distances' squares times the squared weights."""
    mixed: float = 0.0
    """Sum of the squared distances times the squared weights; 0 without weights."""
    cluster_weights: Floats = field(default_factory=lambda: np.zeros(0))
    """(clusters,) sum of the weights of each cluster's rows; empty without weights."""

    @property
    def sizes(self) -> NDArray[Any]:
        """(clusters,) rows, or with weights their sum."""
        return self.cluster_weights if self.weighted else self.histogram


def davies_bouldin(centroids: Floats, distances: Floats) -> float:
    """Return the mean over clusters of the worst ratio of two clusters' spread to their distance.

    ``centroids`` are (clusters, features); ``distances`` (clusters,) are mean distances of the
    rows of each cluster from its centroid.

    References
    ----------
    Davies, Bouldin (1979), IEEE Transactions on Pattern Analysis and Machine Intelligence 1(2),
    224-227.

    """
    gaps = np.linalg.norm(centroids[:, None] - centroids[None], axis=2)
    spread = distances[:, None] + distances[None]
    if len(gaps) < 2 or not spread.any():
        return 0.0

    gaps[gaps == 0] = np.inf  # a cluster and itself, as scikit-learn has it
    return float((spread / gaps).max(axis=1).mean())


@dataclass(frozen=True)
class ClusteringEvaluation(Evaluation):
    """How tight clusters are, and how far apart."""

    centroids: Floats
    """(clusters, features) of all rows; zeros for a cluster without rows."""
    sample: Floats
    """(rows, features) of some rows, for the figure."""
    labels: Ints
    """(rows,) clusters of the sample."""


@final
class Clustering(Evaluator):
    """Evaluates (rows, 2) labels and distances; ``targets`` are (rows, features) frames."""

    kind = CLUSTERING
    sums = ClusterSums
    metrics = (
        Metric("inertia", False, label="inertia per row"),
        Metric("davies_bouldin", False),
    )
    plots = ("clusters",)
    odd_predictions = (
        "rows have no cluster or no finite distance",
        "check the model and its input",
    )

    def _evaluate(self, parts: PartedColumns, sums: ClusterSums, threshold: float | None) -> Any:
        """Sum the features of each cluster in one pass, and distances from the centroids in
        another.
        """
        rows = sums.rows
        sizes = sums.sizes
        [feature_sums] = parts.map_reduce(functools.partial(_sums, len(sizes)), sum_columns)
        has_rows = sizes > 0  # clusters without rows count for nothing, as in scikit-learn
        centroids = feature_sums / np.where(has_rows, sizes, 1)[:, None]

        drawn = max(min(DRAWN, DRAWN_VALUES // feature_sums.shape[1]), 1)
        part_results = parts.map_reduce(
            functools.partial(_distances_and_sample, centroids, -(-rows // drawn)), list
        )
        distances, sample, labels = zip(*part_results, strict=True)

        mean_distances = sum(distances)[has_rows] / sizes[has_rows]
        metrics = {
            "inertia": sums.squares / sums.weight,
            "davies_bouldin": davies_bouldin(centroids[has_rows], mean_distances),
        }
        interval = sums.mean_interval(sums.squares, sums.fourths, sums.mixed)

        return ClusteringEvaluation(
            metrics, interval, sums, centroids, np.concatenate(sample), np.concatenate(labels)
        )

    def details(self, evaluation: Evaluation, classes: Sequence[str] = ()) -> dict[str, float]:
        """Return the number of rows of each cluster; nothing if there are many clusters."""
        counts = evaluation.sums.histogram.tolist()
        if len(counts) > MOST_CLUSTERS:
            return {}
        return {f"cluster_{number}/rows": float(count) for number, count in enumerate(counts)}

    def count(
        self,
        predictions: Array,
        target: Array | None = None,
        weights: Array | None = None,
        *,
        threshold: float | None = None,
    ) -> ClusterSums:
        """Count rows by cluster, and sum their distances."""
        assigned = values_of(predictions)
        xp = module_of(assigned)
        possible = xp.isfinite(assigned).all(axis=1) & (assigned[:, 0] >= 0)
        odd, (assigned, weights) = select_good(possible, assigned, weights)
        if not len(assigned):
            return ClusterSums(impossible_predictions=odd)

        labels = assigned[:, 0].astype(xp.int64)
        squares = assigned[:, 1].astype(xp.float64) ** 2
        sums = ClusterSums(
            scored=len(assigned),
            impossible_predictions=odd,
            unknown=0,
            histogram=to_host(xp.bincount(labels)),
            squares=float(squares.sum()),
            fourths=float(xp.dot(squares, squares)),
        )
        if weights is None:
            return sums

        weights = weights.astype(xp.float64)
        *_, total, mixed, fourths = weighted_mean_sums(squares, weights)
        return replace(
            sums,
            weights=weight_sums(weights),
            squares=total,
            fourths=fourths,
            mixed=mixed,
            cluster_weights=to_host(xp.bincount(labels, weights)),
        )

    def summary(self, sums: ClusterSums, classes: Sequence[str] = ()) -> dict[str, float]:
        """Return the inertia and the share of the rows in each cluster."""
        counts = sums.histogram[:MOST_CLUSTERS].tolist()
        if not counts:
            return {}

        summary = {"inertia": sums.squares / sums.weight}
        for number, count in enumerate(counts):
            summary[f"cluster_{number}_rate"] = count / sums.rows
        return summary


def _blocks(
    predictions: Array | Frame, x: Array | Frame, weights: Array | Frame | None
) -> Iterator[tuple[Array, Array, Array | None]]:
    """Yield labels, features and weights in float64, some rows at a time; without weights, None in
    their place.
    """
    labels = values_of(predictions)[:, 0]
    features = values_of(x)
    row_weights = values_of(weights)
    xp = module_of(labels)  # of the labels: features may be one-hot rows, which have no device yet
    size = BLOCKS[xp.__name__]
    size = max(min(size, size * WIDE // features.shape[1]), 1)
    for start in range(0, len(labels), size):
        block = slice(start, start + size)
        yield (
            labels[block].astype(xp.int64),
            features[block].astype(xp.float64),
            None if row_weights is None else row_weights[block].astype(xp.float64),
        )


def _sums(
    clusters: int,
    predictions: Array | Frame,
    x: Array | Frame,
    weights: Array | Frame | None = None,
) -> list[Floats]:
    """Return the (clusters, features) sums of a part's rows, times their weights if any."""
    sums = np.zeros((clusters, values_of(x).shape[1]))
    for labels, features, row_weights in _blocks(predictions, x, weights):
        xp = module_of(features)
        if row_weights is not None:
            features = features * row_weights[:, None]
        columns = [xp.bincount(labels, weights=column, minlength=clusters) for column in features.T]
        sums += to_host(xp.stack(columns, axis=1))
    return [sums]


def _distances_and_sample(
    centroids: Floats,
    step: int,
    predictions: Array | Frame,
    x: Array | Frame,
    weights: Array | Frame | None = None,
) -> tuple[Floats, Floats, Ints]:
    """Return the sums of a part's distances from the centroids by cluster, times the rows' weights
    if any, and every ``step``-th row with its label.
    """
    distances = np.zeros(len(centroids))
    for labels, features, row_weights in _blocks(predictions, x, weights):
        xp = module_of(features)
        offsets = features - xp.asarray(centroids)[labels]
        norms = xp.sqrt((offsets * offsets).sum(axis=1))
        if row_weights is not None:
            norms = norms * row_weights
        distances += to_host(xp.bincount(labels, weights=norms, minlength=len(centroids)))
    sample = to_host(values_of(x)[::step]).astype(np.float64)
    return distances, sample, to_host(values_of(predictions)[::step, 0]).astype(np.int64)
