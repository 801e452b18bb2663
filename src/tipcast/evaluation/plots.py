"""Plots of an evaluation and of a run, in the style of ``style``.

Each is a PNG of 900 x 900 pixels; ``subtitle`` is the line below its title, as model, rows and period. scikit-learn's
displays load pyplot, whose state all threads share: here are plain lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LinearSegmentedColormap, LogNorm, to_rgb
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from tipcast.evaluation import style
from tipcast.evaluation.style import BLUE, BOX, DASHES, FAINT, GUIDE, INK, MUTED, ORANGE, SHADES, TEXT
from tipcast.evaluation.sums import Floats, Ints, wilson

if TYPE_CHECKING:
    from tipcast.evaluation.classification import ClassificationEvaluation
    from tipcast.evaluation.regression import RegressionEvaluation

VALUES = LinearSegmentedColormap.from_list("values", [BLUE, "#c3b7c9", ORANGE])
"""From the lowest value of a feature to the highest."""
BAR: dict[str, Any] = {"height": 0.62, "alpha": 0.85, "zorder": 3}
MARKERS = "osD^vPX*"
"""Of one clustering after another."""
LEAST_ROWS = 10
"""Of a bin of the calibration curve."""
MOST_WRITTEN = 12
"""Classes up to which the cells of a confusion matrix have their share written in; of more only the shade tells."""
MOST_NAMED = 30
"""Clusters up to which each centroid has its number."""
MOST_BARS = 15
MOST_FEATURES = 12
"""Whose contributions are drawn, those of the largest."""


def roc(evaluations: Mapping[str, ClassificationEvaluation], subtitle: str) -> bytes:
    """Draw ROC curves, the first in front, with AUC, DeLong's 95 % interval, chance and the operating point."""
    box = 0.165, 0.115, 0.74, 0.74
    figure, axes = style.page("ROC curve", subtitle, "false-positive rate", "true-positive rate", box)
    axes.plot([0, 1], [0, 1], **GUIDE, label="chance: AUC 0.5")
    style.shares(axes)
    evaluation, looks = next(iter(evaluations.values())), ((BLUE, 2.8), (ORANGE, 1.8))
    (right, wrong), recall = evaluation.confusion[0], evaluation.metrics["recall"]
    style.ring(axes, wrong / (right + wrong), recall, f"threshold {evaluation.threshold:.3f}")
    for (label, each), (color, width) in reversed([*zip(evaluations.items(), looks, strict=False)]):
        text = f"{label}: AUC {each.interval.around(each.headline, 3)}".replace(" (", "\n(")  # below the diagonal
        axes.plot(each.roc.fpr, each.roc.tpr, color=color, linewidth=width, label=text, solid_joinstyle="round")
    axes.fill_between(evaluation.roc.fpr, evaluation.roc.tpr, color=BLUE, alpha=0.06, linewidth=0)
    style.key(axes, "lower right", reverse=True, title="95 % interval by DeLong", handlelength=1.4, borderaxespad=0.3)
    return style.png(figure)


def precision_recall(evaluation: ClassificationEvaluation, subtitle: str) -> bytes:
    """Draw precision against recall with the base rate and the operating point."""
    names = "recall: share of positives found", "precision: share of calls right"
    figure, axes = style.page("Precision and recall", subtitle, *names)
    curve, metrics = evaluation.roc, evaluation.metrics
    rate = metrics["positive_rate"]
    axes.axhline(rate, **GUIDE, label=f"base rate {style.percent(rate, 1)}")
    style.ring(axes, metrics["recall"], metrics["precision"], f"threshold {evaluation.threshold:.3f}")
    text = f"average precision {metrics['average_precision']:.3f}"
    axes.plot(curve.tpr, curve.precision, color=BLUE, linewidth=2.8, label=text, solid_joinstyle="round")
    style.shares(axes)
    style.key(axes, "lower left" if rate > 0.35 else "upper right", reverse=True)
    return style.png(figure)


