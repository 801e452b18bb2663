"""Plots of an evaluation and of a run: PNGs of 600 x 600 pixels in one style, whatever settings a
user has.

``subtitle`` is the line below the title, as model, rows and period. Matplotlib's defaults hold
while a plot is drawn, whatever backend, matplotlibrc or style the user has; these are put back.
"""

# ruff: noqa: E402 - what MPLBACKEND names is hidden while Matplotlib loads

from __future__ import annotations

import contextlib
import functools
import io
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec

_BACKEND = os.environ.get("MPLBACKEND")
# a notebook's kernel names one that may not be installed here, which Matplotlib refuses as it is
# imported
if _BACKEND:
    os.environ["MPLBACKEND"] = "agg"

import matplotlib

if _BACKEND:
    os.environ["MPLBACKEND"] = _BACKEND
    with contextlib.suppress(ValueError):
        matplotlib.rcParams["backend"] = _BACKEND

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from tipcast.evaluation.sums import Floats, Ints

if TYPE_CHECKING:
    from tipcast.evaluation.base import Evaluation
    from tipcast.evaluation.classification import ClassificationEvaluation
    from tipcast.evaluation.clustering import ClusteringEvaluation

    Binary = Mapping[str, ClassificationEvaluation]

P = ParamSpec("P")

INK = "#1c2530"
MUTED = "#66707c"
FAINT = "#b4bbc4"
GRID = "#e7eaee"
BLUE = "#0072b2"
ORANGE = "#d55e00"
"""Blue and vermilion of the Okabe-Ito palette, told apart in all common color blindness."""
warnings.filterwarnings("ignore", "Glyph .* missing from font")  # an empty box says as much
TITLE = 17
TEXT = 13
SMALL = 11.5
SIZE = 6.0
DPI = 100
"""Inches, and dots of one: a wider picture makes a note on MLflow's page scroll."""
BOX = (0.165, 0.125, 0.775, 0.715)
"""Left, bottom, width, height of the axes within the page."""
DASHES = (0, (4, 3))
GUIDE: dict[str, Any] = {"color": FAINT, "linewidth": 1.5, "linestyle": DASHES}
"""A line that others are read against."""
VALUES = LinearSegmentedColormap.from_list("values", [BLUE, "#c3b7c9", ORANGE])
"""From the lowest value of a feature to the highest."""
SHADES = LinearSegmentedColormap.from_list("shares", ["white", "#7fb8d8"])
"""Of shares 0 to 1; ink is read on all of them."""
BAR: dict[str, Any] = {"height": 0.62, "alpha": 0.85, "zorder": 3}
NOTE: dict[str, Any] = {"padding": 4, "fontsize": SMALL, "color": INK}
"""At the end of a bar."""
MARKERS = "osD^vPX*"
"""Of one clustering after another."""
LEAST_ROWS = 10
"""Of a bin of the calibration curve."""
MOST_WRITTEN = 12
"""Classes up to which the cells of a confusion matrix have their share written in; of more only the
shade tells.
"""
MOST_BARS = 15
MOST_FEATURES = 12
"""Whose contributions are drawn, those of the largest."""

_DEFAULTS_HOLD = threading.RLock()


def _by_defaults(draw: Callable[P, bytes]) -> Callable[P, bytes]:
    """Let Matplotlib's defaults hold while a function draws; one at a time, for all threads share
    them.
    """

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> bytes:
        with _DEFAULTS_HOLD, matplotlib.rc_context():
            matplotlib.rcdefaults()
            return draw(*args, **kwargs)

    return drawn


@_by_defaults
def roc(evaluations: Binary, subtitle: str, classes: Sequence[str] = ()) -> bytes:
    """Draw ROC curves, the first in front, with AUC, DeLong's 95 % interval, chance and the
    operating point.
    """
    figure, axes = _page("ROC curve", subtitle, "false-positive rate", "true-positive rate")
    axes.plot([0, 1], [0, 1], **GUIDE, label="chance: AUC 0.5")
    _shares(axes)
    evaluation = next(iter(evaluations.values()))
    looks = ((BLUE, 2.8), (ORANGE, 1.8))
    (right, wrong), recall = evaluation.sums.confusion[0], evaluation.metrics["recall"]
    _ring(axes, wrong / (right + wrong), recall, f"threshold {evaluation.threshold:.3f}")

    for (label, each), (color, width) in reversed([*zip(evaluations.items(), looks, strict=False)]):
        # below the diagonal
        text = f"{label}: AUC {each.interval.around(each.headline, '.3f')}".replace(" (", "\n(")
        axes.plot(
            each.roc["fpr"],
            each.roc["tpr"],
            color=color,
            linewidth=width,
            label=text,
            solid_joinstyle="round",
        )

    _key(
        axes,
        "lower right",
        reverse=True,
        title="95 % interval by DeLong",
        handlelength=1.4,
        borderaxespad=0.3,
    )
    return _png(figure)


