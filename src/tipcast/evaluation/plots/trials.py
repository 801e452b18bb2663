"""Plots of several runs: the best trials' ROC curves, parameters against scores, a ladder's seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap

from tipcast.evaluation.plots import style

COLORS = (style.BLUE, style.ORANGE, "#009e73", "#cc79a7", "#8a6d00")
"""Of the Okabe-Ito palette, the yellow darkened: lines on white."""
STYLES: tuple[Any, ...] = ("-", style.DASHES, ":")
SHADES = LinearSegmentedColormap.from_list("scores", ["#d3d8de", "#7fb6dc", style.BLUE])
"""From the worst score to the best."""


def roc_overlay(curves: Mapping[str, Mapping[str, Sequence[float]]], subtitle: str) -> bytes:
    """Draw ROC curves (label -> ``fpr``, ``tpr``), the first in front; where colors end, dashes tell them apart."""
    figure, axes = style.page("ROC curves of the best trials", subtitle, (0.165, 0.115, 0.74, 0.74))
    axes.plot([0, 1], [0, 1], **style.GUIDE)
    for at, (label, table) in reversed([*enumerate(curves.items())]):
        dashes, color = divmod(at, len(COLORS))
        look: dict[str, Any] = {"color": COLORS[color], "linestyle": STYLES[dashes % len(STYLES)], "linewidth": 2.2}
        axes.plot(table["fpr"], table["tpr"], label=label, **look)
    style.shares(axes)
    style.name_axes(axes, "false-positive rate", "true-positive rate")
    style.key(axes, "lower right", reverse=True)
    return style.png(figure)


def parallel(
    values: Mapping[str, Sequence[Any]],
    scores: Sequence[float],
    subtitle: str,
    *,
    logs: Sequence[str] = (),
    metric: str = "score",
    maximize: bool = True,
) -> bytes:
    """Draw one line a trial across one axis a parameter, darker for better scores, the best one on top.

    Values are numbers, or words in the order in which they first come; ``logs`` are parameters on logarithmic axes.
    """
    figure, axes = style.page(f"Parameters and {metric}", subtitle, (0.075, 0.19, 0.85, 0.61))
    columns = {**values, metric.replace(" ", "_"): scores}
    worth = np.asarray(scores) if maximize else -np.asarray(scores)
    places = [_placed(found, name in logs) for name, found in columns.items()]
    ranks = np.argsort(np.argsort(worth)) / max(len(scores) - 1, 1)
    for trial in np.argsort(worth):
        best = trial == int(np.argmax(worth))
        look: dict[str, Any] = {"color": style.ORANGE, "linewidth": 3.2, "zorder": 5}
        if not best:
            look = {"color": SHADES(float(ranks[trial])), "linewidth": 1.3, "alpha": 0.85, "zorder": 2 + ranks[trial]}
        axes.plot(range(len(places)), [place[0][trial] for place in places], **look)
    for at, (_, low, high) in enumerate(places):
        axes.plot([at, at], [0, 1], color=style.INK, linewidth=1, zorder=4)
        for height, text in ((-0.035, low), (1.035, high)):
            style.write(axes, at, height, text, ha="center", va="top" if height < 0 else "bottom", bbox=None)
    axes.set_xlim(-0.02, len(places) - 1 + 0.02)
    axes.set_ylim(-0.02, 1.02)
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_yticks([])
    axes.set_xticks(range(len(places)), [name.replace("_", "\n") for name in columns])
    axes.tick_params(axis="x", pad=26, labelsize=style.SMALL if len(columns) < 7 else 9.5)
    return style.png(figure)


def _placed(values: Sequence[Any], log: bool) -> tuple[list[float], str, str]:
    """Return values as heights 0 to 1, and what the axis's ends say."""
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        words = list(dict.fromkeys(map(str, values)))
        top = max(len(words) - 1, 1)
        return [words.index(str(value)) / top for value in values], words[0], words[-1] if len(words) > 1 else ""
    numbers = [math.log(value) if log else float(value) for value in values]
    low, high = min(numbers), max(numbers)
    ends = f"{min(values):.3g}", f"{max(values):.3g}" if high > low else ""
    return [(number - low) / (high - low) if high > low else 0.5 for number in numbers], *ends


def ladder(seconds: Mapping[str, Mapping[str, float]], subtitle: str) -> bytes:
    """Draw how long each rung of a ladder took, phase on phase, with its speed-up against the first."""
    names, phases = list(seconds), list(next(iter(seconds.values())))
    figure, axes = style.rows("The same training, from rung to rung", subtitle, names)
    totals = [sum(seconds[name].values()) for name in names]
    left = [0.0] * len(names)
    for phase, color in zip(phases, (style.FAINT, style.BLUE, style.ORANGE), strict=True):
        wide = [seconds[name][phase] for name in names]
        style.bars(axes, wide, left=left, color=color, label=phase)
        left = [start + more for start, more in zip(left, wide, strict=True)]
    for at, total in enumerate(totals):
        style.write(axes, total, at, f" {total:.2f} s, {totals[0] / total:.1f} x", va="center", bbox=None)
    axes.set_xlim(0, max(totals) * 1.4)
    style.name_axes(axes, "seconds", "")
    style.key(axes, "lower right")
    return style.png(figure)
