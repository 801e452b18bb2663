"""Clusters: how near rows are to their centre and how far clusters are apart, from sums made where the rows lie.

There is no target: rows are judged by their features as the model gets them. The headline is the mean squared distance
to the row's own centre in the model's space. Davies-Bouldin and Calinski-Harabasz indices, which more clusters do not
improve by themselves, are of the features and of the centroids of the rows at hand.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from tipcast.compute.base import Array, module_of, to_host
from tipcast.evaluation.base import ROWS, Evaluation, Evaluator, Figures, Metric
from tipcast.evaluation.sums import Cut, Edges, Floats, Ints, Parts, kept, mean_interval, summed, values_of

BLOCKS = {"numpy": 1 << 18, "cupy": 1 << 22}
"""Array module -> rows widened to float64 at a time."""
BINS = 60
"""Of each axis of the figure."""
REACH = 3.0
"""Standard deviations from the mean at which the figure's axes end; rows beyond are counted in the outermost cells."""
MOST_CLUSTERS = 50
"""Of which each has its own number of rows among the metrics."""


@dataclass(frozen=True)
class Assigned:
    """Rows by cluster, and sums of their distances to the model's centres."""

    histogram: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(clusters,) rows."""
    squares: float = 0.0
    fourths: float = 0.0
    not_numbers: int = 0
    """Rows without a cluster or with a distance that is not finite."""


@dataclass(frozen=True)
class Moments:
    """First and second moments of rows' features."""

    rows: int
    mean: Floats
    """(features,)"""
    scatter: Floats
    """(features, features) sum of outer products of the rows less their mean."""
    sums: Floats
    """(clusters, features) of each cluster's rows."""


@dataclass(frozen=True)
class Map:
    """Rows on two principal components of the standardised features."""

    axes: Floats
    """(2, BINS + 1) edges of the cells along each component."""
    cells: Ints
    """(BINS, BINS) rows by first and by second component."""
    centroids: Floats
    """(clusters, 2)"""
    shares: tuple[float, float]
    """Of the variance, by component."""


def davies_bouldin(centroids: Floats, distances: Floats) -> float:
    """Return the mean over clusters of the worst ratio of two clusters' spread to their distance.

    ``centroids`` are (clusters, features), ``distances`` (clusters,) those of their rows from them, in the mean.

    References
    ----------
    Davies, Bouldin (1979), IEEE Transactions on Pattern Analysis and Machine Intelligence 1(2), 224-227.

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

    map: Map


@final
class Clustering(Evaluator):
    """Judges (rows, 2) labels and distances; ``targets`` are the rows' (rows, features) frames."""

    kind = "clustering"
    sums = Assigned
    metrics = (
        Metric("inertia", False, label="inertia per row"),
        Metric("davies_bouldin", False),
        Metric("calinski_harabasz", True),
    )
    interval_remark = "Beside the inertia is its asymptotic 95 % interval; more clusters always lower it."
    difference_remark = ""
    figure = "plots/clusters.png"

    def _evaluate(self, parts: Parts, threshold: float | None) -> Any:
        """Sum moments in one pass, distances from the rows' centroids in another."""
        assigned: Assigned = parts.add(self.count, self.total)
        rows = int(assigned.histogram.sum())
        what, fix = "rows have no cluster or no finite distance", "check the model and its input"
        parts.refuse(rows + assigned.not_numbers, ("D030", assigned.not_numbers, what, fix))
        moments: Moments = parts.add(functools.partial(_moments, len(assigned.histogram)), _total_moments)
        centroids = moments.sums / np.maximum(assigned.histogram, 1)[:, None]
        components, deviations, shares = _principal(moments)
        axes = np.stack([np.linspace(-REACH, REACH, BINS + 1) * (deviation or 1.0) for deviation in deviations])
        distances, cells = parts.add(functools.partial(_view, axes, centroids, moments.mean, components), summed)
        some = assigned.histogram > 0  # clusters without rows count for nothing, as scikit-learn has it
        counts, clusters = assigned.histogram[some], int(some.sum())
        between = float((assigned.histogram * ((centroids - moments.mean) ** 2).sum(axis=1))[some].sum())
        within = max(float(np.trace(moments.scatter)) - between, 0.0)
        calinski_harabasz = 0.0  # Calinski, Harabasz (1974), Communications in Statistics 3(1), 1-27
        if 1 < clusters < rows:
            calinski_harabasz = between * (rows - clusters) / (within * (clusters - 1)) if within > 0 else 1.0
        metrics = {
            "inertia": assigned.squares / rows,
            "davies_bouldin": davies_bouldin(centroids[some], distances[some] / counts),
            "calinski_harabasz": calinski_harabasz,
        }
        if len(assigned.histogram) <= MOST_CLUSTERS:
            metrics |= {f"cluster_{at}/{ROWS}": float(count) for at, count in enumerate(assigned.histogram.tolist())}
        metrics[ROWS] = float(rows)
        interval = mean_interval(rows, assigned.squares, assigned.fourths)
        found = Map(axes, cells, (centroids - moments.mean) @ components, shares)
        return ClusteringEvaluation(metrics, interval, assigned, found)

    def figures(self, drawn: Mapping[str, Any], subtitle: str, classes: Sequence[str] = ()) -> Figures:
        """Draw rows and centroids on two principal components."""
        from tipcast.evaluation import plots  # Matplotlib takes half a second, which workers need not spend

        first = next(iter(drawn.values()))
        yield self.figure, plots.clusters(first.map, first.sums.histogram, subtitle)

    def count(self, predictions: Array, target: Any = None, *, threshold: Cut = None, edges: Edges = None) -> Assigned:
        """Count rows by cluster, and sum their distances."""
        found = values_of(predictions)
        xp = module_of(found)
        odd, (found,) = kept(xp.isfinite(found).all(axis=1) & (found[:, 0] >= 0), found)
        if not len(found):
            return Assigned(not_numbers=odd)
        squares = found[:, 1].astype(xp.float64) ** 2
        rows = to_host(xp.bincount(found[:, 0].astype(xp.int64)))
        return Assigned(rows, float(squares.sum()), float(xp.dot(squares, squares)), odd)

    def summary(self, sums: Assigned) -> dict[str, float]:
        """Return the inertia and the share of the rows in each cluster."""
        rows = int(sums.histogram.sum())
        shares = {
            f"cluster_{at}_rate": count / rows for at, count in enumerate(sums.histogram[:MOST_CLUSTERS].tolist())
        }
        return {"inertia": sums.squares / rows} | shares if rows else {}

    def of_sums(self, sums: Assigned, threshold: float | None = None) -> Any:
        """Return None: there is no target."""
        return None


