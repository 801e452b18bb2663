"""Plots of rows: predicted against true values, residuals, contributions, clusters, centroids, predictions by bin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from tipcast.evaluation.plots import style
from tipcast.evaluation.sums import Floats, Ints

if TYPE_CHECKING:
    from tipcast.evaluation.clustering import Map
    from tipcast.evaluation.regression import RegressionEvaluation

SHADES = LinearSegmentedColormap.from_list("rows", ["#eaf3f9", style.BLUE, "#00243a"])
VALUES = LinearSegmentedColormap.from_list("values", [style.BLUE, "#c3b7c9", style.ORANGE])
"""From the lowest value of a feature to the highest."""
SWARM_BINS = 60
"""Of a beeswarm to each side of 0: points of one are beside each other."""
MOST_FEATURES = 12
"""Whose contributions are drawn, those of the largest."""
MARKERS = "osD^vPX*"
"""Of one clustering after another."""
MOST_NAMED = 30
"""Clusters up to which each centroid has its number."""


def predicted(evaluation: RegressionEvaluation, subtitle: str) -> bytes:
    """Draw predicted against true values as a two-dimensional histogram; rows beyond are in the outermost cells."""
    figure, axes = style.page("Predicted and true values", subtitle)
    edges = evaluation.axis
    _cells(axes, edges, edges, evaluation.joint)
    axes.plot(edges[[0, -1]], edges[[0, -1]], color=style.ORANGE, linewidth=1.8, linestyle=style.DASHES)
    text = f"RMSE {evaluation.interval.around(evaluation.headline)}\nR² {evaluation.metrics['r2']:.4f}"
    style.write(axes, 0.03, 0.97, text, va="top", transform=axes.transAxes)
    style.name_axes(axes, "true value", "predicted value")
    return style.png(figure)


def residuals(evaluation: RegressionEvaluation, subtitle: str) -> bytes:
    """Draw the distribution of prediction less truth."""
    figure, axes = style.page("Residuals", subtitle)
    share = evaluation.residuals / max(int(evaluation.residuals.sum()), 1)
    style.filled(axes, share, evaluation.residual_axis)
    top = float(share.max()) * 1.25 or 1.0
    bias = evaluation.metrics["bias"]
    axes.axvline(0, **style.GUIDE)
    axes.axvline(bias, color=style.ORANGE, linewidth=1.8)
    style.write(axes, 0.03, 0.97, f"mean {bias:+.4g}", style.ORANGE, va="top", transform=axes.transAxes)
    axes.set_ylim(0, top)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_formatter(lambda value, _: style.percent(value, 0 if top > 0.06 else 1))
    style.name_axes(axes, "prediction less true value (all beyond are in the last bins)", "share of rows in a bin")
    return style.png(figure)


def contributions(
    values: NDArray[np.floating], added: NDArray[np.floating], names: Sequence[str], subtitle: str
) -> bytes:
    """Draw what each feature adds to rows' predictions: a point a row, beside the mean of their sizes.

    ``values`` are features (rows, features), and ``added`` what each adds to the margin (rows, features). The axis ends
    where 1 of 200 points lie beyond; these are drawn at its ends.
    """
    sizes = np.abs(added).mean(axis=0)
    chosen = np.argsort(-sizes, kind="stable")[:MOST_FEATURES]
    shown = [style.fit(names[at], 21) for at in chosen]
    left = 0.07 + 0.0165 * max(map(len, shown))
    figure, axes = style.page("Contributions of features", subtitle, (left, 0.125, 0.76 - left, 0.65))
    reach = float(np.quantile(np.abs(added[:, chosen]), 0.995)) or 1.0
    for place, at in enumerate(chosen):
        ranks = np.searchsorted(np.sort(values[:, at]), values[:, at])
        places = np.clip(added[:, at], -reach, reach)
        heights = place + _swarm(np.round(places / reach * SWARM_BINS))
        axes.scatter(places, heights, s=7, c=VALUES(ranks / max(len(ranks) - 1, 1)), linewidths=0, zorder=3)
    axes.axvline(0, color=style.FAINT, linewidth=1.5, zorder=1)
    axes.set_yticks(range(len(chosen)), shown)
    axes.set_ylim(max(len(chosen), 5) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    for name, color in (("low value of the feature", VALUES(0.0)), ("high value", VALUES(1.0))):
        axes.scatter([], [], s=50, color=color, label=name)
    look: dict[str, Any] = {"bbox_to_anchor": (0.015, 0.835), "bbox_transform": figure.transFigure, "borderpad": 0}
    style.key(axes, "center left", ncols=2, columnspacing=1.2, handletextpad=0.2, **look)
    style.name_axes(axes, "added to the margin", "")
    means = style.dress(figure.add_axes((0.79, 0.125, 0.08, 0.65)))
    means.barh(range(len(chosen)), sizes[chosen], height=0.5, color=style.FAINT)
    means.set_ylim(axes.get_ylim())
    means.set_axis_off()
    for place, at in enumerate(chosen):
        style.write(means, sizes[at], place, f" {sizes[at]:.3g}", va="center", bbox=None)
    style.write(means, 0.79, 0.835, "mean size", style.MUTED, va="center", transform=figure.transFigure, bbox=None)
    return style.png(figure)


def _swarm(bins: Floats) -> Floats:
    """Return heights (rows,) of points by their bins, so that few lie on each other."""
    order = np.argsort(bins, kind="stable")
    _, starts, rows = np.unique(bins[order], return_index=True, return_counts=True)
    number = np.empty(len(bins))
    number[order] = np.arange(len(bins)) - np.repeat(starts, rows)
    sides = np.where(number % 2 == 0, 1, -1) * np.ceil(number / 2)
    return 0.8 * sides / max(float(rows.max(initial=1)), 12.0)


def clusters(found: Map, rows: Ints, subtitle: str) -> bytes:
    """Draw rows and centroids on two principal components; the rings' areas tell the rows of each cluster."""
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


