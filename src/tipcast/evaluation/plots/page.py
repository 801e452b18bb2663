"""The style of all pictures: the page that one is drawn on, what is written on it, and its PNG."""

import functools
import io
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from tipcast.evaluation.plots.texts import fit_labels, fit_page, length_of
from tipcast.evaluation.sums import Sums

P = ParamSpec("P")

INK = "#1c2530"
MUTED = "#66707c"
FAINT = "#b4bbc4"
GRID = "#e7eaee"
BLUE = "#0072b2"
ORANGE = "#d55e00"
"""Blue and vermilion of the Okabe-Ito palette, told apart in all common color blindness."""
warnings.filterwarnings("ignore", "Glyph .* missing from font")  # an empty box shows the same
TITLE = 17
TEXT = 13
SMALL = 11.5
SIZE = 6.0
"""Inches: a wider picture makes a note on MLflow's page scroll."""
DPI = 100
"""Dots per inch."""
BOX = (0.165, 0.125, 0.775, 0.715)
"""Left, bottom, width, height of the axes within the page."""
LINE = 0.035
"""Share of the page's height that a further line of text takes, below or above the axes."""
DASHES = (0, (4, 3))
GUIDE: dict[str, Any] = {"color": FAINT, "linewidth": 1.5, "linestyle": DASHES}
"""A line that others are read against."""

_DEFAULTS_HOLD = threading.RLock()


def picture(draw: Callable[P, Figure]) -> Callable[P, bytes]:
    """Make a function that draws a figure return its PNG, and let Matplotlib's defaults hold
    meanwhile; one at a time, for all threads share them.
    """

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> bytes:
        with _DEFAULTS_HOLD, matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams["text.parse_math"] = False  # a name may have dollar signs
            figure = draw(*args, **kwargs)
            fit_page(figure)
            return png(figure)

    return drawn


def png(figure: Figure) -> bytes:
    """Render a figure."""
    stream = io.BytesIO()
    # Ctrl-C in the main thread: Matplotlib's C++ makes it another error
    with ThreadPoolExecutor(1) as thread:
        thread.submit(
            figure.savefig, stream, format="png", dpi=DPI, metadata={"Software": None}
        ).result()
    return stream.getvalue()


def page(title: str, subtitle: str, x: str, y: str) -> tuple[Figure, Axes]:
    """Return a square figure with title and subtitle, and its axes with the names ``x`` and
    ``y``.
    """
    figure = Figure(figsize=(SIZE, SIZE), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(0.035, 0.955, title, fontsize=TITLE, color=INK, weight="bold", va="center")
    figure.text(0.035, 0.9, subtitle, fontsize=SMALL, color=MUTED, va="center")

    left, bottom, width, height = BOX
    further = LINE * x.count("\n")
    axes = figure.add_axes((left, bottom + further, width, height - further))
    axes.set_xlabel(x, fontsize=TEXT, color=INK, labelpad=7)
    axes.set_ylabel(y, fontsize=TEXT, color=INK, labelpad=7)
    style(axes)
    return figure, axes


def style(axes: Axes) -> None:
    """Give axes a light grid, two faint spines, and labels without ticks."""
    axes.set_axisbelow(True)
    axes.grid(True, color=GRID, linewidth=1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=MUTED, labelcolor=INK, labelsize=SMALL, length=0, pad=6)
    axes.tick_params(which="minor", length=0)


def title_of(title: str, sums: Sums) -> str:
    """Return the title of a figure, which says so if the rows evaluated have weights."""
    if sums.weighted:
        return f"{title}, weighted"
    return title


def page_of_rows(title: str, subtitle: str, names: Sequence[str], x: str) -> tuple[Figure, Axes]:
    """Return a page with a row for each name, the first on top, and its axes."""
    figure, axes = page(title, subtitle, x, "")
    axes.set_yticks(range(len(names)), names)
    left = room_of_names(axes) + 0.035
    _, bottom, _, height = axes.get_position().bounds
    axes.set_position((left, bottom, 0.92 - left, height))
    axes.set_ylim(max(len(names), 5) - 0.4, -0.6)
    axes.grid(False, axis="y")
    return figure, axes


def room_of_names(axes: Axes, most: float = 0.4) -> float:
    """Return the share of the page's width that the names beside the y axis take, with the gap to
    the axis; names are fitted into ``most``.
    """
    width = axes.figure.bbox.width
    fit_labels(axes.yaxis, most * width)
    lengths = [length_of(label) for label in axes.get_yticklabels()]
    return max(lengths, default=0) / width + 0.02


def show_as_shares(axes: Axes) -> None:
    """Show 0..1 on both axes as 0 % to 100 %."""
    axes.set(xlim=(0, 1), ylim=(0, 1))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks([0, 0.2, 0.4, 0.6, 0.8, 1])
        axis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))


def write(axes: Axes, x: float, y: float, text: str, color: str = INK, **options: Any) -> None:
    """Write a note into the axes on a white ground, so that lines beneath do not cross it."""
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.85}
    axes.text(
        x, y, text, **{"color": color, "fontsize": SMALL, "bbox": ground, "zorder": 6, **options}
    )


def ring(axes: Axes, x: float, y: float, label: str) -> None:
    """Mark one point with a ring, which the legend names."""
    axes.plot(
        [x], [y], "o", ms=10, mfc="white", mec=INK, mew=2.2, zorder=7, clip_on=False, label=label
    )


def legend(axes: Axes, place: str, **options: Any) -> None:
    """Show the legend at a place, on a white ground."""
    look: dict[str, Any] = {
        "loc": place,
        "labelcolor": INK,
        "fontsize": SMALL,
        "title_fontsize": SMALL,
    }
    axes.legend(facecolor="white", edgecolor="none", framealpha=0.85, **{**look, **options})


def legend_above(axes: Axes, columns: int) -> None:
    """Show the legend above the axes, at the right, where it hides nothing; they make room."""
    entries, _ = axes.get_legend_handles_labels()
    lines = -(-len(entries) // columns)
    left, bottom, width, height = axes.get_position().bounds
    axes.set_position((left, bottom, width, height - LINE * (lines - 0.3)))
    size = SMALL
    if columns > 3:
        size -= 1.5
    legend(
        axes,
        "lower right",
        fontsize=size,
        bbox_to_anchor=(1, 1),
        ncols=columns,
        borderpad=0,
        columnspacing=1.2,
        handletextpad=0.3,
        handlelength=1.5,
    )


def percent(share: float, decimals: int = 0) -> str:
    """Return a share as ``12.3 %``."""
    return f"{100 * share:.{decimals}f} %"
