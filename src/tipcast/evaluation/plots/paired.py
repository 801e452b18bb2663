"""The plot of two models' difference."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from matplotlib.ticker import MaxNLocator

from tipcast.evaluation.base import Metric
from tipcast.evaluation.paired import Difference
from tipcast.evaluation.plots import style
from tipcast.evaluation.sums import Z95

BINS = 40


def difference(found: Difference, margin: float, subtitle: str, *, first: str, second: str, metric: Metric) -> bytes:
    """Draw the distribution of the headline's difference with its 95 % interval, and how much worse is let pass.

    Parameters
    ----------
    found
        What is drawn.
    margin
        Largest loss that is let pass, 0 or more.
    subtitle
        Rows and period.
    first, second
        Names of the models; the difference is the first less the second.
    metric
        The headline.

    Returns
    -------
    bytes
        PNG of 900 x 900 pixels.

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
    bins = np.linspace(found.value - spread, found.value + spread, BINS + 1).tolist()
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
