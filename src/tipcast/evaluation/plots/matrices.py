"""The confusion matrix of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tipcast.evaluation.plots.page import TEXT, fit, page, percent, picture, title_of, write
from tipcast.evaluation.sums import Floats

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
    """Draw rows (classes, classes), or their weights, by true and by predicted class, shaded by
    share of the true class.
    """
    evaluation, *_ = evaluations.values()
    matrix = evaluation.sums.confusion
    called = "predicted"
    if evaluation.threshold is not None:
        called += f", at threshold {evaluation.threshold:.3f}"

    title = title_of("Confusion matrix", evaluation.sums)
    figure, axes = page(title, subtitle, called, "in truth (each row adds to 100 %)")
    sizes = matrix.sum(axis=1, keepdims=True)
    shares = matrix / np.where(sizes > 0, sizes, 1)
    axes.imshow(shares, cmap=SHADES, vmin=0, vmax=1, aspect="auto")
    axes.grid(False)

    write_cells(axes, matrix, shares, weighted=evaluation.sums.weighted)
    name_classes(axes, classes or [str(at) for at in range(len(matrix))])
    return figure


def write_cells(axes: Axes, matrix: NDArray[Any], shares: Floats, *, weighted: bool) -> None:
    """Write the share into each cell, and the rows or their weight if there are few classes;
    nothing if there are many.
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
            text += f"\n{size_in_words(matrix[row, column].item(), weighted=weighted)}"
        write(axes, column, row, text, fontsize=size, ha="center", va="center", bbox=None)


def size_in_words(size: float, *, weighted: bool) -> str:
    """Return a cell's number of rows, or the sum of their weights."""
    if not weighted:
        return f"{size:,} rows"
    if size >= 1000:
        return f"weight {size:,.0f}"
    return f"weight {size:.3g}"


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
