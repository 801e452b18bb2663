"""Rows by cluster, and the centroids of one clustering or of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tipcast.evaluation.plots.numbered import write_numbers
from tipcast.evaluation.plots.page import INK, legend_above, page, picture, title_of
from tipcast.evaluation.plots.plane import principal_plane
from tipcast.evaluation.plots.texts import fit
from tipcast.evaluation.sums import Floats, Ints

if TYPE_CHECKING:
    from tipcast.evaluation.clustering import ClusteringEvaluation

COLORS = [colormaps["tab10"](at) for at in range(10)]
"""Colors of clusters, which differ clearly; the eleventh has the first one again."""
ROW_MARKERS = "os^vDP*X<"
"""Markers of clusters' rows: nine, so that 90 clusters differ in color or marker."""
MARKERS = "osD^vPX*"
"""Markers of clusterings, in their order."""
CENTROID: dict[str, Any] = {
    "facecolors": "none",
    "edgecolors": INK,
    "linewidths": 1.6,
    "zorder": 6,
}
COLUMNS = 3
"""Columns of the legend of clusterings."""
MOST_LETTERS = 16
"""Most letters of a clustering's name in the legend."""


@picture
def clusters(
    evaluations: Mapping[str, ClusteringEvaluation],
    subtitle: str,
    classes: Sequence[str] = (),
    target: str = "",
) -> Figure:
    """Draw rows, and the centroids of clusters that have rows, each with its cluster's number.

    See ``draw_rows``.
    """
    first, *_ = evaluations.values()
    plane = principal_plane(first.sample)
    figure, axes = page(title_of("Clusters", first.sums), subtitle, *plane.names)
    draw_rows(axes, plane.project(first.sample), first.labels)

    numbers = np.flatnonzero(first.sums.sizes > 0)
    centres = plane.project(first.centroids[numbers])
    x, y = centres.T
    axes.scatter(x, y, s=16, color=INK, zorder=5, label="centroid, labeled by its cluster")
    axes.margins(0.08)
    legend_above(axes, 1)
    write_numbers(axes, centres, numbers)
    return figure


@picture
def centroids(
    title: str, rows: Floats, groups: Ints, centres: Mapping[str, Floats], subtitle: str
) -> Figure:
    """Draw ``rows`` (rows, features) by their ``groups`` (rows,), and the centroids of clusterings.

    ``centres`` has the name of a clustering -> (clusters, features) its centroids. See
    ``draw_rows``.
    """
    plane = principal_plane(rows)
    figure, axes = page(title, subtitle, *plane.names)
    draw_rows(axes, plane.project(rows), groups)

    for at, (name, points) in enumerate(centres.items()):
        size = 330 / (1 + 0.8 * at)  # centroids on top of each other all show
        marker = MARKERS[at % len(MARKERS)]
        shown = fit(name, MOST_LETTERS)
        x, y = plane.project(points).T
        axes.scatter(x, y, s=size, marker=marker, label=shown, **CENTROID)

    axes.margins(0.08)
    legend_above(axes, COLUMNS)
    return figure


def draw_rows(axes: Axes, places: Floats, groups: Ints) -> None:
    """Draw rows at their places (rows, 2); a group has a color and a marker of its own."""
    for at, group in enumerate(np.unique(groups)):
        look: dict[str, Any] = {
            "color": COLORS[at % len(COLORS)],
            "marker": ROW_MARKERS[at % len(ROW_MARKERS)],
        }
        x, y = places[groups == group].T
        axes.scatter(x, y, s=11, alpha=0.4, linewidths=0, zorder=2, **look)
