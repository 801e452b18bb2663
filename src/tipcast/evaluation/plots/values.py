"""Plots of rows counted in cells: predicted against true values, residuals, clusters on two components."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.ticker import MaxNLocator

from tipcast.evaluation.plots import style
from tipcast.evaluation.sums import Floats, Ints

if TYPE_CHECKING:
    from tipcast.evaluation.clustering import Map
    from tipcast.evaluation.regression import RegressionEvaluation

SHADES = LinearSegmentedColormap.from_list("rows", ["#eaf3f9", style.BLUE, "#00243a"])
MOST_NAMED = 30
"""Clusters up to which each centroid has its number."""


def predicted(evaluation: RegressionEvaluation, subtitle: str) -> bytes:
    """Draw predicted against true values as a two-dimensional histogram, with the line on which both are the same.

    Parameters
    ----------
    evaluation
        What is drawn; rows beyond an axis are in its outermost cells.
    subtitle
        Model, rows and period.

    Returns
    -------
    bytes
        PNG of 900 x 900 pixels.

    """
    figure, axes = style.page("Predicted and true values", subtitle)
    edges = evaluation.axis
    _cells(axes, edges, edges, evaluation.joint)
    axes.plot(edges[[0, -1]], edges[[0, -1]], color=style.ORANGE, linewidth=1.8, linestyle=style.DASHES)
    text = f"RMSE {evaluation.interval.around(evaluation.headline)}\nR² {evaluation.metrics['r2']:.4f}"
    style.write(axes, 0.03, 0.97, text, va="top", transform=axes.transAxes)
    style.name_axes(axes, "true value", "predicted value")
    return style.png(figure)


def residuals(evaluation: RegressionEvaluation, subtitle: str) -> bytes:
    """Draw the distribution of prediction less truth; see ``predicted``."""
    figure, axes = style.page("Residuals", subtitle)
    share = evaluation.residuals / max(int(evaluation.residuals.sum()), 1)
    axes.stairs(share, evaluation.residual_axis, fill=True, color=style.BLUE, alpha=0.16)
    axes.stairs(share, evaluation.residual_axis, color=style.BLUE, linewidth=2.2)
    top = float(share.max()) * 1.25 or 1.0
    bias = evaluation.metrics["bias"]
    axes.axvline(0, color=style.FAINT, linewidth=1.5, linestyle=style.DASHES)
    axes.axvline(bias, color=style.ORANGE, linewidth=1.8)
    style.write(axes, 0.03, 0.97, f"mean {bias:+.4g}", style.ORANGE, va="top", transform=axes.transAxes)
    axes.set_ylim(0, top)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_formatter(lambda value, _: style.percent(value, 0 if top > 0.06 else 1))
    axes.grid(False, axis="x")
    style.name_axes(axes, "prediction less true value (all beyond are in the last bins)", "share of rows in a bin")
    return style.png(figure)


def clusters(found: Map, rows: Ints, subtitle: str) -> bytes:
    """Draw rows and centroids on two principal components of the standardised features; see ``predicted``.

    Parameters
    ----------
    found
        Rows by cell, and centroids.
    rows
        Of each cluster (clusters,), which the rings' areas show.
    subtitle
        Model, rows and period.

    """
    figure, axes = style.page("Clusters", subtitle)
    first, second = found.axes
    _cells(axes, first, second, found.cells)
    x, y = (np.clip(found.centroids[:, at], edges[0], edges[-1]) for at, edges in enumerate(found.axes))
    areas = 60 + 500 * rows / max(int(rows.max(initial=0)), 1)
    look: dict[str, Any] = {"facecolors": "white", "edgecolors": style.ORANGE, "linewidths": 2.2, "zorder": 6}
    axes.scatter(x, y, s=areas, alpha=0.9, clip_on=False, **look)
    for at in range(len(rows) if len(rows) <= MOST_NAMED else 0):
        style.write(axes, x[at], y[at], str(at), ha="center", va="center", bbox=None, zorder=7)
    shares = [style.percent(share) for share in found.shares]
    style.name_axes(axes, f"first component ({shares[0]} of variance)", f"second component ({shares[1]})")
    return style.png(figure)


def _cells(axes: Axes, x: Floats, y: Floats, counts: Ints) -> None:
    """Shade cells (x, y) by the logarithm of their rows; a cell without any is white."""
    some = np.ma.masked_equal(counts.T, 0)
    norm = LogNorm(1, max(int(counts.max(initial=0)), 2))
    axes.pcolormesh(x, y, some, cmap=SHADES, norm=norm, rasterized=True)
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(y[0], y[-1])
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_locator(MaxNLocator(6))
