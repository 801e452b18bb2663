"""Two classes: rows are counted in fine bins of their score where they lie, so that memory does not
grow with them.

Up to ``MOST_EXACT`` rows, all metrics are exact: scores are kept. With more rows, those of one bin
of 2^-16 count as tied. If scores spread over 0..1, the AUC is within about 2e-6 of the exact one,
and average precision within 1e-5; the AUC's interval is wider by its largest possible error. Log
loss, Brier score and metrics at the threshold are exact for any number of rows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tipcast.compute.base import Array, module_of
from tipcast.config.errors import TipcastError
from tipcast.evaluation.base import Evaluation, Evaluator, Metric, Tables
from tipcast.evaluation.binary_sums import (
    UNLABELLED,
    BinarySums,
    count_labelled,
    count_weighted,
    kept_together,
    labels_of,
)
from tipcast.evaluation.calibration import calibrate
from tipcast.evaluation.roc import (
    area_under,
    component_sums,
    curve,
    misses,
)
from tipcast.evaluation.sums import (
    Floats,
    Interval,
    PartedColumns,
    half_width_of,
    select_good,
    sum_columns,
    sum_fields,
    values_of,
)
from tipcast.tasks.kinds import BINARY

NOBODY = float(np.nextafter(np.float32(1), np.float32(2)))
"""Threshold at which no row is called positive."""
MOST_ROWS = 1 << 20
"""Rows counted at a time, so that temporaries stay small."""
TRIAL_STEPS = 25
"""Equal steps of the false-positive rate at which a trial's ROC curve is kept."""


@dataclass(frozen=True)
class ClassificationEvaluation(Evaluation):
    """How well scores tell two classes apart."""

    threshold: float = field(kw_only=True)
    roc: Mapping[str, Floats]
    """``fpr``, ``tpr``, ``precision`` (points,) if scores at or above each ``threshold`` are called
    positive.

    At the first point no row is called; it has the second's precision.
    """
    calibration: Mapping[str, NDArray[Any]]
    """Columns of 16 equal-width bins of scores, without those that have no rows."""
    resolution: float
    """How far the AUC can be from the exact one, see ``BinarySums``."""


