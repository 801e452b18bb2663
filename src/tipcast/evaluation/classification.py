"""Two classes: rows are counted in fine bins of their score where they lie, so that memory does not grow with them.

Of up to ``MOST_EXACT`` rows all is exact: their scores are kept. Of more, rows of one bin of 2^-16 count as tied: where
scores spread over 0..1 the AUC is within about 2e-6 of the exact one, average precision within 1e-5; ``auc_resolution``
bounds the AUC's error for any. Log loss, Brier score and what depends on the threshold are exact of any number.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from tipcast.compute.base import Array, module_of, to_host
from tipcast.config.errors import TipcastError
from tipcast.evaluation import paired
from tipcast.evaluation.base import Evaluator, Figures, Tables, computed
from tipcast.evaluation.sums import Edges, Parts, added, values_of
from tipcast.evaluation.two_classes import (
    METRICS,
    ClassificationEvaluation,
    Confusion,
    Sums,
    area_under,
    coarse,
    curves,
    in_bins,
    wilson,
)

BINS = 2**16
"""Equal-width bins of scores; float32 scores and borders of bins compare exactly."""
MOST_EXACT = 1 << 18
"""Labelled rows whose scores are kept: 4 MB."""
NOBODY = float(np.nextafter(np.float32(1), np.float32(2)))
"""Threshold at which no row is called positive."""
MOST_ROWS = 1 << 20
"""Rows counted at a time, so that temporaries stay small."""
Counts = np.ndarray[Any, Any]


def _no_counts() -> Counts:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Binned:
    """Sums over rows with a score in 0..1, on the host. Each labelled row is counted in ``rows`` too."""

    rows: Counts = field(default_factory=_no_counts)
    """(bins,) all rows that have a score."""
    positives: Counts = field(default_factory=_no_counts)
    """(bins,) rows labelled 1, and below those labelled 0; empty where no row is labelled."""
    negatives: Counts = field(default_factory=_no_counts)
    called: int = 0
    """All rows with a score at or above the threshold."""
    score_sum: float = 0.0
    """Of all rows."""
    true_positives: int = 0
    false_positives: int = 0
    log_loss: float = 0.0
    squares: float = 0.0
    not_numbers: int = 0
    """Scores that are NaN or outside 0..1."""
    ranked: Counts = field(default_factory=lambda: np.zeros((2, 0)))
    """(2, rows) score and label of each labelled row; of too many rows none."""

    def vertices(self) -> tuple[Counts, Counts, Counts]:
        """Return (vertices,) rising scores, or borders of bins, and the labelled rows of each class there."""
        if self.ranked.size:
            scores, places = np.unique(self.ranked[0], return_inverse=True)
            positives = np.bincount(places, self.ranked[1])
            return scores, positives, np.bincount(places) - positives
        used = np.flatnonzero(self.positives + self.negatives)
        return used / len(self.rows), self.positives[used].astype(float), self.negatives[used].astype(float)

    @property
    def resolution(self) -> float:
        """How far the AUC can be from the exact one: half the share of pairs whose rows are in one bin."""
        if self.ranked.size:
            return 0.0
        pairs = float(self.positives.sum()) * float(self.negatives.sum())
        return float((self.positives * self.negatives).sum()) / (2 * pairs)


@final
class Classification(Evaluator):
    """Judges (rows,) P(1) against labels 0 and 1."""

    kind = "classification"
    sums = Binned
    metrics = METRICS
    interval_remark = "Beside an AUC is its 95 % interval by DeLong, which is asymptotic."
    difference_remark = "That of the difference is of a paired bootstrap."
    figure = "plots/roc.png"
    threshold = 0.5

    def _evaluate(self, parts: Parts, threshold: float | None) -> ClassificationEvaluation:
        """Evaluate scores with their labels in one pass over the rows."""
        sums: Binned = parts.add(functools.partial(self.count, threshold=threshold), self.total)
        rows, positives, negatives = (int(each.sum()) for each in (sums.rows, sums.positives, sums.negatives))
        parts.refuse(
            rows + sums.not_numbers,
            ("D030", sums.not_numbers, "scores are outside 0..1 or NaN", "let the model return probabilities"),
            ("D031", rows - positives - negatives, "labels are neither 0 nor 1", "check the target"),
        )
        if threshold is None:
            sums, threshold = _most_accurate(sums)
        found = self.of_sums(sums, threshold)
        if found is None:
            what = f"all {rows} rows are of class {int(positives > 0)}: no curve separates one class"
            raise TipcastError("D015", parts.where, what, "take a period or a target with both classes")
        return found

    def difference(
        self,
        client: Any,
        models: tuple[Sequence[Any], Sequence[Any]],
        targets: Sequence[Any],
        evaluations: tuple[Any, Any],
        *,
        parts: Sequence[int],
        replicates: int,
        seed: int,
    ) -> paired.Difference:
        """Compare two models' AUC by a paired bootstrap, see ``paired.bootstrap``."""
        aucs = evaluations[0].headline, evaluations[1].headline
        return paired.bootstrap(client, *models, targets, aucs, parts=parts, replicates=replicates, seed=seed)

    def figures(self, drawn: Mapping[str, Any], subtitle: str, classes: Sequence[str] = ()) -> Figures:
        """Draw ROC curves; precision against recall, calibration, confusion and scores by class."""
        from tipcast.evaluation import plots  # Matplotlib takes half a second, which workers need not spend

        first, names = next(iter(drawn.values())), tuple(classes) or ("0", "1")
        called = f"predicted, at threshold {first.threshold:.3f}"
        yield self.figure, plots.roc(drawn, subtitle)
        yield "plots/precision_recall.png", plots.precision_recall(first, subtitle)
        yield "plots/calibration.png", plots.calibration(first, subtitle, name=names[1])
        yield "plots/confusion.png", plots.confusion(first.confusion.matrix, subtitle, names, called)
        yield "plots/scores.png", plots.scores(first, subtitle, classes=names)

    def tables(self, evaluation: Any, classes: Sequence[str] = ()) -> Tables:
        """Return the ROC's points, and the rate of positives by score."""
        roc, bins = evaluation.roc, evaluation.calibration
        columns = {"fpr": roc.fpr.tolist(), "tpr": roc.tpr.tolist(), "threshold": roc.thresholds.tolist()}
        some = np.flatnonzero(bins.rows)
        low, high = wilson(bins.rate[some], bins.rows[some])
        reliability = {
            "from": some / len(bins.rows),
            "to": (some + 1) / len(bins.rows),
            "rows": bins.rows[some],
            "mean_prediction": bins.mean_score[some],
            "positive_rate": bins.rate[some],
            "rate_low": low,
            "rate_high": high,
        }
        return {
            "tables/roc.json": columns,
            "tables/calibration.json": {name: values.tolist() for name, values in reliability.items()},
        }

    def remark(self, evaluation: Any, *, chosen: bool) -> str:
        """Return at which threshold rows are called positive."""
        basis = "the most accurate one on validation rows" if chosen else "set beforehand"
        at = f"at threshold {evaluation.threshold:.4f}, {basis}"
        return f"Accuracy, precision, recall and f1 {at}. {self.interval_remark}"

    def count(
        self, predictions: Array, target: Any = None, *, threshold: float | None = None, edges: Edges = None
    ) -> Binned:
        """Count scores in fine bins, called 1 at or above the threshold; a label other than 0 and 1 is none."""
        predictions, target = values_of(predictions), values_of(target)
        xp = module_of(predictions)
        if len(predictions) > MOST_ROWS:
            cuts = [slice(at, at + MOST_ROWS) for at in range(0, len(predictions), MOST_ROWS)]
            pairs = ((predictions[cut], None if target is None else target[cut]) for cut in cuts)
            return self.total([self.count(*pair, threshold=threshold) for pair in pairs])
        good = (predictions >= 0) & (predictions <= 1)
        odd = len(predictions) - int(xp.count_nonzero(good))
        if odd:
            predictions, target = predictions[good], None if target is None else target[good]
        wide = predictions.astype(xp.float64)
        places = xp.minimum((predictions * BINS).astype(xp.int32), BINS - 1)
        called = predictions >= (self.threshold if threshold is None else threshold)
        labels = xp.full(len(places), 2, xp.int32)  # of no class
        if target is not None:
            labels[target == 0], labels[target == 1] = 0, 1
        cells = to_host(xp.bincount(places + BINS * labels, minlength=3 * BINS)).astype(np.int32).reshape(3, BINS)
        found = Binned(cells.sum(axis=0), called=int(called.sum()), score_sum=float(wide.sum()), not_numbers=odd)
        known = labels < 2
        if not bool(known.any()):
            return found
        positive = labels == 1
        few = int(known.sum()) <= MOST_EXACT
        eps = float(np.finfo(predictions.dtype).eps)  # as scikit-learn clips
        right = xp.where(positive, wide, 1 - wide)[known]
        return replace(
            found,
            positives=cells[1],
            negatives=cells[0],
            true_positives=int((called & positive).sum()),
            false_positives=int((called & (labels == 0)).sum()),
            log_loss=-float(xp.log(xp.clip(right, eps, 1 - eps)).sum()),
            squares=float(((1 - right) ** 2).sum()),
            ranked=to_host(xp.stack([wide, positive])[:, known]) if few else found.ranked,
        )

    def total(self, parts: Sequence[Binned]) -> Binned:
        """Return the sums of several parts, with all scores where each has kept its own and they are few."""
        found = Binned(**added([Binned(), *parts], but=("ranked",)))
        labelled = int(found.positives.sum() + found.negatives.sum())
        if not labelled or labelled > min(MOST_EXACT, sum(part.ranked.shape[1] for part in parts)):
            return found
        return replace(found, ranked=np.concatenate([part.ranked for part in parts], axis=1))

    def summary(self, sums: Binned) -> dict[str, float]:
        """Return the mean score and the share of rows called positive."""
        rows = int(sums.rows.sum())
        return {"mean": sums.score_sum / rows, "predicted_rate": sums.called / rows} if rows else {}

    def of_sums(self, sums: Binned, threshold: float | None = None) -> ClassificationEvaluation | None:
        """Evaluate the labelled rows; None where they are of fewer than two classes."""
        p_all, n_all = int(sums.positives.sum()), int(sums.negatives.sum())
        if not p_all or not n_all:
            return None
        borders, p, n = sums.vertices()
        below, above = np.cumsum(p) - p, np.cumsum(n) - n  # positives and negatives in lower bins
        auc, interval = area_under(p, n)
        hits, alarms = p_all - below, n_all - above
        tp, fp = sums.true_positives, sums.false_positives
        confusion = Confusion(n_all - fp, fp, p_all - tp, tp)
        precision = float((p * hits / (hits + alarms)).sum())
        bins = len(sums.rows)
        edges = np.append(borders, math.inf)
        middles = (np.arange(bins) + 0.5) / bins
        calibration, histogram = in_bins(sums.negatives, sums.positives, (sums.positives + sums.negatives) * middles)
        metrics = computed(
            METRICS,
            Sums(auc, precision, sums.log_loss, sums.squares, confusion),
            confusion.rows,
            positive_rate=confusion.positives / confusion.rows,
            mean_prediction=calibration.mean,
            calibration_error=calibration.error,
            auc_resolution=sums.resolution,
        )
        return ClassificationEvaluation(
            metrics,
            interval,
            confusion,
            *curves(np.append(below, p_all), np.append(above, n_all), lambda at: edges[at]),
            calibration,
            histogram,
            threshold=self.threshold if threshold is None else threshold,
        )

    def histogram(self, counted: Any) -> Any:
        """Return rows by 1/64 of the score."""
        if isinstance(counted, Binned):
            return coarse(counted.rows)
        return counted.histogram.negatives + counted.histogram.positives


def _most_accurate(sums: Binned) -> tuple[Binned, float]:
    """Return labelled sums at the lowest score, or border of a bin, of highest accuracy, and that threshold."""
    borders, *counts = sums.vertices()
    below = [np.append(0, np.cumsum(each)) for each in counts]
    best = int(np.argmax(below[1] - below[0]))
    tp, fp = (int(counts[-1] - counts[best]) for counts in below)
    threshold = float(borders[best]) if best < len(borders) else NOBODY
    return replace(sums, true_positives=tp, false_positives=fp, called=tp + fp), threshold
