"""Figures as they are before they become bytes, and where their texts lie."""

import contextlib
from collections.abc import Iterator

import pytest
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from tipcast.evaluation.plots import page

SLANTED = 45


@contextlib.contextmanager
def kept_figures() -> Iterator[list[Figure]]:
    """Figures that a block draws, as they are before they become bytes."""
    figures: list[Figure] = []
    png = page.png
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "png", lambda figure: figures.append(figure) or png(figure))
        yield figures


def texts_of(figure: Figure) -> list[Text]:
    """Return all texts of a figure that are shown and not empty."""
    texts = [*figure.texts]
    legends = [*figure.legends]
    for axes in figure.axes:
        texts += [*axes.texts, axes.title]
        texts += [axes.xaxis.label, axes.yaxis.label]
        texts += [*shown_labels(axes.xaxis), *shown_labels(axes.yaxis)]
        legends += [axes.get_legend()] if axes.get_legend() else []

    for legend in legends:
        texts += [*legend.get_texts(), legend.get_title()]
    return [text for text in texts if text.get_visible() and text.get_text()]


def shown_labels(axis: Axis) -> list[Text]:
    """Return the labels of ticks within the axis."""
    low, high = sorted(axis.get_view_interval())
    margin = 1e-9 * (high - low)
    ticks = axis.get_major_ticks()
    places = axis.get_majorticklocs()
    return [
        tick.label1
        for tick, place in zip(ticks, places, strict=False)
        if low - margin <= place <= high + margin
    ]


def words(figure: Figure) -> list[str]:
    """Return all texts of a figure."""
    return [text.get_text() for text in texts_of(figure)]


def box_of(text: Text) -> Bbox:
    """Return the pixels that a text covers, a little less than its letters may take."""
    return text.get_window_extent().padded(-1)


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Return pairs of texts that lie upon each other; slanted ones count by their distance."""
    flat = [text for text in texts_of(figure) if text.get_rotation() != SLANTED]
    boxes = [(text.get_text(), box_of(text)) for text in flat]
    pairs = [
        (one, other)
        for at, (one, box) in enumerate(boxes)
        for other, second in boxes[:at]
        if box.overlaps(second)
    ]

    slanted = [text for text in texts_of(figure) if text.get_rotation() == SLANTED]
    for one, other in zip(slanted, slanted[1:], strict=False):
        apart = abs(box_of(other).x1 - box_of(one).x1) / 2**0.5
        if apart < one.get_fontsize():
            pairs.append((one.get_text(), other.get_text()))
    return pairs
