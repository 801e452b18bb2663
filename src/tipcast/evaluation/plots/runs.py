"""Plots of runs: the fit and its features, a sweep's trials, a ladder's rungs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from tipcast.evaluation.plots import style
from tipcast.evaluation.sums import Floats

COLORS = (style.BLUE, style.ORANGE, "#009e73", "#cc79a7", "#8a6d00")
"""Of the Okabe-Ito palette, the yellow darkened: lines on white."""
STYLES: tuple[Any, ...] = ("-", style.DASHES, ":")
VALUES = LinearSegmentedColormap.from_list("values", [style.BLUE, "#c3b7c9", style.ORANGE])
"""From the lowest value of a feature to the highest."""
MOST_BARS = 15
MOST_FEATURES = 12
"""Whose contributions are drawn, those of the largest."""
SWARM_BINS = 60
"""Of a beeswarm to each side of 0: points of one are beside each other."""
MARKERS = "osD^vPX*"
"""Of one clustering after another."""


def history(
    history: Mapping[str, Mapping[str, Sequence[float]]], metric: str, subtitle: str, *, best: int | None = None
) -> bytes:
    """Draw a metric against boosting rounds of each data set; ``best`` is the round (from 0) that is kept."""
    lines = [(name, list(values[metric])) for name, values in history.items() if metric in values]
    colors = (style.MUTED,) * (len(lines) - 2) + (style.ORANGE, style.BLUE)[max(2 - len(lines), 0) :]
    longest = max((len(values) for _, values in lines), default=1)
    figure, axes = style.page(f"Training history: {metric}", subtitle, "boosting round", metric)
    for (name, values), color in zip(lines, colors, strict=True):
        marker = "o" if longest == 1 else None
        axes.plot(range(1, len(values) + 1), values, color=color, linewidth=2.5, marker=marker, label=name)
    axes.set_xlim(min(1, longest - 1), max(longest, 2))
    if best is not None and lines:
        value = lines[-1][1][best]
        axes.axvline(best + 1, **style.GUIDE, zorder=1)
        style.ring(axes, best + 1, value, f"best round {best + 1}: {value:.4f}")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if lines:
        style.key(axes, "best")
    return style.png(figure)


def importance(
    importance: Mapping[str, float], subtitle: str, *, kind: str = "gain", title: str = "Feature importance"
) -> bytes:
    """Draw shares of the total of what is measured, ``kind``, as bars, the longest 15 first."""
    total = sum(importance.values()) or 1.0
    ranked = sorted(importance.items(), key=lambda item: (-item[1], item[0]))[:MOST_BARS]
    values = [value / total for _, value in ranked]
    figure, axes = style.rows(title, subtitle, [name for name, _ in ranked], f"share of total {kind}")
    style.bars(axes, values)
    style.ends(axes, values, [style.percent(value, 1) for value in values], 1.17)
    axes.spines["bottom"].set_visible(False)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
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
    box = left, 0.125, 0.82 - left, 0.65
    figure, axes = style.page("Contributions of features", subtitle, "added to the margin", "", box)
    reach = float(np.quantile(np.abs(added[:, chosen]), 0.995)) or 1.0
    beside: dict[str, Any] = {"va": "center", "transform": axes.get_yaxis_transform(), "bbox": None}
    for place, at in enumerate(chosen):
        ranks = np.searchsorted(np.sort(values[:, at]), values[:, at])
        places = np.clip(added[:, at], -reach, reach)
        heights = place + _swarm(np.round(places / reach * SWARM_BINS))
        axes.scatter(places, heights, s=7, c=VALUES(ranks / max(len(ranks) - 1, 1)), linewidths=0, zorder=3)
        style.write(axes, 1.03, place, f"{sizes[at]:.3g}", **beside)
    axes.axvline(0, color=style.FAINT, linewidth=1.5, zorder=1)
    axes.set_yticks(range(len(chosen)), shown)
    axes.set_ylim(max(len(chosen), 5) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    for name, color in (("low value of the feature", VALUES(0.0)), ("high value", VALUES(1.0))):
        axes.scatter([], [], s=50, color=color, label=name)
    look: dict[str, Any] = {"bbox_to_anchor": (0.015, 0.835), "bbox_transform": figure.transFigure, "borderpad": 0}
    style.key(axes, "center left", ncols=2, columnspacing=1.2, handletextpad=0.2, **look)
    style.write(axes, 0.8, 0.835, "mean size", style.MUTED, va="center", transform=figure.transFigure, bbox=None)
    return style.png(figure)


def _swarm(bins: Floats) -> Floats:
    """Return heights (rows,) of points by their bins, so that few lie on each other."""
    order = np.argsort(bins, kind="stable")
    _, starts, rows = np.unique(bins[order], return_index=True, return_counts=True)
    number = np.empty(len(bins))
    number[order] = np.arange(len(bins)) - np.repeat(starts, rows)
    sides = np.where(number % 2 == 0, 1, -1) * np.ceil(number / 2)
    return 0.8 * sides / max(float(rows.max(initial=1)), 12.0)


def roc_overlay(curves: Mapping[str, Mapping[str, Sequence[float]]], subtitle: str) -> bytes:
    """Draw ROC curves (label -> ``fpr``, ``tpr``), the first in front; where colors end, dashes tell them apart."""
    figure, axes = style.roc_page("ROC curves of the best trials", subtitle)
    for at, (label, table) in reversed([*enumerate(curves.items())]):
        dashes, color = divmod(at, len(COLORS))
        look: dict[str, Any] = {"color": COLORS[color], "linestyle": STYLES[dashes % len(STYLES)], "linewidth": 2.2}
        axes.plot(table["fpr"], table["tpr"], label=label, **look)
    style.key(axes, "lower right", reverse=True)
    return style.png(figure)


def ladder(seconds: Mapping[str, Mapping[str, float]], subtitle: str) -> bytes:
    """Draw how long each rung of a ladder took, phase on phase, with its speed-up against the first."""
    names, phases = list(seconds), list(next(iter(seconds.values())))
    figure, axes = style.rows("The same training, from rung to rung", subtitle, names, "seconds")
    left = np.zeros(len(names))
    for phase, color in zip(phases, (style.FAINT, style.BLUE, style.ORANGE), strict=True):
        wide = [seconds[name][phase] for name in names]
        style.bars(axes, wide, left=left, color=color, label=phase)
        left = left + wide
    style.ends(axes, left.tolist(), [f"{total:.2f} s, {left[0] / total:.1f} x" for total in left], 1.4)
    style.key(axes, "lower right")
    return style.png(figure)


def centroids(
    rows: Floats, groups: Sequence[int] | None, found: Mapping[str, Floats], shares: Sequence[float], subtitle: str
) -> bytes:
    """Draw rows (rows, 2) on two principal components, and the centroids of several clusterings of them.

    ``groups`` (rows,) are those that rows were made of, None where nothing is known of such; ``found`` has the name of
    a clustering -> (clusters, 2) its centroids; ``shares`` are those of the variance, by component.
    """
    figure, axes = style.page("Centroids of every rung", subtitle, *style.components(shares))
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
    style.key(axes, "upper center", ncols=min(len(found), 4), columnspacing=1.2, handletextpad=0.3)
    return style.png(figure)
