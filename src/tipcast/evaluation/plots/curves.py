"""Line plots: ROC, precision-recall, calibration and training history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tipcast.evaluation.classification import ClassificationEvaluation, wilson
from tipcast.evaluation.plots import style

LEAST_ROWS = 10
"""Of a bin of the calibration curve."""


def roc(evaluations: Mapping[str, ClassificationEvaluation], subtitle: str) -> bytes:
    """Draw ROC curves, the first in front, with AUC, DeLong's 95 % interval, chance and the operating point."""
    figure, axes = style.page("ROC curve", subtitle, (0.165, 0.115, 0.74, 0.74))
    axes.plot([0, 1], [0, 1], **style.GUIDE, label="chance: AUC 0.5")
    evaluation, looks = next(iter(evaluations.values())), ((style.BLUE, 2.8), (style.ORANGE, 1.8))
    for (label, each), (color, width) in reversed([*zip(evaluations.items(), looks, strict=False)]):
        text = f"{label}: AUC {each.interval.around(each.headline, 3)}"
        axes.plot(each.roc.fpr, each.roc.tpr, color=color, linewidth=width, label=text, solid_joinstyle="round")
    axes.fill_between(evaluation.roc.fpr, evaluation.roc.tpr, color=style.BLUE, alpha=0.06, linewidth=0)
    right, wrong = evaluation.confusion[0]
    wrong = wrong / (right + wrong)
    _operating_point(axes, wrong, evaluation.metrics["recall"], evaluation.threshold)
    style.shares(axes)
    style.name_axes(axes, "false-positive rate", "true-positive rate")
    style.key(axes, "lower right", reverse=True, title="95 % intervals by DeLong")
    return style.png(figure)


def precision_recall(evaluation: ClassificationEvaluation, subtitle: str) -> bytes:
    """Draw precision against recall with the base rate and the operating point."""
    figure, axes = style.page("Precision and recall", subtitle)
    curve, rate = evaluation.roc, evaluation.metrics["positive_rate"]
    base = f"base rate {style.percent(rate, 1)}"
    axes.axhline(rate, **style.GUIDE, label=base)
    text = f"average precision {evaluation.metrics['average_precision']:.3f}"
    axes.plot(curve.tpr, curve.precision, color=style.BLUE, linewidth=2.8, label=text, solid_joinstyle="round")
    x, y = evaluation.metrics["recall"], evaluation.metrics["precision"]
    _operating_point(axes, x, y, evaluation.threshold, above=x < 0.62)  # the curve falls to the right
    style.shares(axes)
    style.name_axes(axes, "recall: share of positives found", "precision: share of calls right")
    style.key(axes, "lower left" if rate > 0.35 else "upper right", reverse=True)
    return style.png(figure)


def _operating_point(axes: Axes, x: float, y: float, threshold: float, above: bool = False) -> None:
    style.ring(axes, x, y)
    right = x < 0.62
    side = "left" if right else "right"
    height = min(y + 0.075, 0.84) if above else max(min(y - 0.035, 0.93), 0.24)
    style.write(axes, x + (0.035 if right else -0.035), height, f"threshold {threshold:.3f}", ha=side, va="top")


def calibration(evaluation: ClassificationEvaluation, subtitle: str, *, name: str = "1") -> bytes:
    """Draw the rate of positives against the mean score of 16 bins, above the number of rows in each; see ``roc``.

    Bins of fewer than 10 rows are left out of the curve: their rate says nothing.
    """
    left, bottom, width, height = style.BOX
    strip = 0.15
    figure, axes = style.page("Calibration", subtitle, (left, bottom + strip + 0.03, width, height - strip - 0.03))
    bins = evaluation.calibration
    some = bins.rows >= min(LEAST_ROWS, bins.rows.max())
    axes.plot([0, 1], [0, 1], **style.GUIDE)
    mean, rate = bins.mean_score[some], bins.rate[some]
    axes.vlines(mean, *wilson(rate, bins.rows[some]), color=style.BLUE, linewidth=1.8, alpha=0.45)
    axes.plot(mean, rate, "o-", clip_on=False, color=style.BLUE, linewidth=2.2, markersize=6.5, markeredgecolor="white")
    style.write(axes, 0.97, 0.05, "below the line: scores too high", style.MUTED, ha="right")
    style.write(axes, 0.03, 0.93, "above the line: scores too low", style.MUTED, va="top")
    style.write(axes, 0.97, 0.14, f"Brier score {evaluation.metrics['brier']:.4f}", ha="right")
    style.write(
        axes, 0.97, 0.23, f"expected calibration error {evaluation.metrics['calibration_error']:.4f}", ha="right"
    )
    style.shares(axes)
    style.name_axes(axes, "", f"share of rows of class {name}")
    axes.tick_params(labelbottom=False)
    below = style.dress(figure.add_axes((left, bottom, width, strip)))
    number, share = len(bins.rows), bins.rows / bins.rows.sum()
    below.bar((np.arange(number) + 0.5) / number, share, width=0.85 / number, color=style.BLUE, alpha=0.55)
    style.shares(below, y=False)
    below.grid(False, axis="x")
    most = float(share.max())
    below.set_ylim(0, most * 1.15)
    below.set_yticks([0, most], ["0 %", style.percent(most)])
    style.name_axes(below, "mean score of a bin", "of all rows")
    figure.align_ylabels([axes, below])
    return style.png(figure)


def history(
    history: Mapping[str, Mapping[str, Sequence[float]]], metric: str, subtitle: str, *, best: int | None = None
) -> bytes:
    """Draw a metric against boosting rounds of each data set; ``best`` is the round (from 0) that is kept."""
    lines = [(name, list(values[metric])) for name, values in history.items() if metric in values]
    colors = (style.MUTED,) * (len(lines) - 2) + (style.ORANGE, style.BLUE)[max(2 - len(lines), 0) :]
    longest = max((len(values) for _, values in lines), default=1)
    room = 0.02 + 0.018 * max((len(name) for name, _ in lines), default=0)
    left, bottom, _, height = style.BOX
    figure, axes = style.page(f"Training history: {metric}", subtitle, (left, bottom, 0.98 - left - room, height))
    for (_, values), color in zip(lines, colors, strict=True):
        axes.plot(range(1, len(values) + 1), values, color=color, linewidth=2.5, marker="o" if longest == 1 else None)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.08 * (high - low))
    axes.set_xlim(min(1, longest - 1), max(longest, 2))
    place = -np.inf
    for value, name, color in sorted((v[-1], name, color) for (name, v), color in zip(lines, colors, strict=True)):
        place = max(value, place + 0.06 * (high - low))  # names of lines that end close together stay apart
        style.write(axes, max(longest, 2) * 1.02, place, name, color, va="center", weight="bold", bbox=None)
    if best is not None and lines:
        value = lines[-1][1][best]
        axes.axvline(best + 1, **style.GUIDE, zorder=1)
        style.ring(axes, best + 1, value)
        side, shift = ("left", 0.02) if best < 0.55 * longest else ("right", -0.02)
        text = f"best round {best + 1}: {value:.4f}"
        style.write(axes, best + 1 + shift * longest, high + 0.07 * (high - low), text, ha=side, va="top")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    style.name_axes(axes, "boosting round", metric)
    return style.png(figure)
