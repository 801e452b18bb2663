"""The confusion matrix of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from tipcast.evaluation.plots.page import TEXT, fit, page, percent, picture, write
from tipcast.evaluation.sums import Floats, Ints

if TYPE_CHECKING:
    from tipcast.evaluation.base import Evaluation

SHADES = LinearSegmentedColormap.from_list("shares", ["white", "#7fb8d8"])
"""Colors of shares from 0 to 1; ink is legible on all of them."""
FEW = 5
"""With fewer classes, cells have room for their number of rows, too."""
MOST_WRITTEN = 12
"""Most classes whose shares are written into the cells; with more, only the shade shows them."""
MOST_TICKS = 25
"""Most classes that are named beside the axes."""


@picture
def confusion(
    evaluations: Mapping[str, Evaluation], subtitle: str, classes: Sequence[str] = ()
) -> Figure:
    """Draw rows (classes, classes) by true and by predicted class, shaded by share of the true
    class.
    """
    evaluation, *_ = evaluations.values()
    matrix = evaluation.sums.confusion
    called = "predicted"
    if evaluation.threshold is not None:
        called += f", at threshold {evaluation.threshold:.3f}"

    figure, axes = page("Confusion matrix", subtitle, called, "in truth (each row adds to 100 %)")
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap=SHADES, vmin=0, vmax=1, aspect="auto")
    axes.grid(False)

    write_cells(axes, matrix, shares)
    name_classes(axes, classes or [str(at) for at in range(len(matrix))])
    return figure


def write_cells(axes: Axes, matrix: Ints, shares: Floats) -> None:
    """Write the share into each cell, and the rows if there are few classes; nothing if there are
    many.
    """
    number = len(matrix)
    if number > MOST_WRITTEN:
        return

    few = number < FEW
    size = 60 / number
    if few:
        size = min(TEXT, 26 / number)

    for (row, column), share in np.ndenumerate(shares):
        text = percent(share, int(few))
        if few:
            text += f"\n{matrix[row, column]:,} rows"
        write(axes, column, row, text, fontsize=size, ha="center", va="center", bbox=None)


def name_classes(axes: Axes, classes: Sequence[str]) -> None:
    """Write the classes beside both axes; of many classes, those at even distances."""
    number = len(classes)
    places = range(0, number, -(-number // MOST_TICKS))
    names = [fit(classes[at], max(3, 40 // number)) for at in places]
    rotation = 0
    size = 8
    if number < FEW:
        rotation = 90
        size = TEXT

    axes.set_xticks(places, names)
    axes.set_yticks(places, names, rotation=rotation, va="center")
    axes.tick_params(labelsize=size)
