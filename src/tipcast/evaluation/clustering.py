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
from tipcast.evaluation.base import ROWS, Evaluation, Evaluator, Figures, Metric, computed
from tipcast.evaluation.sums import Edges, Floats, Ints, Parts, mean_interval, summed, values_of

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

    rows: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(clusters,)"""
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

    axes: tuple[Floats, Floats]
    """Edges (BINS + 1,) of the cells along each component."""
    cells: Ints
    """(BINS, BINS) rows by first and by second component."""
    centroids: Floats
    """(clusters, 2)"""
    shares: tuple[float, float]
    """Of the variance, by component."""


@dataclass(frozen=True)
class _Facts:
    """What metrics are made of."""

    assigned: Assigned
    between: float
    """Sum over rows of the squared distance of their cluster's centroid from the mean of all."""
    within: float
    """Sum over rows of their squared distance from their cluster's centroid."""
    centroids: Floats
    distances: Floats
    """(clusters,) mean distance of a cluster's rows from their centroid."""


def davies_bouldin(facts: _Facts) -> float:
    """Return the mean over clusters of the worst ratio of two clusters' spread to their distance.

    References
    ----------
    Davies, Bouldin (1979), IEEE Transactions on Pattern Analysis and Machine Intelligence 1(2), 224-227.

    """
    apart = np.linalg.norm(facts.centroids[:, None] - facts.centroids[None], axis=2)
    spread = facts.distances[:, None] + facts.distances[None]
    if len(apart) < 2 or not spread.any():
        return 0.0
    apart[apart == 0] = np.inf  # a cluster and itself, as scikit-learn has it
    return float((spread / apart).max(axis=1).mean())


def calinski_harabasz(facts: _Facts) -> float:
    """Return the ratio of the variance between clusters to that within them.

    References
    ----------
    Calinski, Harabasz (1974), Communications in Statistics 3(1), 1-27.

    """
    clusters, rows = len(facts.centroids), int(facts.assigned.rows.sum())
    if clusters < 2 or rows <= clusters:
        return 0.0
    return facts.between * (rows - clusters) / (facts.within * (clusters - 1)) if facts.within > 0 else 1.0


METRICS = (
    Metric("inertia", False, lambda facts: facts.assigned.squares / facts.assigned.rows.sum(), label="inertia per row"),
    Metric("davies_bouldin", False, davies_bouldin),
    Metric("calinski_harabasz", True, calinski_harabasz),
)


@dataclass(frozen=True)
class ClusteringEvaluation(Evaluation):
    """How tight clusters are, and how far apart."""

    cluster_rows: Ints
    map: Map


@final
class Clustering(Evaluator):
    """Judges (rows, 2) labels and distances; ``targets`` are the rows' (rows, features) frames."""

    kind = "clustering"
    sums = Assigned
    metrics = METRICS
    interval_remark = "Beside the inertia is its asymptotic 95 % interval; more clusters always lower it."
    difference_remark = ""
    figure = "plots/clusters.png"

    def _evaluate(self, parts: Parts, threshold: float | None) -> ClusteringEvaluation:
        """Sum moments in one pass, distances from the rows' centroids in another."""
        assigned: Assigned = parts.add(self.count, self.total)
        rows = int(assigned.rows.sum())
        what, fix = "rows have no cluster or no finite distance", "check the model and its input"
        parts.refuse(rows + assigned.not_numbers, ("D030", assigned.not_numbers, what, fix))
        moments: Moments = parts.add(functools.partial(_moments, len(assigned.rows)), _total_moments)
        centroids = moments.sums / np.maximum(assigned.rows, 1)[:, None]
        components, deviations, shares = _principal(moments)
        first, second = (np.linspace(-REACH, REACH, BINS + 1) * (deviation or 1.0) for deviation in deviations)
        view = functools.partial(_view, (first, second), centroids, moments.mean, components)
        distances, cells = parts.add(view, summed)
        facts = _facts(assigned, moments, centroids, distances)
        told = assigned.rows.tolist() if len(assigned.rows) <= MOST_CLUSTERS else []
        details = {f"cluster_{at}/{ROWS}": float(count) for at, count in enumerate(told)}
        return ClusteringEvaluation(
            metrics=computed(METRICS, facts, rows, **details),
            interval=mean_interval(rows, assigned.squares, assigned.fourths),
            cluster_rows=assigned.rows,
            map=Map((first, second), cells, (centroids - moments.mean) @ components, shares),
        )

    def figures(self, drawn: Mapping[str, Any], subtitle: str, classes: Sequence[str] = ()) -> Figures:
        """Draw rows and centroids on two principal components, and the rows of each cluster."""
        from tipcast.evaluation import plots  # Matplotlib takes half a second, which workers need not spend

        first = next(iter(drawn.values()))
        shares = {f"cluster {at}": float(rows) for at, rows in enumerate(first.cluster_rows)}
        yield self.figure, plots.clusters(first.map, first.cluster_rows, subtitle)
        kind, title = "rows", "Rows of each cluster"
        yield "plots/cluster_rows.png", plots.importance(shares, subtitle, kind=kind, title=title)

    def count(
        self, predictions: Array, target: Any = None, *, threshold: float | None = None, edges: Edges = None
    ) -> Assigned:
        """Count rows by cluster, and sum their distances."""
        found = values_of(predictions)
        xp = module_of(found)
        good = xp.isfinite(found).all(axis=1) & (found[:, 0] >= 0)
        odd = len(found) - int(xp.count_nonzero(good))
        if odd:
            found = found[good]
        if not len(found):
            return Assigned(not_numbers=odd)
        squares = found[:, 1].astype(xp.float64) ** 2
        rows = to_host(xp.bincount(found[:, 0].astype(xp.int64)))
        return Assigned(rows, float(squares.sum()), float(xp.dot(squares, squares)), odd)

    def summary(self, sums: Assigned) -> dict[str, float]:
        """Return the inertia and the share of the rows in each cluster."""
        rows = int(sums.rows.sum())
        shares = {f"cluster_{at}_rate": count / rows for at, count in enumerate(sums.rows[:MOST_CLUSTERS].tolist())}
        return {"inertia": sums.squares / rows} | shares if rows else {}

    def of_sums(self, sums: Assigned, threshold: float | None = None) -> ClusteringEvaluation | None:
        """Return None: there is no target."""
        return None

    def histogram(self, counted: Any) -> Any:
        """Return rows by cluster."""
        return counted.cluster_rows if isinstance(counted, ClusteringEvaluation) else counted.rows


def _facts(assigned: Assigned, moments: Moments, centroids: Floats, distances: Floats) -> _Facts:
    """Leave out clusters without rows, as scikit-learn does."""
    some = assigned.rows > 0
    between = float((assigned.rows * ((centroids - moments.mean) ** 2).sum(axis=1))[some].sum())
    within = max(float(np.trace(moments.scatter)) - between, 0.0)
    return _Facts(assigned, between, within, centroids[some], distances[some] / assigned.rows[some])


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
    axes: tuple[Floats, Floats],
    centroids: Floats,
    mean: Floats,
    components: Floats,
    predictions: Any,
    x: Any,
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
