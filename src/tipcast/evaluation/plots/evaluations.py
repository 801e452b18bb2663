"""Plots of evaluations: curves, bins, counts and maps of rows, and the difference of two models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from tipcast.evaluation.base import Metric
from tipcast.evaluation.classification import ClassificationEvaluation, wilson
from tipcast.evaluation.paired import Difference
from tipcast.evaluation.plots import style
from tipcast.evaluation.sums import Z95, Floats, Ints

if TYPE_CHECKING:
    from tipcast.evaluation.clustering import Map
    from tipcast.evaluation.regression import RegressionEvaluation

LEAST_ROWS = 10
"""Of a bin of the calibration curve."""
MOST_WRITTEN = 12
"""Classes up to which the cells of a confusion matrix have their share written in; of more only the shade tells."""
MOST_CLASSES = 20
"""Classes whose recall and precision are drawn, the first ones."""
MOST_NAMED = 30
"""Clusters up to which each centroid has its number."""
DIFFERENCE_BINS = 40


def roc(evaluations: Mapping[str, ClassificationEvaluation], subtitle: str) -> bytes:
    """Draw ROC curves, the first in front, with AUC, DeLong's 95 % interval, chance and the operating point."""
    figure, axes = style.roc_page("ROC curve", subtitle)
    evaluation, looks = next(iter(evaluations.values())), ((style.BLUE, 2.8), (style.ORANGE, 1.8))
    (right, wrong), recall = evaluation.confusion[0], evaluation.metrics["recall"]
    style.ring(axes, wrong / (right + wrong), recall, f"threshold {evaluation.threshold:.3f}")
    for (label, each), (color, width) in reversed([*zip(evaluations.items(), looks, strict=False)]):
        text = f"{label}: AUC {each.interval.around(each.headline, 3)}"
        axes.plot(each.roc.fpr, each.roc.tpr, color=color, linewidth=width, label=text, solid_joinstyle="round")
    axes.fill_between(evaluation.roc.fpr, evaluation.roc.tpr, color=style.BLUE, alpha=0.06, linewidth=0)
    style.key(axes, "lower right", reverse=True, title="95 % intervals by DeLong")
    return style.png(figure)


def precision_recall(evaluation: ClassificationEvaluation, subtitle: str) -> bytes:
    """Draw precision against recall with the base rate and the operating point."""
    names = "recall: share of positives found", "precision: share of calls right"
    figure, axes = style.page("Precision and recall", subtitle, *names)
    curve, metrics = evaluation.roc, evaluation.metrics
    rate = metrics["positive_rate"]
    axes.axhline(rate, **style.GUIDE, label=f"base rate {style.percent(rate, 1)}")
    style.ring(axes, metrics["recall"], metrics["precision"], f"threshold {evaluation.threshold:.3f}")
    text = f"average precision {metrics['average_precision']:.3f}"
    axes.plot(curve.tpr, curve.precision, color=style.BLUE, linewidth=2.8, label=text, solid_joinstyle="round")
    style.shares(axes)
    style.key(axes, "lower left" if rate > 0.35 else "upper right", reverse=True)
    return style.png(figure)


def calibration(evaluation: ClassificationEvaluation, subtitle: str, *, name: str = "1") -> bytes:
    """Draw the rate of positives against the mean score of 16 bins, above the number of rows in each.

    Bins of fewer than 10 rows are left out of the curve: their rate says nothing.
    """
    (left, bottom, width, height), strip, rate = style.BOX, 0.15, f"share of rows of class {name}"
    box = left, bottom + strip + 0.03, width, height - strip - 0.03
    figure, axes = style.page("Calibration", subtitle, "", rate, box)
    bins = evaluation.calibration
    some = bins.rows >= min(LEAST_ROWS, bins.rows.max())
    axes.plot([0, 1], [0, 1], **style.GUIDE)
    mean, rates = bins.mean_score[some], bins.rate[some]
    axes.vlines(mean, *wilson(rates, bins.rows[some]), color=style.BLUE, linewidth=1.8, alpha=0.45)
    axes.plot(mean, rates, "o-", clip_on=False, color=style.BLUE, linewidth=2.2, markersize=6.5, mec="white")
    style.write(axes, 0.03, 0.93, "above the line: scores too low", style.MUTED, va="top")
    style.write(axes, 0.97, 0.05, "below the line: scores too high", style.MUTED, ha="right")
    style.write(axes, 0.97, 0.14, f"Brier score {evaluation.metrics['brier']:.4f}", ha="right")
    error = evaluation.metrics["calibration_error"]
    style.write(axes, 0.97, 0.23, f"expected calibration error {error:.4f}", ha="right")
    style.shares(axes)
    axes.tick_params(labelbottom=False)
    below = style.axes_in(figure, (left, bottom, width, strip), "mean score of a bin", "of all rows")
    number, share = len(bins.rows), bins.rows / bins.rows.sum()
    below.bar((np.arange(number) + 0.5) / number, share, width=0.85 / number, color=style.BLUE, alpha=0.55)
    style.shares(below, y=False)
    below.grid(False, axis="x")
    most = float(share.max())
    below.set_ylim(0, most * 1.15)
    below.set_yticks([0, most], ["0 %", style.percent(most)])
    figure.align_ylabels([axes, below])
    return style.png(figure)


