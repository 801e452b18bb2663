"""Plots of counts: confusion matrix, score distribution and feature importance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from tipcast.evaluation.plots import style
from tipcast.evaluation.result import Evaluation


def confusion(evaluation: Evaluation, subtitle: str, *, classes: tuple[str, str] = ("not high", "high")) -> bytes:
    """Draw the confusion matrix: counts, and shares of the rows of each true class by shade.

    Parameters
    ----------
    evaluation
        What is drawn.
    subtitle
        Model, rows and period.
    classes
        Names of class 0 and class 1.

    Returns
    -------
    bytes
        PNG of 900 x 900 pixels.

    """
    figure, axes = style.page("Confusion matrix", subtitle, (0.165, 0.135, 0.8, 0.7))
    found = evaluation.confusion
    cells = np.asarray([[found.true_negatives, found.false_positives], [found.false_negatives, found.true_positives]])
    for row in range(2):
        for column in range(2):
            share = cells[row, column] / max(cells[row].sum(), 1)
            colour = style.BLUE if row == column else style.ORANGE
            box = (column - 0.485, row - 0.485)
            axes.add_patch(Rectangle(box, 0.97, 0.97, facecolor=colour, alpha=0.08 + 0.6 * share))
            plain: dict[str, Any] = {"ha": "center", "va": "center", "bbox": None}
            style.write(axes, column, row - 0.07, style.percent(share, 1), fontsize=25, weight="bold", **plain)
            style.write(axes, column, row + 0.13, f"{cells[row, column]:,} trips", fontsize=style.TEXT, **plain)
    axes.set_xlim(-0.5, 1.5)
    axes.set_ylim(1.5, -0.5)
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xticks([0, 1], list(classes))
    axes.set_yticks([0, 1], list(classes), rotation=90, va="center")
    axes.tick_params(labelsize=style.TEXT)
    style.name_axes(axes, f"predicted, at threshold {evaluation.threshold:.3f}", "in truth (each row adds to 100 %)")
    return style.png(figure)


def scores(evaluation: Evaluation, subtitle: str, *, classes: tuple[str, str] = ("not high", "high")) -> bytes:
    """Draw the distribution of scores in each class (adding to 100 %) and the threshold; see ``confusion``."""
    figure, axes = style.page("Scores by class", subtitle)
    bins = evaluation.histogram
    highest = 0.0
    for rows, colour, name in ((bins.negatives, style.ORANGE, classes[0]), (bins.positives, style.BLUE, classes[1])):
        share = rows / max(rows.sum(), 1)
        highest = max(highest, float(share.max()))
        axes.stairs(share, bins.edges, fill=True, color=colour, alpha=0.16)
        axes.stairs(share, bins.edges, color=colour, linewidth=2.2, label=f"{name}: {rows.sum():,} trips")
    top = highest * 1.32
    axes.plot([evaluation.threshold] * 2, [0, highest * 1.12], color=style.INK, linewidth=1.5, linestyle=style.DASHES)
    right = evaluation.threshold < 0.6
    place, side = evaluation.threshold + (0.015 if right else -0.015), "left" if right else "right"
    style.write(axes, place, highest * 1.12, f"threshold {evaluation.threshold:.3f}", ha=side, va="top")
    style.shares(axes, y=False)
    axes.set_ylim(0, top)
    axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))  # steps that whole percents can name
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0 if top > 0.06 else 1, symbol=" %"))
    axes.grid(False, axis="x")
    style.name_axes(axes, "score: predicted probability of a high tip", "share of the class's trips in a bin of 0.02")
    style.key(axes, "upper left", ncols=2, columnspacing=1.4, handlelength=1.4)
    return style.png(figure)


def importance(
    importance: Mapping[str, float],
    subtitle: str,
    *,
    kind: str = "gain",
    most: int = 15,
    title: str = "Feature importance",
) -> bytes:
    """Draw the features' shares of the importance as bars, longest first.

    Parameters
    ----------
    importance
        Feature -> importance, of any scale.
    subtitle
        Model, rows and period.
    kind
        What the importance measures, for the axis.
    most
        Bars shown.
    title
        Of the page.

    Returns
    -------
    bytes
        PNG of 900 x 900 pixels.

    """
    total = sum(importance.values()) or 1.0
    ranked = sorted(importance.items(), key=lambda item: (-item[1], item[0]))[:most]
    names, values = [name for name, _ in ranked], [value / total for _, value in ranked]
    left = min(0.07 + 0.0165 * max((len(name) for name in names), default=0), 0.5)
    figure, axes = style.page(title, subtitle, (left, 0.125, 0.92 - left, 0.715))
    axes.barh(names, values, height=0.62, color=style.BLUE, alpha=0.85)
    for i, value in enumerate(values):
        style.write(axes, value + 0.012 * max(values), i, style.percent(value, 1), va="center", bbox=None)
    axes.invert_yaxis()
    axes.set_xlim(0, max(values, default=1) * 1.17 or 1)
    axes.set_ylim(max(len(names), 5) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.spines["bottom"].set_visible(False)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    style.name_axes(axes, f"share of total {kind}", "")
    return style.png(figure)
