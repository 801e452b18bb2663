"""Two classes: rows are counted in fine bins of their score where they lie, so that memory does not
grow with them.

Of up to ``MOST_EXACT`` rows all is exact: their scores are kept. Of more, rows of one bin of 2^-16
count as tied: where scores spread over 0..1 the AUC is within about 2e-6 of the exact one, average
precision within 1e-5; the AUC's interval is wider by its largest possible error. Log loss, Brier
score and what depends on the threshold are exact of any number.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tipcast.compute.base import Array, module_of, to_host
from tipcast.config.errors import TipcastError
from tipcast.evaluation.base import Evaluation, Evaluator, Metric, Tables
from tipcast.evaluation.sums import (
    Z95,
    Floats,
    Interval,
    Ints,
    Parts,
    Sums,
    added,
    half_width,
    kept,
    summed,
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
MAX_POINTS = 2000
"""Of a curve: those at even distances along it."""


@dataclass(frozen=True)
class Binned(Sums):
    """Sums over rows with a score in 0..1."""

    bins: NDArray[Any] = field(default_factory=lambda: np.zeros((2, 0), dtype=np.int64))
    """(2, bins) rows labelled 0, and rows labelled 1."""
    called: int = 0
    """All rows with a score at or above the threshold."""
    score_sum: float = 0.0
    """Of all rows."""
    true_positives: int = 0
    false_positives: int = 0
    log_loss: float = 0.0
    squares: float = 0.0
    """Sum of squared differences of score and label."""
    ranked: NDArray[Any] = field(default_factory=lambda: np.zeros((2, 0)))
    """(2, rows) score and label of each labelled row; of too many rows none."""

    @property
    def confusion(self) -> Ints:
        """Labelled rows (2, 2) by true class and by the class they were called."""
        (negatives, positives), tp, fp = (
            self.bins.sum(axis=1),
            self.true_positives,
            self.false_positives,
        )
        return np.asarray([[negatives - fp, fp], [positives - tp, tp]])

    def vertices(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return (vertices,) rising scores, or borders of bins, and the labelled rows of each class
        there.
        """
        if self.ranked.size:
            scores, places = np.unique(self.ranked[0], return_inverse=True)
            positives = np.bincount(places, self.ranked[1])
            return scores, positives, np.bincount(places) - positives
        used = np.flatnonzero(self.bins.any(axis=0))
        negatives, positives = self.bins[:, used].astype(float)
        return used / self.bins.shape[1], positives, negatives


@dataclass(frozen=True)
class ClassificationEvaluation(Evaluation):
    """How well scores tell two classes apart."""

    threshold: float = field(kw_only=True)
    roc: Mapping[str, Floats]
    """``fpr``, ``tpr``, ``precision`` (points,) of calling scores at or above each ``threshold``
    positive.

    The first point, where none is called, has the second's precision.
"""
    calibration: Mapping[str, NDArray[Any]]
    """Columns of 16 equal-width bins of scores, without those that have no rows."""
    resolution: float
    """How far the AUC can be from the exact one: half the share of pairs whose rows are in one
    bin.
    """