@final
class Classification(Evaluator):
    """Compares (rows,) P(1) with labels 0 and 1."""

    kind = BINARY
    sums = BinarySums
    metrics = (
        Metric("auc", True, label="AUC"),
        Metric("average_precision", True),
        Metric("log_loss", False),
        Metric("brier", False),
        Metric("accuracy", True),
        Metric("precision", True),
        Metric("recall", True),
        Metric("f1", True),
    )
    plots = ("roc", "precision_recall", "calibration", "confusion")
    odd_predictions = ("scores are outside 0..1 or NaN", "let the model return probabilities")
    odd_targets = "labels are neither 0 nor 1"
    threshold = 0.5

    def _evaluate(self, parts: PartedColumns, sums: BinarySums, threshold: float | None) -> Any:
        """Evaluate; choose the threshold if none is given. Raises D015 for one class only."""
        negatives, positives = sums.bins.sum(axis=1)
        if not (negatives and positives):
            label = int(positives > 0)
            rows = f"{sums.rows} rows"
            if sums.weighted:
                rows = f"{sums.counted} rows with a weight above 0"
            what = f"all {rows} are of class {label}: a curve needs both classes"
            fix = "use a period or a target with both classes"
            raise TipcastError("D015", parts.where, what, fix)

        if threshold is None:
            threshold, sums = call_most_accurately(sums)
        return self.of_sums(sums, threshold)

    def difference(self, parts: PartedColumns, evaluations: Any) -> tuple[float, Interval]:
        """Compare two models' AUC by DeLong's variance of paired curves: the variance of the
        differences of their components, with weights of their weighted means.

        The interval is -1..1 if a class has fewer than two rows. See ``area_under``.
        """
        curves = []
        for evaluation in evaluations:
            vertices = evaluation.sums.vertices()
            curves.append((vertices.scores, *misses(vertices.positives, vertices.negatives)))

        shared: Any = curves
        if parts.client:  # each worker gets the curves once
            shared = parts.client.submit(list, curves, pure=False)
        parts = replace(parts, columns=([shared] * len(parts.columns[0]), *parts.columns))
        sums = parts.map_reduce(component_sums, sum_columns)
        middle = len(sums) // 2
        half = math.hypot(half_width_of(sums[:middle]), half_width_of(sums[middle:]))
        # Error of rows that share a bin.
        half += sum(evaluation.resolution for evaluation in evaluations)
        value = evaluations[0].headline_value - evaluations[1].headline_value

        return value, Interval(max(value - half, -1.0), min(value + half, 1.0))

    def tables(self, evaluation: Any, classes: Sequence[str] = ()) -> Tables:
        """Return the ROC's points, and the rate of positives by score."""
        points = {name: evaluation.roc[name] for name in ("fpr", "tpr", "threshold")}
        tables = {"tables/roc.json": points, "tables/calibration.json": evaluation.calibration}
        return {
            path: {name: values.tolist() for name, values in columns.items()}
            for path, columns in tables.items()
        }

    def count(
        self,
        predictions: Array,
        target: Array | None = None,
        weights: Array | None = None,
        *,
        threshold: float | None = None,
    ) -> BinarySums:
        """Count scores in fine bins. Rows with a score at or above the threshold are called 1; rows
        with a label other than 0 and 1 count as unlabelled.
        """
        predictions = values_of(predictions)
        target = values_of(target)
        weights = values_of(weights)
        if len(predictions) > MOST_ROWS:
            return self._count_slices(predictions, target, weights, threshold)
        if threshold is None:
            threshold = self.threshold

        possible = (predictions >= 0) & (predictions <= 1)
        odd, (scores, target, weights) = select_good(possible, predictions, target, weights)
        wide = scores.astype(module_of(scores).float64)
        called = scores >= threshold
        rows = len(scores)
        binned = BinarySums(rows, odd, rows, called=int(called.sum()), score_sum=float(wide.sum()))

        labels = labels_of(target, scores)
        if not bool((labels < UNLABELLED).any()):
            return binned
        if weights is None:
            return count_labelled(binned, scores, wide, labels, called)
        return count_weighted(binned, scores, labels, called, weights)

    def _count_slices(
        self,
        predictions: Array,
        target: Array | None,
        weights: Array | None,
        threshold: float | None,
    ) -> BinarySums:
        """Count a part that has too many rows to be counted at once."""
        counts = []
        for start in range(0, len(predictions), MOST_ROWS):
            rows = slice(start, start + MOST_ROWS)
            columns = [None if column is None else column[rows] for column in (target, weights)]
            counts.append(self.count(predictions[rows], *columns, threshold=threshold))
        return self.total(counts)

    def total(self, parts: Sequence[BinarySums]) -> BinarySums:
        """Return the sums of several parts. All scores are kept if every part has kept its own and
        they are few.
        """
        sums = BinarySums(**sum_fields([BinarySums(), *parts], but=("kept_scores",)))
        return replace(sums, kept_scores=kept_together(parts, sums))

    def summary(self, sums: BinarySums, classes: Sequence[str] = ()) -> dict[str, float]:
        """Return the mean score and the share of rows called positive."""
        rows = sums.scored
        if not rows:
            return {}
        return {"mean": sums.score_sum / rows, "predicted_rate": sums.called / rows}

    def of_sums(self, sums: BinarySums, threshold: float | None = None) -> Any:
        """Evaluate the labelled rows; None if they have fewer than two classes."""
        negatives, positives = sums.confusion.sum(axis=1)
        if not positives or not negatives:
            return None
        if threshold is None:
            threshold = self.threshold

        vertices = sums.vertices()
        auc, interval = area_under(
            vertices.positives, vertices.negatives, sums.resolution, sums.squared_weights()
        )
        roc = curve(*vertices)
        calibration = calibrate(sums.bins, sums.square_bins)
        metrics = {
            "auc": auc,
            "average_precision": vertices.average_precision(),
            "log_loss": sums.log_loss / sums.weight,
            "brier": sums.squares / sums.weight,
            **confusion_metrics(sums),
            "mean_prediction": calibration.mean_prediction,
            "calibration_error": calibration.error,
        }

        return ClassificationEvaluation(
            metrics,
            interval,
            sums,
            roc,
            calibration.bins,
            sums.resolution,
            threshold=threshold,
            trial_curve=at_even_rates(roc),
        )


def at_even_rates(roc: Mapping[str, Floats]) -> list[float]:
    """Return the true-positive rates of a curve at even false-positive rates."""
    steps = np.linspace(0, 1, TRIAL_STEPS + 1)
    rates: list[float] = np.interp(steps, roc["fpr"], roc["tpr"]).tolist()
    return rates


def confusion_metrics(sums: BinarySums) -> dict[str, float]:
    """Return the metrics of the classes that rows were called, and the rate of positives."""
    (tn, fp), (fn, tp) = sums.confusion.tolist()
    positives = fn + tp
    called = tp + fp
    return {
        "accuracy": (tp + tn) / sums.weight,
        "precision": tp / called if called else 0.0,
        "recall": tp / positives,
        "f1": 2 * tp / (called + positives),
        "positive_rate": positives / sums.weight,
    }


def call_most_accurately(sums: BinarySums) -> tuple[float, BinarySums]:
    """Return the most accurate threshold and the sums of rows that are called positive at or above
    it, without ``called`` if rows have weights.

    The threshold is a score, or the border of a bin; the lowest of equally accurate ones.
    """
    scores, positives, negatives = sums.vertices()
    positives_below = np.append(0, np.cumsum(positives))
    negatives_below = np.append(0, np.cumsum(negatives))
    gains = negatives_below - positives_below
    if sums.weighted:
        gains = np.round(gains / sums.weight, 12)  # sums of weights are rounded
    best = int(np.argmax(gains))

    threshold = NOBODY
    if best < len(scores):
        threshold = float(scores[best])
    tp = float(positives_below[-1] - positives_below[best])
    fp = float(negatives_below[-1] - negatives_below[best])
    if sums.weighted:
        return threshold, replace(sums, true_positives=tp, false_positives=fp, called=0)

    tp = int(tp)
    fp = int(fp)
    return threshold, replace(sums, true_positives=tp, false_positives=fp, called=tp + fp)