@_by_defaults
def precision_recall(evaluations: Binary, subtitle: str, classes: Sequence[str] = ()) -> bytes:
    """Draw precision against recall with the base rate and the operating point."""
    names = "recall: share of positives found", "precision: share of calls right"
    figure, axes = _page("Precision and recall", subtitle, *names)
    evaluation, *_ = evaluations.values()
    curve = evaluation.roc
    metrics = evaluation.metrics
    rate = evaluation.metrics["positive_rate"]
    axes.axhline(rate, **GUIDE, label=f"base rate {_percent(rate, 1)}")
    _ring(axes, metrics["recall"], metrics["precision"], f"threshold {evaluation.threshold:.3f}")
    text = f"average precision {metrics['average_precision']:.3f}"
    axes.plot(
        curve["tpr"],
        curve["precision"],
        color=BLUE,
        linewidth=2.8,
        label=text,
        solid_joinstyle="round",
    )
    _shares(axes)
    _key(axes, "lower left" if rate > 0.35 else "upper right", reverse=True)

    return _png(figure)


@_by_defaults
def calibration(evaluations: Binary, subtitle: str, classes: Sequence[str] = ()) -> bytes:
    """Draw the rate of positives against the mean score of 16 bins.

    Bins of fewer than 10 rows are left out: their rate says nothing.
    """
    evaluation, *_ = evaluations.values()
    positive = classes[1] if classes else "1"
    figure, axes = _page(
        "Calibration", subtitle, "mean score of a bin", f"share of rows of class {positive}"
    )
    bins = evaluation.calibration
    metrics = evaluation.metrics
    some = bins["rows"] >= min(LEAST_ROWS, bins["rows"].max())
    axes.plot([0, 1], [0, 1], **GUIDE)
    axes.plot(
        bins["mean_prediction"][some], bins["positive_rate"][some], "o-", color=BLUE, linewidth=2.2
    )
    _write(axes, 0.03, 0.93, "above the line: scores too low", MUTED, va="top")
    text = (
        f"expected calibration error {metrics['calibration_error']:.4f}\nBrier "
        f"score {metrics['brier']:.4f}"
    )
    _write(axes, 0.97, 0.05, text, ha="right")
    _shares(axes)

    return _png(figure)