def _blocks(predictions: Any, x: Any) -> Any:
    """Yield labels and features in float64, some rows at a time."""
    labels, features = values_of(predictions)[:, 0], values_of(x)
    xp = module_of(features)
    size = BLOCKS[xp.__name__]
    for start in range(0, len(labels), size):
        yield labels[start : start + size].astype(xp.int64), features[start : start + size].astype(xp.float64)


def _moments(clusters: int, predictions: Any, x: Any) -> Moments:
    parts = []
    for labels, features in _blocks(predictions, x):
        xp = module_of(features)
        mean = features.mean(axis=0)
        centred = features - mean
        sums = [xp.bincount(labels, weights=column, minlength=clusters) for column in features.T]
        scatter = to_host(centred.T @ centred)
        parts.append(Moments(len(labels), to_host(mean), scatter, to_host(xp.stack(sums, axis=1))))
    width = values_of(x).shape[1]
    nothing = Moments(0, np.zeros(width), np.zeros((width, width)), np.zeros((clusters, width)))
    return _total_moments(parts or [nothing])


def _total_moments(parts: Sequence[Moments]) -> Moments:
    """Add up moments; the scatter as in Chan, Golub, LeVeque (1979), equation 2.1."""
    rows = sum(part.rows for part in parts)
    mean = sum((part.rows * part.mean for part in parts), np.zeros_like(parts[0].mean)) / max(rows, 1)
    scatter = sum((part.scatter for part in parts), np.zeros_like(parts[0].scatter))
    for part in parts:
        scatter = scatter + part.rows * np.outer(part.mean - mean, part.mean - mean)
    return Moments(rows, mean, scatter, sum((part.sums for part in parts), np.zeros_like(parts[0].sums)))


def _principal(moments: Moments) -> tuple[Floats, Floats, tuple[float, float]]:
    """Return the two components (features, 2) of centred rows, their deviations and their shares of the variance.

    Of one feature the second component is nothing.
    """
    covariance = moments.scatter / max(moments.rows, 1)
    deviations = np.sqrt(np.diag(covariance))
    scale = np.where(deviations > 0, deviations, 1.0)
    values, vectors = np.linalg.eigh(covariance / np.outer(scale, scale))
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1] / scale[:, None]
    chosen, variances = np.zeros((len(values), 2)), np.zeros(2)
    taken = min(len(values), 2)
    chosen[:, :taken], variances[:taken] = vectors[:, :taken], values[:taken]
    chosen *= np.where(chosen[np.abs(chosen).argmax(axis=0), [0, 1]] < 0, -1.0, 1.0)  # else a sign is the library's
    shares = variances / (values.sum() or 1.0)
    return chosen, np.sqrt(variances), (float(shares[0]), float(shares[1]))


def _view(
    axes: Floats, centroids: Floats, mean: Floats, components: Floats, predictions: Any, x: Any
) -> tuple[Floats, Ints]:
    """Sum a part's distances from centroids, and count its rows in the figure's cells."""
    distances, cells = np.zeros(len(centroids)), np.zeros(BINS * BINS, dtype=np.int64)
    for labels, features in _blocks(predictions, x):
        xp = module_of(features)
        away = features - xp.asarray(centroids)[labels]
        norms = xp.sqrt((away * away).sum(axis=1))
        distances += to_host(xp.bincount(labels, weights=norms, minlength=len(centroids)))
        placed = (features - xp.asarray(mean)) @ xp.asarray(components)
        first, second = (
            xp.searchsorted(xp.asarray(edges[1:-1]), xp.ascontiguousarray(placed[:, at]), side="right")
            for at, edges in enumerate(axes)
        )
        cells += to_host(xp.bincount(first * BINS + second, minlength=BINS * BINS))
    return distances, cells.reshape(BINS, BINS)
