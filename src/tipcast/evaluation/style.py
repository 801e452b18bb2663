"""The plots' one style: a square page with title, subtitle and one set of axes, drawn without any global state.

Every property is set on the objects themselves: matplotlib's rcParams and pyplot are shared by all threads, a Figure is
not.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import imread, imsave
from matplotlib.ticker import PercentFormatter

INK, MUTED, FAINT, GRID = "#1c2530", "#66707c", "#b4bbc4", "#e7eaee"
BLUE, ORANGE = "#0072b2", "#d55e00"
"""Blue and vermilion of the Okabe-Ito palette, told apart in all common color blindness."""
SHADES = LinearSegmentedColormap.from_list("rows", ["#eaf3f9", BLUE, "#00243a"])
TITLE, TEXT, SMALL = 17, 13, 11.5
FONT = ["DejaVu Sans"]
SIZE, DPI = 6.0, 150
BOX = (0.165, 0.125, 0.775, 0.715)
"""Left, bottom, width, height of the axes within the page."""
DASHES = (0, (4, 3))
GUIDE: dict[str, Any] = {"color": FAINT, "linewidth": 1.5, "linestyle": DASHES}
"""A line that others are read against."""


def page(title: str, subtitle: str, x: str, y: str, box: tuple[float, ...] = BOX) -> tuple[Figure, Axes]:
    """Return a figure of 6 x 6 inches with title and subtitle, and its axes with the names ``x`` and ``y``."""
    figure = Figure(figsize=(SIZE, SIZE), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(0.035, 0.955, title, fontsize=TITLE, color=INK, weight="bold", va="center", family=FONT)
    figure.text(0.035, 0.9, fit(subtitle), fontsize=SMALL, color=MUTED, va="center", family=FONT)
    return figure, axes_in(figure, box, x, y)


def axes_in(figure: Figure, box: tuple[float, ...], x: str, y: str) -> Axes:
    """Return axes with the light grid, the spines and the ticks of the style, and names (empty: none)."""
    left, bottom, width, height = box
    axes = figure.add_axes((left, bottom, width, height), axisbelow=True)
    axes.set_xlabel(x, fontsize=TEXT, color=INK, labelpad=7, family=FONT)
    axes.set_ylabel(y, fontsize=TEXT, color=INK, labelpad=7, family=FONT)
    axes.grid(True, color=GRID, linewidth=1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=MUTED, labelcolor=INK, labelsize=SMALL, length=0, pad=6, labelfontfamily=FONT[0])
    return axes


def shares(axes: Axes, y: bool = True) -> None:
    """Show 0..1 on the horizontal and, if wanted, the vertical axis as 0 % to 100 %."""
    axes.set_xlim(0, 1)
    if y:
        axes.set_ylim(0, 1)
    for axis in (axes.xaxis, axes.yaxis) if y else (axes.xaxis,):
        axis.set_ticks([0, 0.2, 0.4, 0.6, 0.8, 1])
        axis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))


def write(axes: Axes, x: float, y: float, text: str, color: str = INK, **options: Any) -> None:
    """Write a note into the axes on a white ground, so that lines beneath do not cross it."""
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.85}
    axes.text(x, y, text, **{"color": color, "fontsize": SMALL, "family": FONT, "bbox": ground, "zorder": 6, **options})


def rows(
    title: str, subtitle: str, names: Sequence[str], x: str, side: float = 0.0, height: float = 0.715
) -> tuple[Figure, Axes]:
    """Return a page with a row for each name, the first on top with some room above, and its axes."""
    left = min(0.07 + 0.0165 * max((len(name) for name in names), default=0), 0.5)
    figure, axes = page(title, subtitle, x, "", (left, 0.125, 0.92 - side - left, height))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(len(names), 5) - 0.4, -0.6)
    axes.grid(False, axis="y")
    return figure, axes


def ends(axes: Axes, bars: Any, texts: Sequence[str]) -> None:
    """Write a text at the end of each bar."""
    axes.bar_label(bars, texts, padding=4, fontsize=SMALL, color=INK, family=FONT)


def ring(axes: Axes, x: float, y: float, label: str | None = None) -> None:
    """Mark one point with a ring, which the legend names."""
    look: dict[str, Any] = {"markerfacecolor": "white", "markeredgecolor": INK, "markeredgewidth": 2.2}
    axes.plot([x], [y], "o", markersize=10, zorder=7, clip_on=False, label=label, **look)


def percent(share: float, decimals: int = 0) -> str:
    """Return a share as ``12.3 %``."""
    return f"{100 * share:.{decimals}f} %"


def key(axes: Axes, place: str, **options: Any) -> None:
    """Show the legend at a place, on a white ground."""
    font: dict[str, Any] = {"family": FONT, "size": SMALL}
    look: dict[str, Any] = {"loc": place, "labelcolor": INK, "prop": font, "title_fontproperties": font}
    axes.legend(**look, frameon=True, facecolor="white", edgecolor="none", framealpha=0.85, **options)


def png(figure: Figure) -> bytes:
    """Render a figure as a square of 900 pixels."""
    stream = io.BytesIO()
    with ThreadPoolExecutor(1) as elsewhere:  # Ctrl-C in the main thread: Matplotlib's C++ makes it another error
        elsewhere.submit(figure.savefig, stream, format="png", dpi=DPI, metadata={"Software": None}).result()
    return stream.getvalue()


def small(picture: bytes) -> bytes:
    """Return a picture (PNG of even width and height) in half the size: a wider one makes a note on MLflow scroll."""
    page = imread(io.BytesIO(picture), format="png")
    height, width, channels = page.shape
    stream = io.BytesIO()
    imsave(stream, page.reshape(height // 2, 2, width // 2, 2, channels).mean(axis=(1, 3)), format="png")
    return stream.getvalue()


def fit(text: str, room: int = 72) -> str:
    """Return a text, cut where it has more characters than there is room for."""
    return text if len(text) <= room else text[: room - 1].rstrip() + "…"
