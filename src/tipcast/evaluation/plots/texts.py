"""Texts that fit: measured as they are drawn, they get smaller, and are shortened at last."""

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text

SMALLEST = 8.5
"""Points: a text that would have to be smaller is shortened."""
EDGE = 12.0
"""Pixels between a text and the edge of the picture."""
HEAD = 0.13
"""Share of the picture's height, at its top, that title and subtitle take."""


def fit(text: str, room: int) -> str:
    """Return a text, cut if it has more characters than there is room for."""
    if len(text) <= room:
        return text
    return text[: room - 1].rstrip() + "…"


def size_of(text: Text) -> float:
    """Return the size of a text in points."""
    return float(text.get_fontsize())


def length_of(text: Text) -> float:
    """Return the pixels from the beginning of a text to its end, however it is rotated."""
    rotation = text.get_rotation()
    text.set_rotation(0)
    length = text.get_window_extent().width
    text.set_rotation(rotation)
    return float(length)


def fit_into(text: Text, room: float, smallest: float = SMALLEST) -> None:
    """Make a text at most ``room`` pixels long: smaller down to ``smallest`` points, then cut."""
    while length_of(text) > room and size_of(text) > smallest:
        text.set_fontsize(max(size_of(text) - 0.5, smallest))

    lines = text.get_text().split("\n")
    characters = max(len(line) for line in lines)
    while length_of(text) > room and characters > 1:
        characters -= 1
        text.set_text("\n".join(fit(line, characters) for line in lines))


def fit_labels(axis: Axis, room: float, smallest: float = SMALLEST) -> None:
    """Make the texts of an axis's ticks at most ``room`` pixels long, and all of one size."""
    labels = axis.get_ticklabels()
    for label in labels:
        fit_into(label, room, smallest)
    if not labels:
        return

    # Matplotlib writes them again when it draws, and would forget what has been cut.
    size = min(size_of(label) for label in labels)
    axis.set_ticklabels([label.get_text() for label in labels], fontsize=size)


def fit_page(figure: Figure) -> None:
    """Fit what stands around the axes into the picture: title, subtitle, and names of the axes."""
    for text in figure.texts:
        start = text.get_window_extent().x0
        fit_into(text, figure.bbox.width - EDGE - start)

    for axes in figure.axes:
        _fit_names(axes, figure.bbox.width, figure.bbox.height)


def _fit_names(axes: Axes, width: float, height: float) -> None:
    """Fit the names of both axes, each centred beside its axis, between the picture's edges, below
    the subtitle.
    """
    axes.apply_aspect()
    box = axes.get_window_extent()
    x = (box.x0 + box.x1) / 2
    y = (box.y0 + box.y1) / 2
    fit_into(axes.xaxis.label, 2 * (min(x, width - x) - EDGE))
    fit_into(axes.yaxis.label, 2 * (min(y - EDGE, (1 - HEAD) * height - y)))
