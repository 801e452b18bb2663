"""Bars: the importance of features or parameters, and the seconds of a ladder's rungs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from tipcast.evaluation.plots.page import (
    BLUE,
    FAINT,
    INK,
    ORANGE,
    SMALL,
    legend_above,
    page_of_rows,
    percent,
    picture,
)

BAR: dict[str, Any] = {"height": 0.62, "alpha": 0.85, "zorder": 3}
NOTE: dict[str, Any] = {"padding": 4, "fontsize": SMALL, "color": INK}
"""Style of the note at the end of a bar."""
MOST_BARS = 15


@picture
def importance(
    values: Mapping[str, float], subtitle: str, *, kind: str, title: str = "Feature importance"
) -> Figure:
    """Draw shares of the total of what is measured, ``kind``, as bars, the longest 15 first."""
    total = sum(values.values()) or 1.0
    ranked = sorted(values.items(), key=lambda item: (-item[1], item[0]))[:MOST_BARS]
    names = [name for name, _ in ranked]
    shares = [value / total for _, value in ranked]
    figure, axes = page_of_rows(title, subtitle, names, f"share of total {kind}")

    bars = axes.barh(range(len(shares)), shares, color=BLUE, **BAR)
    axes.bar_label(bars, [percent(share, 1) for share in shares], **NOTE)
    axes.set_xlim(0, max(shares, default=1) * 1.17 or 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    return figure


@picture
def ladder(seconds: Mapping[str, Mapping[str, float]], subtitle: str) -> Figure:
    """Draw how long each rung of a ladder took, phase on phase, with its speed-up against the
    first.
    """
    names = list(seconds)
    title = "Time per rung, by phase"
    figure, axes = page_of_rows(title, subtitle, names, "seconds")

    total = np.zeros(len(seconds))
    for phase, color in zip(next(iter(seconds.values())), (FAINT, BLUE, ORANGE), strict=True):
        widths = [seconds[name][phase] for name in names]
        bars = axes.barh(range(len(names)), widths, left=total, color=color, label=phase, **BAR)
        total = total + widths

    axes.bar_label(bars, [f"{value:.2f} s, {total[0] / value:.1f} x" for value in total], **NOTE)
    axes.set_xlim(0, total.max() * 1.4)
    legend_above(axes, 3)
    return figure
