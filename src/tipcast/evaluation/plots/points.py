"""Rows as points: predicted values, contributions of features, clusters and their centroids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from tipcast.evaluation.plots.page import (
    BLUE,
    DASHES,
    FAINT,
    INK,
    ORANGE,
    fit,
    legend,
    page,
    page_of_rows,
    percent,
    picture,
    title_of,
    write,
)
from tipcast.evaluation.sums import Floats, Ints

if TYPE_CHECKING:
    from tipcast.evaluation.base import Evaluation
    from tipcast.evaluation.clustering import ClusteringEvaluation

VALUES = LinearSegmentedColormap.from_list("values", [BLUE, "#c3b7c9", ORANGE])
"""Colors from the lowest value of a feature to the highest."""
MOST_FEATURES = 12
"""Most features whose contributions are drawn, those with the largest."""
MARKERS = "osD^vPX*"
"""Markers of clusterings, in their order."""
CENTROID: dict[str, Any] = {
    "facecolors": "none",
    "edgecolors": INK,
    "linewidths": 1.6,
    "zorder": 6,
}


@picture
def predicted(
    evaluations: Mapping[str, Evaluation], subtitle: str, classes: Sequence[str] = ()
) -> Figure:
    """Draw predicted against true values of some rows of each part."""
    evaluation, *_ = evaluations.values()
    title = title_of("Predicted and true values", evaluation.sums)
    figure, axes = page(title, subtitle, "true value", "predicted value")
    targets, values = evaluation.sums.sample.T
    axes.axline((targets[0], targets[0]), slope=1, color=ORANGE, linewidth=1.8, linestyle=DASHES)
    axes.scatter(targets, values, s=7, color=BLUE, alpha=0.35, linewidths=0, zorder=3)

    rmse = evaluation.interval.around(evaluation.headline_value)
    text = f"RMSE {rmse}\nR² {evaluation.metrics['r2']:.4f}"
    write(axes, 0.03, 0.97, text, va="top", transform=axes.transAxes)
    axes.locator_params(nbins=6)
    return figure


@picture
def contributions(
    values: NDArray[np.float32], added: NDArray[np.float32], names: Sequence[str], subtitle: str
) -> Figure:
    """Draw what each feature adds to rows' predictions: a point a row, its color the feature's
    value.

    ``values`` are features (rows, features), and ``added`` what each adds to the margin (rows,
    features). The axis ends where 1 of 200 points lie beyond; these are drawn at its ends.
    """
    chosen = np.argsort(-np.abs(added).mean(axis=0), kind="stable")[:MOST_FEATURES]
    shown = [fit(names[at], 21) for at in chosen]
    figure, axes = page_of_rows("Contributions of features", subtitle, shown, "added to the margin")

    reach = float(np.quantile(np.abs(added[:, chosen]), 0.995)) or 1.0
    places = np.clip(added[:, chosen], -reach, reach)
    # Points are jittered so that all show.
    heights = np.arange(len(chosen)) + np.random.default_rng(0).uniform(-0.3, 0.3, places.shape)
    colors = value_colors(values[:, chosen])
    axes.scatter(places, heights, s=7, c=colors, linewidths=0, zorder=3)
    axes.axvline(0, color=FAINT, linewidth=1.5, zorder=1)
    axes.xaxis.set_major_locator(MaxNLocator(5))

    explain_colors(axes, missing=bool(np.isnan(values[:, chosen]).any()))
    return figure


def value_colors(values: NDArray[np.float32]) -> Floats:
    """Return colors (rows x features, 4) of values (rows, features) by their rank in the column;
    ink of missing ones.
    """
    ranks = np.stack([np.searchsorted(np.sort(column), column) for column in values.T], axis=1)
    missing = np.isnan(values)  # sorted last
    highest = np.maximum((~missing).sum(axis=0) - 1, 1)

    colors: Floats = VALUES(ranks / highest)
    colors[missing] = to_rgba(INK)
    return colors.reshape(-1, 4)


def explain_colors(axes: Axes, *, missing: bool) -> None:
    """Show above the axes what the colors of values say."""
    colors = {"low value of the feature": VALUES(0.0), "high value": VALUES(1.0)}
    if missing:
        colors["missing"] = to_rgba(INK)

    for name, color in colors.items():
        axes.scatter([], [], s=50, color=color, label=name)
    legend(axes, "lower right", bbox_to_anchor=(1, 1), ncols=len(colors), borderpad=0)


@picture
def clusters(
    evaluations: Mapping[str, ClusteringEvaluation], subtitle: str, classes: Sequence[str] = ()
) -> Figure:
    """Draw rows and the centroids of clusters that have rows."""
    first, *_ = evaluations.values()
    centres = {"centroids": first.centroids[first.sums.sizes > 0]}
    return draw_centroids(
        title_of("Clusters", first.sums), first.sample, first.labels, centres, subtitle
    )


@picture
def centroids(
    title: str, x: Floats, groups: Ints, centres: Mapping[str, Floats], subtitle: str
) -> Figure:
    """Draw rows and the centroids of clusterings of them, see ``draw_centroids``."""
    return draw_centroids(title, x, groups, centres, subtitle)


def draw_centroids(
    title: str, x: Floats, groups: Ints, centres: Mapping[str, Floats], subtitle: str
) -> Figure:
    """Draw rows (rows, features), and the centroids of clusterings of them, on the first two
    principal components.

    The features are standardised. ``groups`` (rows,) color the rows; ``centres`` has the name of a
    clustering -> (clusters, features) its centroids.
    """
    plane = principal_plane(x)
    figure, axes = page(title, subtitle, *plane.names)
    _, shades = np.unique(groups, return_inverse=True)
    colors = colormaps["tab20"](shades % 20)
    axes.scatter(*plane.project(x), s=7, c=colors, alpha=0.35, linewidths=0, zorder=2)

    for at, (name, points) in enumerate(centres.items()):
        size = 330 / (1 + 0.8 * at)  # centroids on top of each other all show
        marker = MARKERS[at % len(MARKERS)]
        axes.scatter(*plane.project(points), s=size, marker=marker, label=name, **CENTROID)

    axes.margins(0.08, 0.16)
    columns = min(len(centres), 4)
    legend(axes, "upper center", ncols=columns, columnspacing=1.2, handletextpad=0.3)
    return figure


@dataclass(frozen=True)
class Plane:
    """The first two principal components of standardised features."""

    scaler: Any
    """A fitted ``StandardScaler``."""
    components: Any
    """A fitted ``PCA``."""

    @property
    def names(self) -> tuple[str, str]:
        """Names of the axes, with the share of the variance that each component has."""
        first, second = np.nan_to_num(self.components.explained_variance_ratio_)
        return (
            f"first component ({percent(first)} of variance)",
            f"second component ({percent(second)})",
        )

    def project(self, points: Floats) -> tuple[Floats, Floats]:
        """Return both coordinates (points,) of points (points, features)."""
        first, second = self.components.transform(_standardised(self.scaler.transform, points)).T
        return first, second


def principal_plane(x: Floats) -> Plane:
    """Find the plane of rows (rows, features)."""
    from sklearn.decomposition import PCA  # needed by clusterings only
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(x)
    with np.errstate(invalid="ignore"):
        components = PCA(2, random_state=0).fit(_standardised(scaler.transform, x, zeros=2))
    return Plane(scaler, components)


def _standardised(transform: Callable[[Floats], Floats], points: Floats, zeros: int = 0) -> Floats:
    """Standardise points, and add a column, and rows, of zeros: they change no component, and a
    single feature or row has two with them.
    """
    return np.pad(transform(points), ((0, zeros), (0, 1)))