def calibration(evaluation: ClassificationEvaluation, subtitle: str, *, name: str = "1") -> bytes:
    """Draw the rate of positives against the mean score of 16 bins, above the number of rows in each.

    Bins of fewer than 10 rows are left out of the curve: their rate says nothing.
    """
    (left, bottom, width, height), strip, rate = BOX, 0.15, f"share of rows of class {name}"
    box = left, bottom + strip + 0.03, width, height - strip - 0.03
    figure, axes = style.page("Calibration", subtitle, "", rate, box)
    bins, metrics = evaluation.calibration, evaluation.metrics
    some = bins.rows >= min(LEAST_ROWS, bins.rows.max())
    axes.plot([0, 1], [0, 1], **GUIDE)
    mean, rates = bins.mean_score[some], bins.rate[some]
    axes.vlines(mean, *wilson(rates, bins.rows[some]), color=BLUE, linewidth=1.8, alpha=0.45)
    axes.plot(mean, rates, "o-", clip_on=False, color=BLUE, linewidth=2.2, markersize=6.5, mec="white")
    style.write(axes, 0.03, 0.93, "above the line: scores too low", MUTED, va="top")
    style.write(axes, 0.97, 0.05, "below the line: scores too high", MUTED, ha="right")
    style.write(axes, 0.97, 0.14, f"Brier score {metrics['brier']:.4f}", ha="right")
    style.write(axes, 0.97, 0.23, f"expected calibration error {metrics['calibration_error']:.4f}", ha="right")
    style.shares(axes)
    axes.tick_params(labelbottom=False)
    below = style.axes_in(figure, (left, bottom, width, strip), "mean score of a bin", "of all rows")
    number, share = len(bins.rows), bins.rows / bins.rows.sum()
    below.bar((np.arange(number) + 0.5) / number, share, width=0.85 / number, color=BLUE, alpha=0.55)
    style.shares(below, y=False)
    below.grid(False, axis="x")
    most = float(share.max())
    below.set_ylim(0, most * 1.15)
    below.set_yticks([0, most], ["0 %", style.percent(most)])
    figure.align_ylabels([axes, below])
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
        axes.stairs(then, borders, color=MUTED, linewidth=1.8, linestyle=DASHES, label=then_name)
    axes.stairs(now, borders, fill=True, color=BLUE, alpha=0.16)
    axes.stairs(now, borders, color=BLUE, linewidth=2.2, label="scored rows")
    axes.grid(False, axis="x")
    highest = max(*now, *(then or ()), 1e-9)
    if threshold is not None:
        axes.plot([threshold] * 2, [0, highest * 1.12], color=INK, linewidth=1.5, linestyle=DASHES)
        shift, side = (0.015, "left") if threshold < 0.6 else (-0.015, "right")
        style.write(axes, threshold + shift, highest * 1.12, f"threshold {threshold:.3f}", ha=side, va="top")
        style.shares(axes, y=False)
    axes.set_ylim(0, highest * 1.32)
    axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))  # steps that whole percents can name
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0 if highest > 0.045 else 1, symbol=" %"))
    style.key(axes, "upper left", ncols=2, columnspacing=1.4, handlelength=1.4)
    return style.png(figure)