def scores(evaluation: ClassificationEvaluation, subtitle: str, *, classes: tuple[str, ...] = ("0", "1")) -> bytes:
    """Draw the distribution of scores in each class (adding to 100 %) and the threshold."""
    number = evaluation.histogram.shape[1]
    x, y = f"score: predicted probability of class {classes[1]}", f"share of the class's rows in a bin of 1/{number}"
    figure, axes = style.page("Scores by class", subtitle, x, y)
    shares = evaluation.histogram / evaluation.histogram.sum(axis=1, keepdims=True)
    for at, color in enumerate((style.ORANGE, style.BLUE)):
        label = f"{classes[at]}: {evaluation.histogram[at].sum():,} rows"
        style.filled(axes, shares[at], np.linspace(0, 1, number + 1), color, label)
    style.bin_shares(axes, float(shares.max()), evaluation.threshold)
    return style.png(figure)


def distribution(
    now: Sequence[float],
    then: Sequence[float] | None,
    then_name: str,
    subtitle: str,
    *,
    edges: Sequence[float] | None = None,
    names: Sequence[str] = (),
    threshold: float | None = None,
) -> bytes:
    """Draw the (bins,) shares of predictions, and behind them of rows held out at training (None: not known).

    Without ``edges`` (bins + 1,) a bin is a class, named by ``names``, or a cluster, or of two classes, which have a
    ``threshold``, an equal part of 0..1.
    """
    many = max(len(now), len(then or ()))  # the last clusters may have no rows now
    now, then = [*now, *[0.0] * (many - len(now))], then and [*then, *[0.0] * (many - len(then))]
    title, what, bins, borders = "Distribution of predictions", "prediction", "a bin", np.asarray(edges)
    if threshold is not None:
        title, what, bins = "Distribution of scores", "score: predicted probability", f"a bin of 1/{many}"
        borders = np.linspace(0, 1, many + 1)
    elif edges is None:
        what, bins, borders = "predicted class" if names else "cluster", "each", np.arange(many + 1)
    figure, axes = style.page(title, subtitle, what, f"share of rows in {bins}")
    if bins == "each":
        axes.set_xticks(borders[:-1] + 0.5, labels=names if len(names) == many else [str(at) for at in range(many)])
    if then:
        axes.stairs(then, borders, color=style.MUTED, linewidth=1.8, linestyle=style.DASHES, label=then_name)
    style.filled(axes, now, borders, label="scored rows")
    style.bin_shares(axes, max(*now, *(then or ()), 1e-9), threshold)
    return style.png(figure)


