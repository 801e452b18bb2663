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
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from tipcast.compute.base import Array, Frame, module_of, to_host
from tipcast.config.errors import TipcastError
from tipcast.evaluation.base import Evaluation, Evaluator, Metric, Tables
from tipcast.evaluation.roc import Vertices, area_under, curve, misses
from tipcast.evaluation.sums import (
    Floats,
    Interval,
    Ints,
    PartedColumns,
    Sums,
    half_width,
    select_good,
    sum_columns,
    sum_fields,
    values_of,
)
from tipcast.tasks.kinds import BINARY

BINS = 2**16
"""Equal-width bins of scores; float32 scores and borders of bins compare exactly."""
MOST_EXACT = 1 << 18
"""Labelled rows whose scores are kept: 4 MB."""
NOBODY = float(np.nextafter(np.float32(1), np.float32(2)))
"""Threshold at which no row is called positive."""
MOST_ROWS = 1 << 20
"""Rows counted at a time, so that temporaries stay small."""
CALIBRATION_BINS = 16
TRIAL_STEPS = 25
"""Equal steps of the false-positive rate at which a trial's ROC curve is kept."""
UNLABELLED = 2
"""Stands for the label of a row that belongs to neither class."""


@dataclass(frozen=True)
class BinarySums(Sums):
    """Sums over rows with a score in 0..1."""

    bins: NDArray[Any] = field(default_factory=lambda: np.zeros((2, 0), dtype=np.int64))
    """(2, bins) rows labelled 0, and rows labelled 1."""
    called: int = 0
    """All rows with a score at or above the threshold."""
    score_sum: float = 0.0
    """Sum of the scores of all rows."""
    true_positives: int = 0
    false_positives: int = 0
    log_loss: float = 0.0
    squares: float = 0.0
    """Sum of squared differences of score and label."""
    kept_scores: NDArray[Any] = field(default_factory=lambda: np.zeros((2, 0)))
    """(2, rows) score and label of each labelled row, in no order; empty if there are too many
    rows.
    """

    @property
    def confusion(self) -> Ints:
        """Labelled rows (2, 2) by true class and by the class they were called."""
        negatives, positives = self.bins.sum(axis=1)
        tp = self.true_positives
        fp = self.false_positives
        return np.asarray([[negatives - fp, fp], [positives - tp, tp]])

    @property
    def resolution(self) -> float:
        """How far the AUC of these rows can be from the exact one: half the share of pairs whose
        rows are in one bin.
        """
        if self.kept_scores.size:
            return 0.0
        negatives, positives = map(int, self.bins.sum(axis=1))
        return float(self.bins.prod(axis=0).sum()) / (2.0 * positives * negatives)

    def vertices(self) -> Vertices:
        """Return the labelled rows of each class by score, or by bin."""
        if self.kept_scores.size:
            scores, places = np.unique(self.kept_scores[0], return_inverse=True)
            positives = np.bincount(places, self.kept_scores[1])
            return Vertices(scores, positives, np.bincount(places) - positives)

        used = np.flatnonzero(self.bins.any(axis=0))
        negatives, positives = self.bins[:, used].astype(float)
        return Vertices(used / self.bins.shape[1], positives, negatives)


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
        _, positives = sums.bins.sum(axis=1)
        if positives in (0, sums.rows):
            label = int(positives > 0)
            what = f"all {sums.rows} rows are of class {label}: no curve separates one class"
            fix = "take a period or a target with both classes"
            raise TipcastError("D015", parts.where, what, fix)

        if threshold is None:
            threshold, sums = call_most_accurately(sums)
        return self.of_sums(sums, threshold)

    def difference(self, parts: PartedColumns, evaluations: Any) -> tuple[float, Interval]:
        """Compare two models' AUC by DeLong's variance of paired curves: the variance of the
        differences of their components.

        The interval is -1..1 if a class has fewer than two rows. See ``area_under``.
        """
        curves = []
        for evaluation in evaluations:
            vertices = evaluation.sums.vertices()
            curves.append((vertices.scores, *misses(vertices.positives, vertices.negatives)))

        shared: Any = curves
        if parts.client:  # each worker gets the curves once
            shared = parts.client.submit(list, curves, pure=False)
        parts = replace(parts, columns=(*parts.columns, [shared] * len(parts.columns[0])))
        sums = parts.map_reduce(_component_sums, sum_columns)
        half = math.hypot(half_width(*sums[:3]), half_width(*sums[3:]))
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
        self, predictions: Array, target: Array | None = None, *, threshold: float | None = None
    ) -> BinarySums:
        """Count scores in fine bins. Rows with a score at or above the threshold are called 1; rows
        with a label other than 0 and 1 count as unlabelled.
        """
        predictions = values_of(predictions)
        target = values_of(target)
        if len(predictions) > MOST_ROWS:
            return self._count_slices(predictions, target, threshold)
        if threshold is None:
            threshold = self.threshold

        possible = (predictions >= 0) & (predictions <= 1)
        odd, (scores, target) = select_good(possible, predictions, target)
        wide = scores.astype(module_of(scores).float64)
        called = scores >= threshold
        rows = len(scores)
        binned = BinarySums(rows, odd, rows, called=int(called.sum()), score_sum=float(wide.sum()))

        labels = labels_of(target, scores)
        if not bool((labels < UNLABELLED).any()):
            return binned
        return count_labelled(binned, scores, wide, labels, called)

    def _count_slices(
        self, predictions: Array, target: Array | None, threshold: float | None
    ) -> BinarySums:
        """Count a part that has too many rows to be counted at once."""
        counts = []
        for start in range(0, len(predictions), MOST_ROWS):
            rows = slice(start, start + MOST_ROWS)
            slice_target = None if target is None else target[rows]
            counts.append(self.count(predictions[rows], slice_target, threshold=threshold))
        return self.total(counts)

    def total(self, parts: Sequence[BinarySums]) -> BinarySums:
        """Return the sums of several parts. All scores are kept if every part has kept its own and
        they are few.
        """
        sums = BinarySums(**sum_fields([BinarySums(), *parts], but=("kept_scores",)))
        kept_scores = [part.kept_scores for part in parts]
        all_kept = sum(scores.shape[1] for scores in kept_scores) >= sums.rows
        few = sums.rows <= MOST_EXACT
        if not (sums.rows and all_kept and few):
            return sums
        return replace(sums, kept_scores=np.concatenate(kept_scores, axis=1))

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
        auc, interval = area_under(vertices.positives, vertices.negatives, sums.resolution)
        roc = curve(*vertices)
        calibration = calibrate(sums)
        metrics = {
            "auc": auc,
            "average_precision": vertices.average_precision(),
            "log_loss": sums.log_loss / sums.rows,
            "brier": sums.squares / sums.rows,
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
    rows = sums.rows
    positives = fn + tp
    return {
        "accuracy": (tp + tn) / rows,
        "precision": tp / max(tp + fp, 1),
        "recall": tp / positives,
        "f1": 2 * tp / (tp + fp + positives),
        "positive_rate": positives / rows,
    }


def call_most_accurately(sums: BinarySums) -> tuple[float, BinarySums]:
    """Return the most accurate threshold and the sums of rows that are called positive at or above
    it.

    The threshold is a score, or the border of a bin; the lowest of equally accurate ones.
    """
    scores, positives, negatives = sums.vertices()
    positives_below = np.append(0, np.cumsum(positives))
    negatives_below = np.append(0, np.cumsum(negatives))
    best = int(np.argmax(negatives_below - positives_below))

    threshold = NOBODY
    if best < len(scores):
        threshold = float(scores[best])
    tp = int(positives_below[-1] - positives_below[best])
    fp = int(negatives_below[-1] - negatives_below[best])
    return threshold, replace(sums, true_positives=tp, false_positives=fp, called=tp + fp)


def labels_of(target: Array | None, scores: Array) -> Array:
    """Return (rows,) labels of scored rows: 0, 1, or ``UNLABELLED`` of any other target."""
    xp = module_of(scores)
    labels = xp.full(len(scores), UNLABELLED, xp.int32)
    if target is not None:
        labels[target == 0] = 0
        labels[target == 1] = 1
    return labels


def count_labelled(
    binned: BinarySums, scores: Array, wide: Array, labels: Array, called: Array
) -> BinarySums:
    """Return a part's sums with those of its labelled rows added.

    All arrays are (rows,): scores as they are, ``wide`` the same in float64, labels, and whether a
    row is called positive.
    """
    xp = module_of(scores)
    positive = labels == 1
    labelled = labels < UNLABELLED
    unknown = len(scores) - int(labelled.sum())

    eps = float(np.finfo(scores.dtype).eps)  # as scikit-learn clips
    right = xp.where(positive, wide, 1 - wide)[labelled]
    kept_scores = binned.kept_scores
    if len(scores) - unknown <= MOST_EXACT:
        kept_scores = to_host(xp.stack([wide, positive])[:, labelled])

    return replace(
        binned,
        unknown=unknown,
        bins=bin_scores(scores, labels),
        true_positives=int((called & positive).sum()),
        false_positives=int((called & (labels == 0)).sum()),
        log_loss=-float(xp.log(xp.clip(right, eps, 1 - eps)).sum()),
        squares=float(((1 - right) ** 2).sum()),
        kept_scores=kept_scores,
    )


def bin_scores(scores: Array, labels: Array) -> NDArray[np.int32]:
    """Return (2, bins) rows labelled 0, and rows labelled 1, on the host."""
    xp = module_of(scores)
    places = xp.minimum((scores * BINS).astype(xp.int32), BINS - 1)
    cells = to_host(xp.bincount(places + BINS * labels, minlength=3 * BINS)).astype(np.int32)
    bins: NDArray[np.int32] = cells[: 2 * BINS].reshape(2, BINS)
    return bins


class Calibration(NamedTuple):
    """How close scores are to the rate of positives."""

    bins: Mapping[str, NDArray[Any]]
    """See ``ClassificationEvaluation``."""
    mean_prediction: float
    error: float
    """Expected calibration error, see Naeini et al. (2015)."""


def calibrate(sums: BinarySums) -> Calibration:
    """Compare the mean score and the rate of positives of 16 bins of the labelled rows."""
    labelled = sums.bins.sum(axis=0)
    fine = np.stack([labelled * (np.arange(BINS) + 0.5) / BINS, sums.bins[1], labelled])
    coarse = fine.reshape(3, CALIBRATION_BINS, -1).sum(axis=2)
    used = np.flatnonzero(coarse[2])
    score_sums, positives, rows = coarse[:, used]

    bins = {
        "from": used / CALIBRATION_BINS,
        "to": (used + 1) / CALIBRATION_BINS,
        "rows": rows,
        "mean_prediction": score_sums / rows,
        "positive_rate": positives / rows,
    }
    mean_prediction = float(score_sums.sum() / sums.rows)
    error = float(np.abs(score_sums - positives).sum() / sums.rows)
    return Calibration(bins, mean_prediction, error)


def _component_sums(
    first: Array | Frame,
    second: Array | Frame,
    labels: Array | Frame,
    curves: Sequence[tuple[Floats, Floats, Floats]],
) -> list[float]:
    """Return the number of a part's positives, the sum of the differences of their components, and
    that of the squared differences; then the same for its negatives.

    ``curves`` has for each model the scores of its vertices, and there the complements of a
    positive's and of a negative's component, see ``misses``.
    """
    labels = values_of(labels)
    xp = module_of(labels)
    components = []

    for scores, (borders, of_positives, of_negatives) in zip((first, second), curves, strict=True):
        scores = values_of(scores).astype(xp.float64)
        # The vertex at which the score is counted.
        vertex = xp.searchsorted(xp.asarray(borders), scores, side="right") - 1
        if_positive = xp.asarray(of_positives)[vertex]
        if_negative = xp.asarray(of_negatives)[vertex]
        components.append(xp.where(labels == 1, if_positive, if_negative))

    sums = []
    for label in (1, 0):
        differences = (components[1] - components[0])[labels == label]
        squares = xp.dot(differences, differences)
        sums += [float(len(differences)), float(differences.sum()), float(squares)]

    return sums
