"""Numbers beside points, moved apart where they would lie upon each other."""

import math
from collections.abc import Iterator
from typing import Any

from matplotlib.axes import Axes
from numpy.typing import NDArray

from tipcast.evaluation.plots.page import INK, SMALL
from tipcast.evaluation.sums import Floats, Ints

GAP = 24.0
"""Pixels between two numbers, at least."""
MOST_NUMBERS = 40
"""Most points that get a number."""
Place = tuple[float, float]
"""Pixels from the left and from the bottom."""


def write_numbers(axes: Axes, points: Floats, numbers: Ints) -> None:
    """Write a number at each of the points (points, 2), the first 40; a number that has been moved
    has a line to its point.
    """
    shown = points[:MOST_NUMBERS]
    axes.autoscale_view()
    transform = axes.transData.inverted()
    ground = {"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": INK}
    line = {"arrowstyle": "-", "color": INK, "linewidth": 0.8}

    for point, number, place in zip(shown, numbers, free_places(axes, shown), strict=False):
        axes.annotate(
            str(number),
            point,
            tuple(transform.transform(place)),
            ha="center",
            va="center",
            fontsize=SMALL - 1.5,
            color=INK,
            bbox=ground,
            arrowprops=line,
            zorder=7,
        )


def free_places(axes: Axes, points: Floats) -> list[Place]:
    """Return a place near each point, at least ``GAP`` from the places of the points before it."""
    box = axes.get_window_extent()
    pixels: NDArray[Any] = axes.transData.transform(points)
    places: list[Place] = []

    for x, y in pixels.tolist():
        free = (
            place
            for place in near(x, y)
            if box.contains(*place) and all(math.dist(place, other) >= GAP for other in places)
        )
        places.append(next(free, (x, y)))
    return places


def near(x: float, y: float) -> Iterator[Place]:
    """Yield a place, and then places around it on larger and larger circles."""
    yield x, y
    for circle in range(1, 8):
        for step in range(12):
            angle = math.tau * step / 12
            reach = circle * GAP
            yield x + reach * math.cos(angle), y + reach * math.sin(angle)