def confusion(matrix: Ints, subtitle: str, classes: Sequence[str], called: str = "predicted") -> bytes:
    """Draw rows (classes, classes) by true and by predicted class, shaded by share of the true class.

    ``called`` says on the axis how rows were called one class.
    """
    truth = "in truth (each row adds to 100 %)"
    figure, axes = style.page("Confusion matrix", subtitle, called, truth, (0.165, 0.135, 0.8, 0.7))
    many, few = len(classes), len(classes) < 5
    plain: dict[str, Any] = {"ha": "center", "va": "center", "bbox": None}
    for (row, column), rows in np.ndenumerate(matrix):
        share, color = rows / max(matrix[row].sum(), 1), style.BLUE if row == column else style.ORANGE
        box = (column - 0.485, row - 0.485)
        axes.add_patch(Rectangle(box, 0.97, 0.97, facecolor=color, alpha=0.08 + 0.6 * share))
        if many <= MOST_WRITTEN:
            size, text = min(25, 50 / many) if few else 60 / many, style.percent(share, int(few))
            style.write(axes, column, row - 0.07 * few, text, fontsize=size, weight="bold", **plain)
        if few:
            style.write(axes, column, row + 0.13, f"{rows:,} rows", fontsize=min(style.TEXT, 26 / many), **plain)
    axes.set(xlim=(-0.5, many - 0.5), ylim=(many - 0.5, -0.5))
    axes.grid(False)
    axes.spines[:].set_visible(False)
    shown = range(0, many, -(-many // 25))
    names = [style.fit(classes[at], max(3, 40 // many)) for at in shown]
    axes.set_xticks(shown, names)
    axes.set_yticks(shown, names, rotation=90 if few else 0, va="center")
    axes.tick_params(labelsize=style.TEXT if few else 8)
    return style.png(figure)


def classes(names: Sequence[str], recall: Floats, precision: Floats, subtitle: str) -> bytes:
    """Draw recall and precision of each class as pairs of bars; of many classes the first."""
    names = [style.fit(name, 40) for name in names[:MOST_CLASSES]]
    figure, axes = style.rows("Classes", subtitle, names, "share of the class's rows", above=1.2)
    looks = (-0.19, style.BLUE, "recall: share found"), (0.19, style.ORANGE, "precision: share right")
    for values, (shift, color, label) in zip((recall, precision), looks, strict=True):
        places = np.arange(len(names)) + shift
        axes.barh(places, values[: len(names)], height=0.34, color=color, alpha=0.8, label=label)
    style.shares(axes, y=False)
    style.key(axes, "upper left", ncols=2, columnspacing=1.4, handlelength=1.4)
    return style.png(figure)


def predicted(evaluation: RegressionEvaluation, subtitle: str) -> bytes:
    """Draw predicted against true values as a two-dimensional histogram; rows beyond are in the outermost cells."""
    figure, axes = style.page("Predicted and true values", subtitle, "true value", "predicted value")
    edges = evaluation.axis
    style.cells(axes, edges, edges, evaluation.joint)
    axes.plot(edges[[0, -1]], edges[[0, -1]], color=style.ORANGE, linewidth=1.8, linestyle=style.DASHES)
    text = f"RMSE {evaluation.interval.around(evaluation.headline)}\nR² {evaluation.metrics['r2']:.4f}"
    style.write(axes, 0.03, 0.97, text, va="top", transform=axes.transAxes)
    return style.png(figure)


def residuals(evaluation: RegressionEvaluation, subtitle: str) -> bytes:
    """Draw the distribution of prediction less truth."""
    names = "prediction less true value (all beyond are in the last bins)", "share of rows in a bin"
    figure, axes = style.page("Residuals", subtitle, *names)
    share, bias = evaluation.residuals / max(int(evaluation.residuals.sum()), 1), evaluation.metrics["bias"]
    axes.axvline(0, **style.GUIDE)
    axes.axvline(bias, color=style.ORANGE, linewidth=1.8, label=f"mean {bias:+.4g}")
    style.filled(axes, share, evaluation.residual_axis)
    style.bin_shares(axes, float(share.max()) or 1.0)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    return style.png(figure)


def clusters(found: Map, rows: Ints, subtitle: str) -> bytes:
    """Draw rows and centroids on two principal components; the rings' areas tell the rows of each cluster."""
    figure, axes = style.page("Clusters", subtitle, *style.components(found.shares))
    style.cells(axes, found.axes[0], found.axes[1], found.cells)
    x, y = np.clip(found.centroids, found.axes[:, 0], found.axes[:, -1]).T
    areas = 60 + 500 * rows / max(int(rows.max(initial=0)), 1)
    look: dict[str, Any] = {"facecolors": "white", "edgecolors": style.ORANGE, "linewidths": 2.2, "zorder": 6}
    axes.scatter(x, y, s=areas, alpha=0.9, clip_on=False, **look)
    for at in range(len(rows) if len(rows) <= MOST_NAMED else 0):
        style.write(axes, x[at], y[at], str(at), ha="center", va="center", bbox=None, zorder=7)
    return style.png(figure)


def difference(found: Difference, margin: float, subtitle: str, *, first: str, second: str, metric: Metric) -> bytes:
    """Draw the distribution of the headline's difference, ``first`` less ``second``, with its 95 % interval.

    ``margin`` is the largest loss that is let pass, 0 or more.
    """
    values, sampled = found.replicates, f"{len(found.replicates):,} bootstrap replicates"
    if not len(values):
        deviation, sampled = (found.interval.high - found.interval.low) / (2 * Z95), "asymptotic distribution"
        values = found.value + deviation * np.array([NormalDist().inv_cdf((at + 0.5) / 4000) for at in range(4000)])
    names = f"{metric.title} of {first} less that of {second}", sampled
    figure, axes = style.page(f"Difference of {metric.title}", subtitle, *names)
    limit = -margin if metric.maximize else margin
    spread = max(float(np.abs(values - found.value).max()), margin / 4, 1e-6)
    bins = np.linspace(found.value - spread, found.value + spread, DIFFERENCE_BINS + 1)
    shares = np.histogram(values, bins)[0] / len(values)
    axes.stairs(shares, bins, fill=True, color=style.BLUE, alpha=0.55)
    axes.axvspan(found.interval.low, found.interval.high, color=style.BLUE, alpha=0.08, linewidth=0)
    axes.axvline(found.value, color=style.BLUE, linewidth=2.5)
    axes.axvline(limit, color=style.ORANGE, linewidth=1.8, linestyle=style.DASHES)
    axes.axvline(0, color=style.FAINT, linewidth=1.5)
    text = f"{found.value:+.5f} ({found.interval.low:+.5f} to {found.interval.high:+.5f})"
    style.write(axes, 0.98, 0.975, text, ha="right", va="top", transform=axes.transAxes)
    top, side = float(shares.max()) * 1.35, "left" if limit < found.value else "right"
    style.write(axes, limit, top * 0.9, f" margin {limit:g} ", style.ORANGE, ha=side, va="top")
    axes.margins(x=0.06)
    axes.set_ylim(0, top)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    return style.png(figure)