@_by_defaults
def confusion(
    evaluations: Mapping[str, Evaluation], subtitle: str, classes: Sequence[str] = ()
) -> bytes:
    """Draw rows (classes, classes) by true and by predicted class, shaded by share of the true
    class.
    """
    evaluation, *_ = evaluations.values()
    matrix = evaluation.sums.confusion
    called = "predicted"
    if evaluation.threshold is not None:
        called += f", at threshold {evaluation.threshold:.3f}"

    classes = classes or [str(at) for at in range(len(matrix))]
    figure, axes = _page("Confusion matrix", subtitle, called, "in truth (each row adds to 100 %)")
    many = len(classes)
    few = len(classes) < 5
    parts = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes.imshow(parts, cmap=SHADES, vmin=0, vmax=1, aspect="auto")
    size = min(TEXT, 26 / many) if few else 60 / many
    for (row, column), share in np.ndenumerate(parts if many <= MOST_WRITTEN else parts[:0]):
        text = _percent(share, int(few)) + (f"\n{matrix[row, column]:,} rows" if few else "")
        _write(axes, column, row, text, fontsize=size, ha="center", va="center", bbox=None)

    axes.grid(False)
    shown = range(0, many, -(-many // 25))
    names = [_fit(classes[at], max(3, 40 // many)) for at in shown]
    axes.set_xticks(shown, names)
    axes.set_yticks(shown, names, rotation=90 if few else 0, va="center")
    axes.tick_params(labelsize=TEXT if few else 8)

    return _png(figure)


@_by_defaults
def predicted(
    evaluations: Mapping[str, Evaluation], subtitle: str, classes: Sequence[str] = ()
) -> bytes:
    """Draw predicted against true values of some rows of each part."""
    figure, axes = _page("Predicted and true values", subtitle, "true value", "predicted value")
    evaluation, *_ = evaluations.values()
    truth, values = evaluation.sums.sample.T
    axes.axline((truth[0], truth[0]), slope=1, color=ORANGE, linewidth=1.8, linestyle=DASHES)
    axes.scatter(truth, values, s=7, color=BLUE, alpha=0.35, linewidths=0, zorder=3)
    text = (
        f"RMSE {evaluation.interval.around(evaluation.headline)}\nR² {evaluation.metrics['r2']:.4f}"
    )
    _write(axes, 0.03, 0.97, text, va="top", transform=axes.transAxes)
    axes.locator_params(nbins=6)

    return _png(figure)


@_by_defaults
def importance(
    values: Mapping[str, float], subtitle: str, *, kind: str, title: str = "Feature importance"
) -> bytes:
    """Draw shares of the total of what is measured, ``kind``, as bars, the longest 15 first."""
    total = sum(values.values()) or 1.0
    ranked = sorted(values.items(), key=lambda item: (-item[1], item[0]))[:MOST_BARS]
    shares = [value / total for _, value in ranked]
    figure, axes = _rows(title, subtitle, [name for name, _ in ranked], f"share of total {kind}")
    bars = axes.barh(range(len(shares)), shares, color=BLUE, **BAR)
    axes.bar_label(bars, [_percent(share, 1) for share in shares], **NOTE)
    axes.set_xlim(0, max(shares, default=1) * 1.17 or 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    return _png(figure)


@_by_defaults
def contributions(
    values: NDArray[Any], added: NDArray[Any], names: Sequence[str], subtitle: str
) -> bytes:
    """Draw what each feature adds to rows' predictions: a point a row, its color the feature's
    value.

    ``values`` are features (rows, features), and ``added`` what each adds to the margin (rows,
    features). The axis ends where 1 of 200 points lie beyond; these are drawn at its ends.
    """
    chosen = np.argsort(-np.abs(added).mean(axis=0), kind="stable")[:MOST_FEATURES]
    shown = [_fit(names[at], 21) for at in chosen]
    figure, axes = _rows("Contributions of features", subtitle, shown, "added to the margin")
    reach = float(np.quantile(np.abs(added[:, chosen]), 0.995)) or 1.0
    places = np.clip(added[:, chosen], -reach, reach)
    # so that all show
    heights = np.arange(len(chosen)) + np.random.default_rng(0).uniform(-0.3, 0.3, places.shape)
    ranks = np.stack(
        [np.searchsorted(np.sort(column), column) for column in values[:, chosen].T], axis=1
    )
    missing = np.isnan(values[:, chosen])  # sorted last
    highest = np.maximum((~missing).sum(axis=0) - 1, 1)
    colors = VALUES(ranks / highest)
    colors[missing] = to_rgba(INK)
    colors = colors.reshape(-1, 4)
    axes.scatter(places, heights, s=7, c=colors, linewidths=0, zorder=3)
    axes.axvline(0, color=FAINT, linewidth=1.5, zorder=1)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    legend = {"low value of the feature": VALUES(0.0), "high value": VALUES(1.0)}
    if missing.any():
        legend["missing"] = to_rgba(INK)

    for name, color in legend.items():
        axes.scatter([], [], s=50, color=color, label=name)

    _key(axes, "lower right", bbox_to_anchor=(1, 1), ncols=len(legend), borderpad=0)
    return _png(figure)


@_by_defaults
def ladder(seconds: Mapping[str, Mapping[str, float]], subtitle: str) -> bytes:
    """Draw how long each rung of a ladder took, phase on phase, with its speed-up against the
    first.
    """
    names = list(seconds)
    total = np.zeros(len(seconds))
    figure, axes = _rows("The same training, from rung to rung", subtitle, names, "seconds")

    for phase, color in zip(next(iter(seconds.values())), (FAINT, BLUE, ORANGE), strict=True):
        wide = [seconds[name][phase] for name in names]
        bars = axes.barh(range(len(names)), wide, left=total, color=color, label=phase, **BAR)
        total = total + wide

    axes.bar_label(bars, [f"{value:.2f} s, {total[0] / value:.1f} x" for value in total], **NOTE)
    axes.set_xlim(0, total.max() * 1.4)
    _key(axes, "lower right")
    return _png(figure)


@_by_defaults
def clusters(
    evaluations: Mapping[str, ClusteringEvaluation], subtitle: str, classes: Sequence[str] = ()
) -> bytes:
    """Draw rows and the centroids of clusters that have rows."""
    first, *_ = evaluations.values()
    centres = {"centroids": first.centroids[first.sums.histogram > 0]}
    return centroids("Clusters", first.sample, first.labels, centres, subtitle)


@_by_defaults
def centroids(
    title: str, x: Floats, groups: Ints, centres: Mapping[str, Floats], subtitle: str
) -> bytes:
    """Draw rows (rows, features), and the centroids of clusterings of them, on the first two
    principal components.

    The features are standardised. ``groups`` (rows,) color the rows; ``centres`` has the name of a
    clustering -> (clusters, features) its centroids.
    """
    from sklearn.decomposition import PCA  # of clusterings only
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(x)

    def standard(points: Floats, zeros: int = 0) -> Any:
        """Add a column, and rows, of zeros: they change no component, and a single feature or row
        has two with them.
        """
        return np.pad(scaler.transform(points), ((0, zeros), (0, 1)))

    with np.errstate(invalid="ignore"):
        components = PCA(2, random_state=0).fit(standard(x, 2))
    first, second = np.nan_to_num(components.explained_variance_ratio_)
    names = (
        f"first component ({_percent(first)} of variance)",
        f"second component ({_percent(second)})",
    )
    figure, axes = _page(title, subtitle, *names)
    _, shades = np.unique(groups, return_inverse=True)
    first, second = components.transform(standard(x)).T
    axes.scatter(
        first, second, s=7, c=colormaps["tab20"](shades % 20), alpha=0.35, linewidths=0, zorder=2
    )
    for at, (name, points) in enumerate(centres.items()):
        look: dict[str, Any] = {
            "facecolors": "none",
            "edgecolors": INK,
            "linewidths": 1.6,
            "zorder": 6,
        }
        size = 330 / (1 + 0.8 * at)  # those that lie on each other all show
        first, second = components.transform(standard(points)).T
        axes.scatter(first, second, s=size, marker=MARKERS[at % len(MARKERS)], label=name, **look)
    axes.margins(0.08, 0.16)
    _key(axes, "upper center", ncols=min(len(centres), 4), columnspacing=1.2, handletextpad=0.3)
    return _png(figure)


# The style


def _page(title: str, subtitle: str, x: str, y: str) -> tuple[Figure, Axes]:
    """Return a square figure with title and subtitle, and its axes with the names ``x`` and
    ``y``.
    """
    figure = Figure(figsize=(SIZE, SIZE), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(0.035, 0.955, title, fontsize=TITLE, color=INK, weight="bold", va="center")
    figure.text(0.035, 0.9, _fit(subtitle, 72), fontsize=SMALL, color=MUTED, va="center")
    axes = figure.add_axes(BOX, axisbelow=True)
    axes.set_xlabel(x, fontsize=TEXT, color=INK, labelpad=7)
    axes.set_ylabel(y, fontsize=TEXT, color=INK, labelpad=7)
    axes.grid(True, color=GRID, linewidth=1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=MUTED, labelcolor=INK, labelsize=SMALL, length=0, pad=6)

    return figure, axes


def _rows(title: str, subtitle: str, names: Sequence[str], x: str) -> tuple[Figure, Axes]:
    """Return a page with a row for each name, the first on top, and its axes."""
    left = min(0.07 + 0.0165 * max((len(name) for name in names), default=0), 0.5)
    figure, axes = _page(title, subtitle, x, "")
    axes.set_position((left, BOX[1], 0.92 - left, BOX[3]))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(len(names), 5) - 0.4, -0.6)
    axes.grid(False, axis="y")
    return figure, axes


def _shares(axes: Axes) -> None:
    """Show 0..1 on both axes as 0 % to 100 %."""
    axes.set(xlim=(0, 1), ylim=(0, 1))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks([0, 0.2, 0.4, 0.6, 0.8, 1])
        axis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))


def _write(axes: Axes, x: float, y: float, text: str, color: str = INK, **options: Any) -> None:
    """Write a note into the axes on a white ground, so that lines beneath do not cross it."""
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.85}
    axes.text(
        x, y, text, **{"color": color, "fontsize": SMALL, "bbox": ground, "zorder": 6, **options}
    )


def _ring(axes: Axes, x: float, y: float, label: str) -> None:
    """Mark one point with a ring, which the legend names."""
    axes.plot(
        [x], [y], "o", ms=10, mfc="white", mec=INK, mew=2.2, zorder=7, clip_on=False, label=label
    )


def _percent(share: float, decimals: int = 0) -> str:
    """Return a share as ``12.3 %``."""
    return f"{100 * share:.{decimals}f} %"


def _key(axes: Axes, place: str, **options: Any) -> None:
    """Show the legend at a place, on a white ground."""
    look: dict[str, Any] = {
        "loc": place,
        "labelcolor": INK,
        "fontsize": SMALL,
        "title_fontsize": SMALL,
    }
    axes.legend(facecolor="white", edgecolor="none", framealpha=0.85, **look, **options)


def _png(figure: Figure) -> bytes:
    """Render a figure."""
    stream = io.BytesIO()
    # Ctrl-C in the main thread: Matplotlib's C++ makes it another error
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(
            figure.savefig, stream, format="png", dpi=DPI, metadata={"Software": None}
        ).result()
    return stream.getvalue()


def _fit(text: str, room: int) -> str:
    """Return a text, cut where it has more characters than there is room for."""
    return text if len(text) <= room else text[: room - 1].rstrip() + "…"