@final
class Classification(Evaluator):
    """Judges (rows,) P(1) against labels 0 and 1."""

    kind = BINARY
    sums = Binned
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

    def _evaluate(self, parts: Parts, sums: Binned, threshold: float | None) -> Any:
        """Choose a threshold where none is given; D015."""
        _, positives = sums.bins.sum(axis=1)
        if positives in (0, sums.rows):
            what = (
                f"all {sums.rows} rows are of class {int(positives > 0)}: no curve separates "
                "one class"
            )
            raise TipcastError(
                "D015", parts.where, what, "take a period or a target with both classes"
            )

        if threshold is None:  # the lowest score, or border of a bin, of highest accuracy
            borders, *counts = sums.vertices()
            below = [np.append(0, np.cumsum(side)) for side in counts]
            best = int(np.argmax(below[1] - below[0]))
            tp, fp = (int(side[-1] - side[best]) for side in below)
            threshold = float(borders[best]) if best < len(borders) else NOBODY
            sums = replace(sums, true_positives=tp, false_positives=fp, called=tp + fp)

        return self.of_sums(sums, threshold)

    def difference(self, parts: Parts, evaluations: Any) -> tuple[float, Interval]:
        """Compare two models' AUC by DeLong's variance of paired curves: that of their components'
        differences.

        All of -1..1 where a class has fewer than two rows. See ``area_under``.
        """
        curves = [
            (scores, *misses(p, n))
            for scores, p, n in (each.sums.vertices() for each in evaluations)
        ]
        # once on each worker
        held = parts.client.submit(list, curves, pure=False) if parts.client else curves
        parts = replace(parts, columns=(*parts.columns, [held] * len(parts.columns[0])))
        sums = parts.add(_apart, summed)
        half = math.hypot(half_width(*sums[:3]), half_width(*sums[3:]))
        half += sum(evaluation.resolution for evaluation in evaluations)  # of rows that share a bin
        value = evaluations[0].headline - evaluations[1].headline

        return value, Interval(max(value - half, -1.0), min(value + half, 1.0))

    def tables(self, evaluation: Any, classes: Sequence[str] = ()) -> Tables:
        """Return the ROC's points, and the rate of positives by score."""
        columns = {name: evaluation.roc[name] for name in ("fpr", "tpr", "threshold")}
        tables = {"tables/roc.json": columns, "tables/calibration.json": evaluation.calibration}
        return {
            path: {name: each.tolist() for name, each in table.items()}
            for path, table in tables.items()
        }

    def count(
        self, predictions: Array, target: Any = None, *, threshold: float | None = None
    ) -> Binned:
        """Count scores in fine bins, called 1 at or above the threshold; a label other than 0 and 1
        is none.
        """
        predictions = values_of(predictions)
        target = values_of(target)
        xp = module_of(predictions)

        if len(predictions) > MOST_ROWS:
            cuts = [slice(at, at + MOST_ROWS) for at in range(0, len(predictions), MOST_ROWS)]
            pairs = ((predictions[cut], None if target is None else target[cut]) for cut in cuts)
            return self.total([self.count(*pair, threshold=threshold) for pair in pairs])

        odd, (predictions, target) = kept(
            (predictions >= 0) & (predictions <= 1), predictions, target
        )
        wide = predictions.astype(xp.float64)
        places = xp.minimum((predictions * BINS).astype(xp.int32), BINS - 1)
        called = predictions >= (self.threshold if threshold is None else threshold)
        labels = xp.full(len(places), 2, xp.int32)  # of no class
        if target is not None:
            labels[target == 0], labels[target == 1] = 0, 1

        labelled = labels < 2
        rows = len(places)
        binned = Binned(rows, odd, rows, called=int(called.sum()), score_sum=float(wide.sum()))
        if not bool(labelled.any()):
            return binned

        cells = to_host(xp.bincount(places + BINS * labels, minlength=3 * BINS)).astype(np.int32)
        positive = labels == 1
        unknown = rows - int(labelled.sum())
        eps = float(np.finfo(predictions.dtype).eps)  # as scikit-learn clips
        right = xp.where(positive, wide, 1 - wide)[labelled]

        return replace(
            binned,
            unknown=unknown,
            bins=cells[: 2 * BINS].reshape(2, BINS),
            true_positives=int((called & positive).sum()),
            false_positives=int((called & (labels == 0)).sum()),
            log_loss=-float(xp.log(xp.clip(right, eps, 1 - eps)).sum()),
            squares=float(((1 - right) ** 2).sum()),
            ranked=to_host(xp.stack([wide, positive])[:, labelled])
            if rows - unknown <= MOST_EXACT
            else binned.ranked,
        )

    def total(self, parts: Sequence[Binned]) -> Binned:
        """Return the sums of several parts, with all scores where each has kept its own and they
        are few.
        """
        sums = Binned(**added([Binned(), *parts], but=("ranked",)))
        if not sums.rows or sums.rows > min(
            MOST_EXACT, sum(part.ranked.shape[1] for part in parts)
        ):
            return sums
        return replace(sums, ranked=np.concatenate([part.ranked for part in parts], axis=1))

    def summary(self, sums: Binned, classes: Sequence[str] = ()) -> dict[str, float]:
        """Return the mean score and the share of rows called positive."""
        rows = sums.scored
        return {"mean": sums.score_sum / rows, "predicted_rate": sums.called / rows} if rows else {}

    def of_sums(self, sums: Binned, threshold: float | None = None) -> Any:
        """Evaluate the labelled rows; None where they are of fewer than two classes."""
        (tn, fp), (fn, tp) = sums.confusion.tolist()
        rows = sums.rows
        negatives = tn + fp
        positives = fn + tp
        if not positives or not negatives:
            return None

        scores, p, n = sums.vertices()
        of_one_bin = 0.0 if sums.ranked.size else float(sums.bins.prod(axis=0).sum())
        resolution = of_one_bin / (2.0 * positives * negatives)
        auc, interval = area_under(p, n, resolution)
        # at or above each score
        hits = positives - (np.cumsum(p) - p)
        alarms = negatives - (np.cumsum(n) - n)
        labelled = sums.bins.sum(axis=0)
        fine = np.stack([labelled * (np.arange(BINS) + 0.5) / BINS, sums.bins[1], labelled])
        coarse = fine.reshape(3, CALIBRATION_BINS, -1).sum(axis=2)
        bins = np.flatnonzero(coarse[2])
        total, of_one, binned = coarse[:, bins]
        calibration = {
            "from": bins / CALIBRATION_BINS,
            "to": (bins + 1) / CALIBRATION_BINS,
            "rows": binned,
        }
        calibration |= {"mean_prediction": total / binned, "positive_rate": of_one / binned}
        metrics = {
            "auc": auc,
            "average_precision": float((p * hits / (hits + alarms)).sum()) / positives,
            "log_loss": sums.log_loss / rows,
            "brier": sums.squares / rows,
            "accuracy": (tp + tn) / rows,
            "precision": tp / max(tp + fp, 1),
            "recall": tp / positives,
            "f1": 2 * tp / (tp + fp + positives),
            "positive_rate": positives / rows,
            "mean_prediction": float(total.sum() / rows),
            "calibration_error": float(np.abs(total - of_one).sum() / rows),  # Naeini et al. (2015)
        }
        roc = curve(scores, p, n)
        rates = np.interp(np.linspace(0, 1, TRIAL_STEPS + 1), roc["fpr"], roc["tpr"]).tolist()
        threshold = self.threshold if threshold is None else threshold

        return ClassificationEvaluation(
            metrics,
            interval,
            sums,
            roc,
            calibration,
            resolution,
            threshold=threshold,
            trial_curve=rates,
        )


