"""The plot of two models' difference."""

from __future__ import annotations

import numpy as np
from matplotlib.ticker import MaxNLocator

from tipcast.evaluation.paired import Difference
from tipcast.evaluation.plots import style

BINS = 40


def difference(found: Difference, margin: float, subtitle: str, *, first: str, second: str) -> bytes:
    """Draw the bootstrap's differences of AUC with their 95 % interval, and how much worse is let pass.

    Parameters
    ----------
    found
        What is drawn.
    margin
        Largest loss of AUC that is let pass, 0 or more.
    subtitle
        Rows and period.
    first, second
        Names of the models; the difference is the first less the second.

    Returns
    -------
    bytes
        PNG of 900 x 900 pixels.

    """
    figure, axes = style.page("Difference of AUC", subtitle)
    values = found.replicates
    spread = max(float(np.abs(values - found.value).max()), margin / 4, 1e-6)
    low, high = min(-margin, 0.0, found.value - spread), max(0.0, found.value + spread)
    room = 0.06 * (high - low)
    bins = np.linspace(found.value - spread, found.value + spread, BINS + 1).tolist()
    weights = np.full(len(values), 1 / len(values))
    heights, _, _ = axes.hist(values, bins=bins, weights=weights, color=style.BLUE, alpha=0.55)
    top = float(np.max(heights)) * 1.35
    axes.axvspan(found.interval.low, found.interval.high, color=style.BLUE, alpha=0.08, linewidth=0)
    axes.axvline(found.value, color=style.BLUE, linewidth=2.5)
    axes.axvline(-margin, color=style.ORANGE, linewidth=1.8, linestyle=style.DASHES)
    axes.axvline(0, color=style.FAINT, linewidth=1.5)
    text = f"{found.value:+.5f} ({found.interval.low:+.5f} to {found.interval.high:+.5f})"
    style.write(axes, 0.98, 0.975, text, ha="right", va="top", transform=axes.transAxes)
    side = "left" if -margin < (low + high) / 2 else "right"
    style.write(axes, -margin, top * 0.9, f" margin {-margin:g} ", style.ORANGE, ha=side, va="top")
    axes.set_xlim(low - room, high + room)
    axes.set_ylim(0, top)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_yticks([])
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    style.name_axes(axes, f"AUC of {first} less that of {second}", f"{len(values):,} bootstrap replicates")
    return style.png(figure)