def centroids(
    rows: Floats, groups: Sequence[int] | None, found: Mapping[str, Floats], shares: Sequence[float], subtitle: str
) -> bytes:
    """Draw rows (rows, 2) on two principal components, and the centroids of several clusterings of them.

    ``groups`` (rows,) are those that rows were made of, None where nothing is known of such; ``found`` has the name of
    a clustering -> (clusters, 2) its centroids; ``shares`` are those of the variance, by component.
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


def _cells(axes: Axes, x: Floats, y: Floats, counts: Ints) -> None:
    """Shade cells (x, y) by the logarithm of their rows; a cell without any is white."""
    some = np.ma.masked_equal(counts.T, 0)
    norm = LogNorm(1, max(int(counts.max(initial=0)), 2))
    axes.pcolormesh(x, y, some, cmap=SHADES, norm=norm, rasterized=True)
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(y[0], y[-1])
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_locator(MaxNLocator(6))


def distribution(
    now: Sequence[float],
    then: Sequence[float] | None,
    then_name: str,
    subtitle: str,
    *,
    edges: Sequence[float] | None = None,
    names: Sequence[str] = (),
    threshold: float | None = None,
) -> bytes:
    """Draw the (bins,) shares of predictions, and behind them of rows held out at training (None: not known).

    Without ``edges`` (bins + 1,) a bin is a class, named by ``names``, or a cluster, or of two classes, which have a
    ``threshold``, an equal part of 0..1.
    """
    many = max(len(now), len(then or ()))  # the last clusters may have no rows now
    now, then = [*now, *[0.0] * (many - len(now))], then and [*then, *[0.0] * (many - len(then))]
    title = "Distribution of predictions" if threshold is None else "Distribution of scores"
    figure, axes = style.page(title, subtitle)
    numbers = edges is not None or threshold is not None
    borders = np.linspace(0, 1 if numbers else len(now), len(now) + 1) if edges is None else np.asarray(edges)
    highest = max(max(now), max(then) if then else 0.0, 1e-9)
    if then:
        axes.stairs(then, borders, color=style.MUTED, linewidth=1.8, linestyle=style.DASHES, label=then_name)
    style.filled(axes, now, borders, label="scored rows")
    what, bins = "prediction", "a bin"
    if threshold is not None:
        style.mark_threshold(axes, threshold, highest * 1.12)
        style.shares(axes, y=False)
        what, bins = "score: predicted probability", "a bin of 0.02"
    elif not numbers:
        known = names if len(names) == len(now) else [str(at) for at in range(len(now))]
        axes.set_xticks(borders[:-1] + 0.5, labels=known)
        what, bins = "predicted class" if names else "cluster", "each"
    style.bin_shares(axes, highest)
    style.name_axes(axes, what, f"share of rows in {bins}")
    return style.png(figure)
