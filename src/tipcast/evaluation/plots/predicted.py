"""Predictions of numbers against the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tipcast.evaluation.plots.page import (
    BLUE,
    DASHES,
    ORANGE,
    legend,
    page,
    picture,
    title_of,
    write,
)
from tipcast.evaluation.sums import Floats

if TYPE_CHECKING:
    from tipcast.evaluation.base import Evaluation

RIGHT: dict[str, Any] = {"color": ORANGE, "linewidth": 1.8, "linestyle": DASHES}
"""Style of the line on which a prediction is right."""
MARGIN = 0.05
"""Share of the values' span that is left free at both ends of the axes."""


@picture
def predicted(
    evaluations: Mapping[str, Evaluation],
    subtitle: str,
    classes: Sequence[str] = (),
    target: str = "",
) -> Figure:
    """Draw predictions against true values of some rows of each part; ``target`` is its name, with
    its unit if that is known.
    """
    evaluation, *_ = evaluations.values()
    sums = evaluation.sums
    rows = f"{len(sums.sample):,} of {sums.counted:,} rows"
    title = title_of("Predicted vs. true values", sums)
    of_target = f" of {target}" if target else ""
    x, y = f"true value{of_target}", f"prediction{of_target}"
    figure, axes = page(f"{title}: {rows}", subtitle, x, y)

    targets, predictions = sums.sample.T
    axes.scatter(targets, predictions, s=7, color=BLUE, alpha=0.35, linewidths=0, zorder=3)
    show_one_scale(axes, sums.sample)

    rmse = evaluation.interval.around(evaluation.headline_value)
    text = f"RMSE {rmse}\nR² {evaluation.metrics['r2']:.4f}"
    write(axes, 0.03, 0.97, text, va="top", transform=axes.transAxes)
    legend(axes, "lower right")
    return figure


def show_one_scale(axes: Axes, values: Floats) -> None:
    """Give both axes the span of all values and one scale, and draw the line on which a prediction
    is right.
    """
    low = values.min()
    high = values.max()
    margin = MARGIN * (high - low) or 1.0
    ends = (low - margin, high + margin)

    axes.set(xlim=ends, ylim=ends, aspect="equal")
    ticks = MaxNLocator(6).tick_values(*ends)
    inside = ticks[(ticks >= ends[0]) & (ticks <= ends[1])]
    axes.set_xticks(inside)
    axes.set_yticks(inside)
    axes.plot(ends, ends, label="y = x: exact prediction", **RIGHT)
