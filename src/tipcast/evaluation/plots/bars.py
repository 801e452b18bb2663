"""Plots of counts: confusion matrix, scores, classes, feature importance, a difference of two models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from tipcast.evaluation.base import Metric
from tipcast.evaluation.classification import ClassificationEvaluation
from tipcast.evaluation.paired import Difference
from tipcast.evaluation.plots import style
from tipcast.evaluation.sums import Z95, Floats, Ints

MOST_WRITTEN = 12
"""Classes up to which the cells of a confusion matrix have their share written in; of more only the shade tells."""
MOST_CLASSES = 20
"""Classes whose recall and precision are drawn, the first ones."""
MOST_BARS = 15
DIFFERENCE_BINS = 40


def confusion(matrix: Ints, subtitle: str, classes: Sequence[str], called: str = "predicted") -> bytes:
    """Draw rows (classes, classes) by true and by predicted class, shaded by share of the true class.

    ``called`` says on the axis how rows were called one class.
    """
    figure, axes = style.page("Confusion matrix", subtitle, (0.165, 0.135, 0.8, 0.7))
    many = len(classes)
    plain: dict[str, Any] = {"ha": "center", "va": "center", "bbox": None}
    for row in range(many):
        for column in range(many):
            share = matrix[row, column] / max(matrix[row].sum(), 1)
            color = style.BLUE if row == column else style.ORANGE
            box = (column - 0.485, row - 0.485)
            axes.add_patch(Rectangle(box, 0.97, 0.97, facecolor=color, alpha=0.08 + 0.6 * share))
            if many > MOST_WRITTEN:
                continue
            size = min(25, 50 / many) if many < 5 else 60 / many
            lift = 0.07 if many < 5 else 0
            told = style.percent(share, 1 if many < 5 else 0)
            style.write(axes, column, row - lift, told, fontsize=size, weight="bold", **plain)
            if many < 5:
                text = f"{matrix[row, column]:,} rows"
                style.write(axes, column, row + 0.13, text, fontsize=min(style.TEXT, 26 / many), **plain)
    axes.set_xlim(-0.5, many - 0.5)
    axes.set_ylim(many - 0.5, -0.5)
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    shown = range(0, many, -(-many // 25))
    names = [style.fit(classes[at], max(3, 40 // many)) for at in shown]
    axes.set_xticks(list(shown), names)
    axes.set_yticks(list(shown), names, rotation=90 if many < 5 else 0, va="center")
    axes.tick_params(labelsize=style.TEXT if many < 5 else 8)
    style.name_axes(axes, called, "in truth (each row adds to 100 %)")
    return style.png(figure)


def classes(names: Sequence[str], recall: Floats, precision: Floats, subtitle: str) -> bytes:
    """Draw recall and precision of each class as pairs of bars; of many classes the first."""
    names, recall, precision = names[:MOST_CLASSES], recall[:MOST_CLASSES], precision[:MOST_CLASSES]
    figure, axes = style.rows("Classes", subtitle, [style.fit(name, 40) for name in names], above=1.2)
    places = np.arange(len(names))
    axes.barh(places - 0.19, recall, height=0.34, color=style.BLUE, alpha=0.85, label="recall: share found")
    axes.barh(places + 0.19, precision, height=0.34, color=style.ORANGE, alpha=0.7, label="precision: share right")
    style.shares(axes, y=False)
    style.key(axes, "upper left", ncols=2, columnspacing=1.4, handlelength=1.4)
    style.name_axes(axes, "share of the class's rows", "")
    return style.png(figure)


def scores(evaluation: ClassificationEvaluation, subtitle: str, *, classes: tuple[str, ...] = ("0", "1")) -> bytes:
    """Draw the distribution of scores in each class (adding to 100 %) and the threshold."""
    figure, axes = style.page("Scores by class", subtitle)
    highest, edges = 0.0, np.linspace(0, 1, evaluation.histogram.shape[1] + 1)
    for rows, color, name in zip(evaluation.histogram, (style.ORANGE, style.BLUE), classes, strict=True):
        share = rows / max(rows.sum(), 1)
        highest = max(highest, float(share.max()))
        style.filled(axes, share, edges, color, f"{name}: {rows.sum():,} rows")
    style.mark_threshold(axes, evaluation.threshold, highest * 1.12)
    style.shares(axes, y=False)
    style.bin_shares(axes, highest)
    of_bin = f"share of the class's rows in a bin of 1/{len(edges) - 1}"
    style.name_axes(axes, f"score: predicted probability of class {classes[1]}", of_bin)
    return style.png(figure)


def importance(
    importance: Mapping[str, float], subtitle: str, *, kind: str = "gain", title: str = "Feature importance"
) -> bytes:
    """Draw shares of the total of what is measured, ``kind``, as bars, the longest 15 first."""
    total = sum(importance.values()) or 1.0
    ranked = sorted(importance.items(), key=lambda item: (-item[1], item[0]))[:MOST_BARS]
    names, values = [name for name, _ in ranked], [value / total for _, value in ranked]
    figure, axes = style.rows(title, subtitle, names)
    style.bars(axes, values)
    for i, value in enumerate(values):
        style.write(axes, value + 0.012 * max(values), i, style.percent(value, 1), va="center", bbox=None)
    axes.set_xlim(0, max(values, default=1) * 1.17 or 1)
    axes.spines["bottom"].set_visible(False)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    style.name_axes(axes, f"share of total {kind}", "")
    return style.png(figure)


def difference(found: Difference, margin: float, subtitle: str, *, first: str, second: str, metric: Metric) -> bytes:
    """Draw the distribution of the headline's difference, ``first`` less ``second``, with its 95 % interval.

    ``margin`` is the largest loss that is let pass, 0 or more.
    """
    figure, axes = style.page(f"Difference of {metric.title}", subtitle)
    values, asymptotic = found.replicates, not len(found.replicates)
    if asymptotic:
        deviation = (found.interval.high - found.interval.low) / (2 * Z95)
        values = found.value + deviation * np.array([NormalDist().inv_cdf((at + 0.5) / 4000) for at in range(4000)])
    limit = -margin if metric.maximize else margin
    spread = max(float(np.abs(values - found.value).max()), margin / 4, 1e-6)
    low, high = min(limit, 0.0, found.value - spread), max(limit, 0.0, found.value + spread)
    room = 0.06 * (high - low)
    bins = np.linspace(found.value - spread, found.value + spread, DIFFERENCE_BINS + 1).tolist()
    weights = np.full(len(values), 1 / len(values))
    heights, _, _ = axes.hist(values, bins=bins, weights=weights, color=style.BLUE, alpha=0.55)
    top = float(np.max(heights)) * 1.35
    axes.axvspan(found.interval.low, found.interval.high, color=style.BLUE, alpha=0.08, linewidth=0)
    axes.axvline(found.value, color=style.BLUE, linewidth=2.5)
    axes.axvline(limit, color=style.ORANGE, linewidth=1.8, linestyle=style.DASHES)
    axes.axvline(0, color=style.FAINT, linewidth=1.5)
    text = f"{found.value:+.5f} ({found.interval.low:+.5f} to {found.interval.high:+.5f})"
    style.write(axes, 0.98, 0.975, text, ha="right", va="top", transform=axes.transAxes)
    side = "left" if limit < (low + high) / 2 else "right"
    style.write(axes, limit, top * 0.9, f" margin {limit:g} ", style.ORANGE, ha=side, va="top")
    axes.set_xlim(low - room, high + room)
    axes.set_ylim(0, top)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_yticks([])
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    sampled = "asymptotic distribution" if asymptotic else f"{len(values):,} bootstrap replicates"
    style.name_axes(axes, f"{metric.title} of {first} less that of {second}", sampled)
    return style.png(figure)
