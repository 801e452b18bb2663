"""What features add to the predictions of rows: a point a row, its color the feature's value."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from tipcast.evaluation.plots.page import (
    FAINT,
    INK,
    SMALL,
    legend_above,
    page_of_rows,
    picture,
)
from tipcast.evaluation.plots.texts import fit
from tipcast.evaluation.plots.values import Categories, ShownFeatures
from tipcast.evaluation.sums import Floats

MOST_FEATURES = 12
"""Most features whose contributions are drawn, those with the largest."""
MOST_LETTERS = 30
"""Most letters of a class in the title, and of a category or its feature in the legend."""
WITHIN = 0.995
"""Share of the points that lie within the axis; the others are drawn at its ends."""
BELOW = 0.15
"""Share of the page's height that the names of categories take below the axes."""


@picture
def contributions(
    values: NDArray[np.float32],
    added: NDArray[np.float32],
    names: Sequence[str],
    subtitle: str,
    *,
    of_class: str = "",
    categories: Categories | None = None,
) -> Figure:
    """Draw what each feature adds to rows' predictions.

    ``values`` are features (rows, features), and ``added`` what each adds to the margin (rows,
    features), with several classes to that of ``of_class``. The axis ends where 1 of 200 points lie
    beyond; these are drawn at its ends. Colors are those of ``ShownFeatures``.
    """
    title = "Feature contributions"
    if of_class:
        title = f"Contributions to class {fit(of_class, MOST_LETTERS)}"
    chosen = np.argsort(-np.abs(added).mean(axis=0), kind="stable")[:MOST_FEATURES]
    shown = [names[at] for at in chosen]

    sizes = np.abs(added[:, chosen])
    reach = float(np.quantile(sizes, WITHIN)) or 1.0
    places = np.clip(added[:, chosen], -reach, reach)
    label = "contribution to the margin" + clipped_in_words(sizes, reach)
    figure, axes = page_of_rows(title, subtitle, shown, label)

    columns = dict(zip(shown, values[:, chosen].T, strict=True))
    features = ShownFeatures(columns, categories or {})
    colors = features.colors()
    draw_points(axes, places, colors)
    explain_colors(axes, features.legend(colors))
    if features.named:
        explain_names(axes, features)
    return figure


def clipped_in_words(sizes: NDArray[np.float32], reach: float) -> str:
    """Return a line on how many contributions of these sizes lie beyond ``reach``; empty if none
    does.
    """
    beyond = int((sizes > reach).sum())
    if not beyond:
        return ""
    return f"\n({beyond:,} of {sizes.size:,} points clipped to ±{reach:.3g})"


def draw_points(axes: Axes, places: NDArray[np.float32], colors: Floats) -> None:
    """Draw points (rows, features) of colors (rows, features, 4), jittered so that all show."""
    rows = np.arange(places.shape[1])
    heights = rows + np.random.default_rng(0).uniform(-0.3, 0.3, places.shape)
    axes.scatter(places, heights, s=7, c=colors.reshape(-1, 4), linewidths=0, zorder=3)
    axes.axvline(0, color=FAINT, linewidth=1.5, zorder=1)
    axes.xaxis.set_major_locator(MaxNLocator(5))


def explain_colors(axes: Axes, entries: Mapping[str, Any]) -> None:
    """Show above the axes what the colors of values say."""
    for name, color in entries.items():
        axes.scatter([], [], s=50, color=color, label=name)
    legend_above(axes, len(entries))


def explain_names(axes: Axes, features: ShownFeatures) -> None:
    """Show below the axes which category has which color."""
    left, bottom, width, height = axes.get_position().bounds
    axes.set_position((left, bottom + BELOW, width, height - BELOW))
    dots = {
        fit(name, MOST_LETTERS): Line2D([], [], color=color, marker="o", linestyle="none")
        for name, color in features.names().items()
    }

    axes.figure.legend(
        dots.values(),
        dots.keys(),
        title=f"colors of {fit(features.named, MOST_LETTERS)}",
        loc="lower center",
        ncols=2,
        fontsize=SMALL - 2,
        title_fontsize=SMALL - 2,
        labelcolor=INK,
        frameon=False,
        handletextpad=0.2,
    )
