"""The confusion matrix of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tipcast.evaluation.plots.page import (
    BOX,
    SMALL,
    TEXT,
    page,
    percent,
    picture,
    room_of_names,
    title_of,
    write,
)
from tipcast.evaluation.plots.texts import fit_into, fit_labels, size_of
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
NAME = 0.2
"""Share of the page's width that the names of many classes take at most."""
SMALLEST = 6.5
"""Points of the smallest numbers and names."""
LABEL = 0.06
"""Share of the page that a line beside the axes takes."""
RIGHT = BOX[0] + BOX[2]
TOP = BOX[1] + BOX[3]
GAP = 8
"""Pixels between what is written into two cells."""


@picture
def confusion(
    evaluations: Mapping[str, Evaluation],
    subtitle: str,
    classes: Sequence[str] = (),
    target: str = "",
) -> Figure:
    """Draw rows (classes, classes), or their weights, by true and by predicted class, shaded by
    share of the true class.
    """
    evaluation, *_ = evaluations.values()
    matrix = evaluation.sums.confusion
    weighted = evaluation.sums.weighted
    called = "predicted class"
    if evaluation.threshold is not None:
        called += f" at threshold {evaluation.threshold:.3f}"

    title = title_of("Confusion matrix", evaluation.sums)
    x = f"{called}\n{share_in_words(len(matrix), weighted=weighted)}"
    figure, axes = page(title, subtitle, x, "true class")
    sizes = matrix.sum(axis=1, keepdims=True)
    shares = matrix / np.where(sizes > 0, sizes, 1)
    axes.imshow(shares, cmap=SHADES, vmin=0, vmax=1, aspect="auto")
    axes.grid(False)

    name_classes(axes, classes or [str(at) for at in range(len(matrix))])
    write_cells(axes, matrix, shares, weighted=weighted)
    return figure


def share_in_words(number: int, *, weighted: bool) -> str:
    """Say what a cell's share, or its shade, is a share of."""
    whole = "true class's weight" if weighted else "true class's rows"
    if number < FEW:
        return f"cells: share of the {whole}"
    if number <= MOST_WRITTEN:
        return f"cells: % of the {whole}"
    return f"shade: share of the {whole}"


def write_cells(axes: Axes, matrix: NDArray[Any], shares: Floats, *, weighted: bool) -> None:
    """Write the share into each cell, and the rows or their weight if there are few classes;
    nothing if there are many.
    """
    number = len(matrix)
    if number > MOST_WRITTEN:
        return

    for (row, column), share in np.ndenumerate(shares):
        text = f"{100 * share:.0f}"
        if number < FEW:
            size = size_in_words(matrix[row, column].item(), weighted=weighted)
            text = f"{percent(share, 1)}\n{size}"
        write(axes, column, row, text, fontsize=TEXT, ha="center", va="center", bbox=None)

    room = axes.get_window_extent().width / number - GAP
    for written in axes.texts:
        fit_into(written, room, SMALLEST)
    smallest = min(size_of(written) for written in axes.texts)
    for written in axes.texts:
        written.set_fontsize(smallest)


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
    names = [classes[at] for at in places]
    axes.set_xticks(places, names)
    axes.set_yticks(places, names)

    if number < FEW:
        lay_flat(axes, number)
    else:
        lay_slanted(axes)


def lay_flat(axes: Axes, number: int) -> None:
    """Let the names of a few classes run along their axis, each beside its own cells."""
    axes.tick_params(labelsize=TEXT)
    for label in axes.get_yticklabels():
        label.set(rotation=90, va="center")
    box = axes.get_window_extent()
    fit_labels(axes.xaxis, box.width / number - GAP)
    fit_labels(axes.yaxis, box.height / number - GAP)


def lay_slanted(axes: Axes) -> None:
    """Let the names of many classes have room of their own: those below the axes are slanted."""
    axes.tick_params(labelsize=SMALL - 1)
    left = room_of_names(axes, NAME) + LABEL
    fit_labels(axes.xaxis, NAME * axes.figure.bbox.width)
    for label in axes.get_xticklabels():
        label.set(rotation=45, ha="right", rotation_mode="anchor")

    slanted = max(label.get_window_extent().height for label in axes.get_xticklabels())
    bottom = slanted / axes.figure.bbox.height + 2 * LABEL
    axes.set_position((left, bottom, RIGHT - left, TOP - bottom))
