"""Curves of two classes' scores: ROC, precision and recall, calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from tipcast.evaluation.plots.page import (
    BLUE,
    GUIDE,
    MUTED,
    ORANGE,
    legend,
    page,
    percent,
    picture,
    ring,
    show_as_shares,
    title_of,
    write,
)
from tipcast.evaluation.plots.texts import fit

if TYPE_CHECKING:
    from tipcast.evaluation.classification import ClassificationEvaluation

    Binary = Mapping[str, ClassificationEvaluation]

CURVE_STYLES = ((BLUE, 2.8), (ORANGE, 1.8))
"""Color and width of the first evaluation's curve and of the second's."""
LEAST_ROWS = 10
"""Least rows of a bin in the calibration curve."""
MOST_LETTERS = 22
"""Most letters of an evaluation's name, so that the legend stays below the diagonal."""


@picture
def roc(
    evaluations: Binary, subtitle: str, classes: Sequence[str] = (), target: str = ""
) -> Figure:
    """Draw ROC curves, the first in front, with AUC, DeLong's 95 % interval, chance and the
    operating point.
    """
    first = next(iter(evaluations.values()))
    title = title_of("ROC curve", first.sums)
    figure, axes = page(title, subtitle, "false positive rate", "true positive rate")
    axes.plot([0, 1], [0, 1], **GUIDE, label="chance (AUC 0.5)")
    show_as_shares(axes)

    true_negatives, false_positives = first.sums.confusion[0]
    wrong = false_positives / (true_negatives + false_positives)
    ring(axes, wrong, first.metrics["recall"], f"threshold {first.threshold:.3f}")

    curves = [*zip(evaluations.items(), CURVE_STYLES, strict=False)]
    for (name, evaluation), (color, width) in reversed(curves):
        auc = evaluation.interval.around(evaluation.headline_value, ".3f")
        axes.plot(
            evaluation.roc["fpr"],
            evaluation.roc["tpr"],
            color=color,
            linewidth=width,
            label=f"{fit(name, MOST_LETTERS)}: AUC {auc}".replace(" (", "\n("),
            solid_joinstyle="round",
        )

    place = "lower right"  # below the diagonal
    heading = "95 % interval (DeLong)"
    legend(axes, place, reverse=True, title=heading, handlelength=1.4, borderaxespad=0.3)
    return figure


@picture
def precision_recall(
    evaluations: Binary, subtitle: str, classes: Sequence[str] = (), target: str = ""
) -> Figure:
    """Draw precision against recall with the base rate and the operating point."""
    x = "recall: share of positives found"
    y = "precision: share of positive predictions that are correct"
    evaluation, *_ = evaluations.values()
    figure, axes = page(title_of("Precision-recall curve", evaluation.sums), subtitle, x, y)

    metrics = evaluation.metrics
    rate = metrics["positive_rate"]
    axes.axhline(rate, **GUIDE, label=f"share of positives {percent(rate, 1)}")
    threshold = f"threshold {evaluation.threshold:.3f}"
    ring(axes, metrics["recall"], metrics["precision"], threshold)

    axes.plot(
        evaluation.roc["tpr"],
        evaluation.roc["precision"],
        color=BLUE,
        linewidth=2.8,
        label=f"average precision {metrics['average_precision']:.3f}",
        solid_joinstyle="round",
    )
    show_as_shares(axes)

    place = "upper right"
    if rate > 0.35:  # the curve lies above the base rate
        place = "lower left"
    legend(axes, place, reverse=True)
    return figure


@picture
def calibration(
    evaluations: Binary, subtitle: str, classes: Sequence[str] = (), target: str = ""
) -> Figure:
    """Draw the rate of positives against the mean score of 16 bins.

    Bins of fewer than 10 rows are left out: their rate says nothing.
    """
    positive = classes[1] if classes else "1"
    x = "mean score per bin"
    y = f"share of rows in class {positive}"
    evaluation, *_ = evaluations.values()
    figure, axes = page(title_of("Calibration", evaluation.sums), subtitle, x, y)

    bins = evaluation.calibration
    drawn = bins["rows"] >= min(LEAST_ROWS, bins["rows"].max())
    scores = bins["mean_prediction"][drawn]
    rates = bins["positive_rate"][drawn]
    axes.plot([0, 1], [0, 1], **GUIDE)
    axes.plot(scores, rates, "o-", color=BLUE, linewidth=2.2)

    metrics = evaluation.metrics
    error = f"expected calibration error {metrics['calibration_error']:.4f}"
    write(axes, 0.03, 0.93, "above the line: scores too low", MUTED, va="top")
    write(axes, 0.97, 0.05, f"{error}\nBrier score {metrics['brier']:.4f}", ha="right")
    show_as_shares(axes)
    return figure
