"""Plots of scored rows: the distribution of their scores, and how far they have moved from those of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator, PercentFormatter

from tipcast.evaluation.drift import MUCH, SOME, Drift
from tipcast.evaluation.plots import style

MOST = 0.75
"""Where the axis ends at most: beyond, bars are cut and told in numbers."""
PLAIN: dict[str, Any] = {"va": "center", "color": style.INK, "fontsize": style.SMALL, "family": style.FONT, "zorder": 6}
COLORS = {"little": style.BLUE, "some": style.ORANGE, "much": style.ORANGE}


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
    """Draw the distribution of predictions, and behind it that of rows held out at training.

    Parameters
    ----------
    now
        (bins,) shares of the scored rows.
    then, then_name
        The same of the held-out rows, and what they are called; None: not known.
    subtitle
        Model, rows and files.
    edges
        (bins + 1,) of the bins of numbers; None: a bin is a class or a cluster.
    names
        Of classes.
    threshold
        Of two classes: scores at or above it are called positive.

    Returns
    -------
    bytes
        PNG.

    """
    title = "Distribution of predictions" if threshold is None else "Distribution of scores"
    figure, axes = style.page(title, subtitle)
    numbers = edges is not None or threshold is not None
    borders = np.linspace(0, 1 if numbers else len(now), len(now) + 1) if edges is None else np.asarray(edges)
    highest = max(max(now), max(then) if then else 0.0, 1e-9)
    if then:
        axes.stairs(then, borders, color=style.MUTED, linewidth=1.8, linestyle=style.DASHES, label=then_name)
    axes.stairs(now, borders, fill=True, color=style.BLUE, alpha=0.16)
    axes.stairs(now, borders, color=style.BLUE, linewidth=2.2, label="scored rows")
    what, bins = "prediction", "a bin"
    if threshold is not None:
        axes.plot([threshold] * 2, [0, highest * 1.12], color=style.INK, linewidth=1.5, linestyle=style.DASHES)
        right = threshold < 0.6
        place, side = threshold + (0.015 if right else -0.015), "left" if right else "right"
        style.write(axes, place, highest * 1.12, f"threshold {threshold:.3f}", ha=side, va="top")
        style.shares(axes, y=False)
        what, bins = "score: predicted probability", "a bin of 0.02"
    elif not numbers:
        known = names if len(names) == len(now) else [str(at) for at in range(len(now))]
        axes.set_xticks(borders[:-1] + 0.5, labels=known)
        what, bins = "predicted class" if names else "cluster", "each"
    axes.set_ylim(0, highest * 1.32)
    axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0 if highest > 0.06 else 1, symbol=" %"))
    axes.grid(False, axis="x")
    style.name_axes(axes, what, f"share of rows in {bins}")
    style.key(axes, "upper left", ncols=2, columnspacing=1.4, handlelength=1.4)
    return style.png(figure)


def stability(drifts: Sequence[Drift], subtitle: str) -> bytes:
    """Draw the stability index of the score and of each feature, with the usual limits; see ``distribution``."""
    names, values = [drift.name for drift in drifts], [drift.psi for drift in drifts]
    left = min(0.07 + 0.0165 * max(len(name) for name in names), 0.5)
    figure, axes = style.page("Drift from training", subtitle, (left, 0.125, 0.9 - left, 0.715))
    top = min(max(*values, MUCH) * 1.25, MOST)
    axes.barh(
        names,
        [min(value, top * 0.8) for value in values],
        height=0.62,
        color=[COLORS[drift.verdict] for drift in drifts],
        zorder=3,
    )
    for at, drift in enumerate(drifts):
        beyond = " (longer than shown)" if drift.psi > top * 0.8 else ""
        text = f"{drift.psi:.3f} {drift.verdict}"
        inside = {"ha": "right", "color": "white"} if beyond else {}
        place = top * 0.79 if beyond else drift.psi + 0.012 * top
        axes.text(place, at, text + beyond, **{**PLAIN, **inside})
    for limit in (SOME, MUCH):
        axes.axvline(limit, color=style.FAINT, linewidth=1.5, linestyle=style.DASHES, zorder=1)
        style.write(axes, limit, -0.52, f"{limit}", style.MUTED, ha="center", va="bottom")
    axes.invert_yaxis()
    axes.set_xlim(0, top)
    axes.set_ylim(max(len(names), 5) - 0.4, -0.9)
    axes.grid(False, axis="y")
    style.name_axes(axes, "population stability index", "")
    return style.png(figure)