def confusion(matrix: Ints, subtitle: str, classes: Sequence[str], called: str = "predicted") -> bytes:
    """Draw rows (classes, classes) by true and by predicted class, shaded by share of the true class.

    ``called`` says on the axis how rows were called one class.
    """
    truth = "in truth (each row adds to 100 %)"
    figure, axes = style.page("Confusion matrix", subtitle, called, truth, (0.165, 0.135, 0.8, 0.7))
    many, few = len(classes), len(classes) < 5
    parts = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    hue = np.where(np.eye(many, dtype=bool)[..., None], to_rgb(BLUE), to_rgb(ORANGE))
    shade = (0.08 + 0.6 * parts)[..., None]
    edges = np.arange(many + 1) - 0.5
    axes.pcolormesh(edges, edges, 1 - shade * (1 - hue), edgecolors="white", linewidth=10 / many, zorder=1.5)
    plain: dict[str, Any] = {"ha": "center", "va": "center", "bbox": None}
    size = min(TEXT, 26 / many) if few else 60 / many
    for (row, column), share in np.ndenumerate(parts if many <= MOST_WRITTEN else parts[:0]):
        rows = f"\n{matrix[row, column]:,} rows" if few else ""
        style.write(axes, column, row, style.percent(share, int(few)) + rows, fontsize=size, weight="bold", **plain)
    axes.invert_yaxis()
    axes.grid(False)
    axes.spines[:].set_visible(False)
    shown = range(0, many, -(-many // 25))
    names = [style.fit(classes[at], max(3, 40 // many)) for at in shown]
    axes.set_xticks(shown, names)
    axes.set_yticks(shown, names, rotation=90 if few else 0, va="center")
    axes.tick_params(labelsize=TEXT if few else 8)
    return style.png(figure)


def predicted(evaluation: RegressionEvaluation, subtitle: str) -> bytes:
    """Draw predicted against true values, shaded by the logarithm of rows; those beyond are in the outer cells."""
    figure, axes = style.page("Predicted and true values", subtitle, "true value", "predicted value")
    edges, joint = evaluation.axis, evaluation.joint
    norm = LogNorm(1, max(int(joint.max(initial=0)), 2))
    axes.pcolormesh(edges, edges, np.ma.masked_equal(joint.T, 0), cmap=SHADES, norm=norm, rasterized=True)
    axes.set(xlim=(edges[0], edges[-1]), ylim=(edges[0], edges[-1]))
    axes.locator_params(nbins=6)
    axes.plot(edges[[0, -1]], edges[[0, -1]], color=ORANGE, linewidth=1.8, linestyle=DASHES)
    text = f"RMSE {evaluation.interval.around(evaluation.headline)}\nR² {evaluation.metrics['r2']:.4f}"
    style.write(axes, 0.03, 0.97, text, va="top", transform=axes.transAxes)
    return style.png(figure)


def importance(
    importance: Mapping[str, float], subtitle: str, *, kind: str = "gain", title: str = "Feature importance"
) -> bytes:
    """Draw shares of the total of what is measured, ``kind``, as bars, the longest 15 first."""
    total = sum(importance.values()) or 1.0
    ranked = sorted(importance.items(), key=lambda item: (-item[1], item[0]))[:MOST_BARS]
    values = [value / total for _, value in ranked]
    figure, axes = style.rows(title, subtitle, [name for name, _ in ranked], f"share of total {kind}")
    style.ends(
        axes, axes.barh(range(len(values)), values, color=BLUE, **BAR), [style.percent(value, 1) for value in values]
    )
    axes.set_xlim(0, max(values, default=1) * 1.17 or 1)
    axes.spines["bottom"].set_visible(False)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    return style.png(figure)


def contributions(
    values: NDArray[np.floating], added: NDArray[np.floating], names: Sequence[str], subtitle: str
) -> bytes:
    """Draw what each feature adds to rows' predictions: a point a row, beside the mean of their sizes.

    ``values`` are features (rows, features), and ``added`` what each adds to the margin (rows, features). The axis ends
    where 1 of 200 points lie beyond; these are drawn at its ends.
    """
    sizes = np.abs(added).mean(axis=0)
    chosen = np.argsort(-sizes, kind="stable")[:MOST_FEATURES]
    shown = [style.fit(names[at], 21) for at in chosen]
    figure, axes = style.rows(
        "Contributions of features", subtitle, shown, "added to the margin", side=0.1, height=0.65
    )
    reach = float(np.quantile(np.abs(added[:, chosen]), 0.995)) or 1.0
    places = np.clip(added[:, chosen], -reach, reach)
    heights = np.arange(len(chosen)) + np.random.default_rng(0).uniform(-0.3, 0.3, places.shape)  # so that all show
    ranks = np.stack([np.searchsorted(np.sort(column), column) for column in values[:, chosen].T], axis=1)
    colors = VALUES(ranks / max(len(ranks) - 1, 1)).reshape(-1, 4)
    axes.scatter(places, heights, s=7, c=colors, linewidths=0, zorder=3)
    beside: dict[str, Any] = {"va": "center", "transform": axes.get_yaxis_transform(), "bbox": None}
    for place, size in enumerate(sizes[chosen]):
        style.write(axes, 1.03, place, f"{size:.3g}", **beside)
    axes.axvline(0, color=FAINT, linewidth=1.5, zorder=1)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    for name, color in (("low value of the feature", VALUES(0.0)), ("high value", VALUES(1.0))):
        axes.scatter([], [], s=50, color=color, label=name)
    look: dict[str, Any] = {"bbox_to_anchor": (0.015, 0.835), "bbox_transform": figure.transFigure, "borderpad": 0}
    style.key(axes, "center left", ncols=2, columnspacing=1.2, handletextpad=0.2, **look)
    style.write(axes, 0.8, 0.835, "mean size", MUTED, va="center", transform=figure.transFigure, bbox=None)
    return style.png(figure)


def history(curves: Mapping[str, Mapping[int, float]], subtitle: str) -> bytes:
    """Draw the metric that stops a fit, of training and of validation rows by round; see ``models.base.History``."""
    metric = list(curves)[-1].partition("_")[2]
    figure, axes = style.page("History of the fit", subtitle, "round", metric)
    for rows, color in (("validation", BLUE), ("train", ORANGE)):
        values = curves.get(f"{rows}_{metric}", {})
        axes.plot(list(values), list(values.values()), color=color, linewidth=2.4, label=f"{rows} rows")
    style.key(axes, "best")
    return style.png(figure)


def ladder(seconds: Mapping[str, Mapping[str, float]], subtitle: str) -> bytes:
    """Draw how long each rung of a ladder took, phase on phase, with its speed-up against the first."""
    names, total = list(seconds), np.zeros(len(seconds))
    figure, axes = style.rows("The same training, from rung to rung", subtitle, names, "seconds")
    for phase, color in zip(next(iter(seconds.values())), (FAINT, BLUE, ORANGE), strict=True):
        wide = [seconds[name][phase] for name in names]
        bars = axes.barh(range(len(names)), wide, left=total, color=color, label=phase, **BAR)
        total = total + wide
    style.ends(axes, bars, [f"{value:.2f} s, {total[0] / value:.1f} x" for value in total])
    axes.set_xlim(0, total.max() * 1.4)
    style.key(axes, "lower right")
    return style.png(figure)


def centroids(
    title: str,
    x: Floats,
    groups: Sequence[int] | None,
    centres: Mapping[str, Floats],
    subtitle: str,
    numbers: Sequence[int] = (),
) -> bytes:
    """Draw rows (rows, features), and the centroids of clusterings of them, on the first two principal components.

    The features are standardised. ``groups`` (rows,) color the rows, None where nothing is known of such; ``centres``
    has the name of a clustering -> (clusters, features) its centroids; ``numbers`` are those of the last one's.
    """
    from sklearn.decomposition import PCA  # of clusterings only
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(x)
    z = scaler.transform(x)
    # One column and two rows of zeros change no component: with them a single feature, or row, has two as well.
    with np.errstate(invalid="ignore"):
        components = PCA(2, random_state=0).fit(np.pad(z, ((0, 2), (0, 1))))
    first, second = np.nan_to_num(components.explained_variance_ratio_)
    names = f"first component ({style.percent(first)} of variance)", f"second component ({style.percent(second)})"
    figure, axes = style.page(title, subtitle, *names)

    def placed(standard: Floats) -> Floats:
        places: Floats = components.transform(np.pad(standard, ((0, 0), (0, 1))))
        return places

    colors: Any = FAINT
    if groups is not None:
        _, shades = np.unique(np.asarray(groups), return_inverse=True)
        colors = colormaps["tab20"](shades % 20)
    places = placed(z)
    axes.scatter(places[:, 0], places[:, 1], s=7, c=colors, alpha=0.35, linewidths=0, zorder=2)
    for at, (name, points) in enumerate(centres.items()):
        look: dict[str, Any] = {"facecolors": "none", "edgecolors": INK, "linewidths": 1.6, "zorder": 6}
        size = 330 / (1 + 0.8 * at)  # those that lie on each other all show
        places = placed(scaler.transform(points))
        axes.scatter(places[:, 0], places[:, 1], s=size, marker=MARKERS[at % len(MARKERS)], label=name, **look)
    for number, (left, height) in zip(numbers, places, strict=False) if len(numbers) <= MOST_NAMED else ():
        style.write(axes, left, height, str(number), ha="center", va="center", bbox=None, zorder=7)
    axes.margins(0.08, 0.16)
    style.key(axes, "upper center", ncols=min(len(centres), 4), columnspacing=1.2, handletextpad=0.3)
    return style.png(figure)