def curve(scores: Floats, positives: Floats, negatives: Floats) -> Mapping[str, Floats]:
    """Return the ROC of rows of each class (vertices,) by rising score; the last point is below all
    of them.
    """
    below, above = (np.append(0, np.cumsum(rows)) for rows in (positives, negatives))
    chosen = thin(above / above[-1], below / below[-1])[::-1]
    hits = below[-1] - below[chosen]
    alarms = above[-1] - above[chosen]
    precision = hits / np.maximum(hits + alarms, 1)
    precision[0] = precision[1]
    points = {"fpr": alarms / above[-1], "tpr": hits / below[-1], "precision": precision}
    return points | {"threshold": np.append(scores, math.inf)[chosen]}


def area_under(
    positives: Floats, negatives: Floats, resolution: float = 0.0
) -> tuple[float, Interval]:
    """Return the AUC of rows of each class (vertices,) by rising score, and its 95 % interval by
    DeLong's variance.

    The interval is wider by ``resolution`` on each side, cut to 0..1, and all of it where a class
    has fewer than two rows. A positive's component is the share of negatives below it, a negative's
    the share of positives above it (ties as halves). The variance of the AUC is the sum over both
    classes of the components' sample variance over their number. The AUC is near to normal where
    both classes have many rows; of few, or close to 1, the interval is too short.

    References
    ----------
    DeLong, DeLong, Clarke-Pearson (1988), Biometrics 44(3), 837-845.

    """
    numbers = positives.sum(), negatives.sum()
    above = np.cumsum(negatives) - negatives
    auc = float((positives * (2 * above + negatives)).sum() / (2 * numbers[0] * numbers[1]))
    if min(numbers) < 2:
        return auc, Interval(0.0, 1.0)

    miss = 1.0 - auc
    variance = 0.0
    for rows, number, share in zip(
        (positives, negatives), numbers, misses(positives, negatives), strict=True
    ):
        variance += (
            max(float((rows * share**2).sum()) - number * miss * miss, 0.0) / (number - 1) / number
        )

    half = Z95 * math.sqrt(variance)
    return auc, Interval(max(auc - half - resolution, 0.0), min(auc + half + resolution, 1.0))


def misses(positives: Floats, negatives: Floats) -> tuple[Floats, Floats]:
    """Return (vertices,) the complements of a positive's and of a negative's component at each
    score.

    Of these nothing cancels where an AUC is close to 1.
    """
    below = np.cumsum(positives) - positives
    above = np.cumsum(negatives) - negatives
    return 1 - (above + negatives / 2) / negatives.sum(), (below + positives / 2) / positives.sum()


def _apart(first: Any, second: Any, labels: Any, curves: Any) -> list[float]:
    """Return of a part's positives, then its negatives, rows and sums of the components'
    differences and squares.
    """
    labels = values_of(labels)
    xp = module_of(labels)
    sides = []

    for scores, (borders, *of_class) in zip((first, second), curves, strict=True):
        scores = values_of(scores).astype(xp.float64)
        # the vertex that the score is counted at
        at = xp.searchsorted(xp.asarray(borders), scores, side="right") - 1
        sides.append(xp.where(labels == 1, *(xp.asarray(values)[at] for values in of_class)))

    sums = []
    for label in (1, 0):
        apart = (sides[1] - sides[0])[labels == label]
        sums += [float(len(apart)), float(apart.sum()), float(xp.dot(apart, apart))]

    return sums


def thin(x: Floats, y: Floats) -> NDArray[np.intp]:
    """Choose vertices of a monotone curve (points,) at even distances, the first and the last among
    them.
    """
    dx = np.diff(x) == 0
    dy = np.diff(y) == 0
    straight = (dx[1:] & dx[:-1]) | (dy[1:] & dy[:-1])
    corners: NDArray[np.intp] = np.r_[0, 1 + np.flatnonzero(~straight), len(x) - 1]
    if len(corners) <= MAX_POINTS:
        return corners

    along = (x + y)[corners]
    chosen: NDArray[np.intp] = corners[
        np.unique(np.searchsorted(along, np.linspace(0, along[-1], MAX_POINTS)))
    ]
    return chosen
