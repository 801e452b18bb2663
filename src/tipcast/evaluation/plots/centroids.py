"""The picture of a ladder of clusterings: rows by the groups that they were made of, and every rung's centroids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps

from tipcast.evaluation.plots import style
from tipcast.evaluation.sums import Floats

MARKERS = "osD^vPX*"
"""Of one rung after another."""


def centroids(
    rows: Floats, groups: Sequence[int] | None, found: Mapping[str, Floats], shares: Sequence[float], subtitle: str
) -> bytes:
    """Draw rows and the centroids of several clusterings of them.

    Parameters
    ----------
    rows
        (rows, 2) on two principal components.
    groups
        (rows,) of the groups that rows were made of; None where nothing is known of such.
    found
        Name of a clustering -> (clusters, 2) its centroids.
    shares
        Of the variance, by component.
    subtitle
        The line below the title.

    """
    figure, axes = style.page("Centroids of every rung", subtitle)
    colors: Any = style.FAINT
    if groups is not None:
        _, numbers = np.unique(np.asarray(groups), return_inverse=True)
        colors = colormaps["tab20"](numbers % 20)
    axes.scatter(rows[:, 0], rows[:, 1], s=7, c=colors, alpha=0.35, linewidths=0, zorder=2)
    for at, (name, points) in enumerate(found.items()):
        look: dict[str, Any] = {"facecolors": "none", "edgecolors": style.INK, "linewidths": 1.6, "zorder": 6}
        size = 330 / (1 + 0.8 * at)  # those that lie on each other all show
        axes.scatter(points[:, 0], points[:, 1], s=size, marker=MARKERS[at % len(MARKERS)], label=name, **look)
    axes.margins(0.08, 0.16)
    first, second = (style.percent(share) for share in shares)
    style.name_axes(axes, f"first component ({first} of variance)", f"second component ({second})")
    style.key(axes, "upper center", ncols=min(len(found), 4), columnspacing=1.2, handletextpad=0.3)
    return style.png(figure)
