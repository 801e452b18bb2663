"""Two classes: exact metrics, curves and bins of scores and labels that stay on the workers, at any number of rows.

Rows that are scored are counted in fine bins instead, whose memory does not grow with them: rows in one bin of 1/20,000
count as tied; log loss, Brier score, the mean and what depends on the threshold are exact all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from tipcast.compute.base import Array, module_of, to_host
from tipcast.evaluation import paired
from tipcast.evaluation.base import Evaluator
from tipcast.evaluation.counts import Tally, tally
from tipcast.evaluation.sorted_scores import (
    Buckets,
    Whole,
    classes_below,
    cut,
    fill,
    inspect,
    join,
    key_of,
    sample,
    score_of,
    sort_keys,
)
from tipcast.evaluation.sums import Parts, added
from tipcast.evaluation.two_classes import (
    METRICS,
    ClassificationEvaluation,
    Confusion,
    PrecisionRecall,
    Roc,
    Sums,
    area_under,
    coarse,
    curves,
    delong,
    evaluation,
    in_bins,
    wilson,
)

BINS = 20_000
"""Equal-width bins of scored rows: a multiple of those that plots and tables have."""
Counts = np.ndarray[Any, Any]


def _no_counts() -> Counts:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Binned:
    """Sums over rows, on the host. Each labelled row is counted in ``rows`` too."""

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

    @property
    def resolution(self) -> float:
        """How far the AUC can be from the exact one: half the share of pairs whose rows are in one bin."""
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
        """Evaluate scores exactly, all of one dtype, float32 or float64; those of this process unchecked."""
        if parts.client is not None:
            return of_buckets(parts.client, fill(parts), threshold)
        ((predictions,), (target,)) = parts.columns
        keys = sort_keys(predictions, target)
        positives, negatives = classes_below(keys)
        whole, dtype = Whole(positives, negatives, 0, 0), str(keys.dtype)
        tallies = [tally(keys, whole)]
        return _evaluation(tallies, whole, dtype, *_most_accurate(tallies, whole, dtype))

    def warm_up(self, predictions: Array, target: Any) -> None:
        """Sort and count as the workers do."""
        inspect(predictions, target)
        ordered = sort_keys(predictions, target)
        if not len(ordered):
            return
        middle = sample(ordered, 1)[0] & ~1
        keys = join([cut(ordered, None, middle), cut(ordered, middle, None)])
        positives, negatives = classes_below(keys)
        if positives and negatives:
            tally(keys, Whole(positives, negatives, 0, 0))

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

    def figures(
        self, drawn: Mapping[str, Any], subtitle: str, classes: Sequence[str] = ()
    ) -> Iterator[tuple[str, bytes]]:
        """Draw ROC curves; precision against recall, calibration, confusion and scores by class."""
        from tipcast.evaluation import plots  # Matplotlib takes half a second, which workers need not spend

        first, names = next(iter(drawn.values())), tuple(classes) or ("0", "1")
        called = f"predicted, at threshold {first.threshold:.3f}"
        yield self.figure, plots.roc(drawn, subtitle)
        yield "plots/precision_recall.png", plots.precision_recall(first, subtitle)
        yield "plots/calibration.png", plots.calibration(first, subtitle, name=names[1])
        yield "plots/confusion.png", plots.confusion(first.confusion.matrix, subtitle, names, called)
        yield "plots/scores.png", plots.scores(first, subtitle, classes=names)

    def tables(self, evaluation: Any, classes: Sequence[str] = ()) -> dict[str, dict[str, list[Any]]]:
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
        self,
        predictions: Array,
        target: Any = None,
        *,
        threshold: float | None = None,
        edges: Sequence[float] | None = None,
    ) -> Binned:
        """Count scores in fine bins; called 1 at or above the threshold."""
        xp = module_of(predictions)

        def rows_of(chosen: Array) -> Counts:
            counts: Counts = to_host(xp.bincount(places[chosen], minlength=BINS))
            return counts.astype(np.int32)  # of one part: half the memory

        places = xp.minimum((predictions * BINS).astype(xp.int32), BINS - 1)
        called = predictions >= (self.threshold if threshold is None else threshold)
        found = Binned(
            rows_of(slice(None)), called=int(called.sum()), score_sum=float(predictions.sum(dtype=xp.float64))
        )
        if target is None or not bool((target >= 0).any()):
            return found
        positive, negative = target == 1, target == 0
        eps = float(np.finfo(predictions.dtype).eps)  # as scikit-learn clips
        right = xp.where(positive, predictions, 1 - predictions)[positive | negative].astype(xp.float64)
        return replace(
            found,
            positives=rows_of(positive),
            negatives=rows_of(negative),
            true_positives=int((called & positive).sum()),
            false_positives=int((called & negative).sum()),
            log_loss=-float(xp.log(xp.clip(right, eps, 1 - eps)).sum()),
            squares=float(((1 - right) ** 2).sum()),
        )

    def summary(self, sums: Binned) -> dict[str, float]:
        """Return the mean score and the share of rows called positive."""
        rows = int(sums.rows.sum())
        return {"mean": sums.score_sum / rows, "predicted_rate": sums.called / rows} if rows else {}

    def of_sums(self, sums: Binned, threshold: float | None = None) -> ClassificationEvaluation | None:
        """Evaluate the labelled rows; None where they are of fewer than two classes."""
        p_all, n_all = int(sums.positives.sum()), int(sums.negatives.sum())
        if not p_all or not n_all:
            return None
        used = np.flatnonzero(sums.positives + sums.negatives)
        p, n = sums.positives[used].astype(float), sums.negatives[used].astype(float)
        below, above = np.cumsum(p) - p, np.cumsum(n) - n  # positives and negatives in lower bins
        auc, interval = area_under(p, n)
        hits, alarms = p_all - below, n_all - above
        tp, fp = sums.true_positives, sums.false_positives
        of_metrics = Sums(
            auc=auc,
            precision=float((p * hits / (hits + alarms)).sum()),
            log_loss=sums.log_loss,
            squares=sums.squares,
            confusion=Confusion(n_all - fp, fp, p_all - tp, tp),
        )
        bins = len(sums.rows)
        edges = np.append(used / bins, math.inf)
        middles = (np.arange(bins) + 0.5) / bins
        return evaluation(
            of_metrics,
            interval,
            self.threshold if threshold is None else threshold,
            curves(np.append(below, p_all), np.append(above, n_all), lambda at: edges[at]),
            in_bins(sums.negatives, sums.positives, (sums.positives + sums.negatives) * middles),
            auc_resolution=sums.resolution,
        )

    def histogram(self, counted: Any) -> Any:
        """Return rows in fiftieths of the score."""
        if isinstance(counted, Binned):
            return coarse(counted.rows)
        return counted.histogram.negatives + counted.histogram.positives


def of_buckets(client: Any, buckets: Buckets, threshold: float | None) -> ClassificationEvaluation:
    """Evaluate sorted buckets at a threshold; None takes the lowest of highest accuracy."""
    whole, dtype = buckets.wholes[0], buckets.dtype
    tallies = _tallies(client, buckets)
    if threshold is None:
        return _evaluation(tallies, whole, dtype, *_most_accurate(tallies, whole, dtype))
    return _evaluation(tallies, whole, dtype, threshold, buckets.below(client, key_of(threshold, dtype)))


def _evaluation(
    tallies: Sequence[Tally], whole: Whole, dtype: str, threshold: float, below: tuple[int, int]
) -> ClassificationEvaluation:
    positives, negatives = whole.positives, whole.negatives
    found = added(tallies, but=("best", "vertices"))
    auc = found["area"] / (2 * positives * negatives)
    sums = Sums(
        auc=auc,
        precision=found["precision"],
        log_loss=found["log_loss"],
        squares=found["squares"],
        confusion=Confusion(below[1], negatives - below[1], below[0], positives - below[0]),
    )
    interval = delong(auc, positives, negatives, found["positive_misses"], found["negative_misses"])
    bins = in_bins(found["bin_rows"] - found["bin_positives"], found["bin_positives"], found["bin_scores"])
    return evaluation(sums, interval, threshold, _curves(tallies, whole, dtype), bins)


def _tallies(client: Any, buckets: Buckets) -> list[Tally]:
    """Return the sums of each bucket, by ascending score."""
    pairs = zip(buckets.futures, buckets.wholes, strict=True)
    found: list[Tally] = client.gather([client.submit(tally, f, whole, pure=False) for f, whole in pairs])
    return found


def _most_accurate(tallies: Sequence[Tally], whole: Whole, dtype: str) -> tuple[float, tuple[int, int]]:
    """Return the lowest threshold of highest accuracy, and the positives and negatives below it."""
    found = [t.best for t in tallies if t.best is not None]
    best = max(found, key=lambda candidate: candidate[0])
    if whole.negatives - whole.positives > best[0]:  # calling no row positive is better still
        top = float(np.nextafter(np.float32(1), np.float32(2)))
        return top, (whole.positives, whole.negatives)
    return score_of(best[1] & ~1, dtype), (best[2], best[3])


def _curves(tallies: Sequence[Tally], whole: Whole, dtype: str) -> tuple[Roc, PrecisionRecall]:
    top = [-1, whole.positives, whole.negatives]  # above the highest score: no row is called positive
    keys, below, above = np.asarray([*(vertex for t in tallies for vertex in t.vertices), top]).T

    def threshold_of(chosen: Any) -> Any:
        return np.asarray([math.inf if key < 0 else score_of(int(key), dtype) for key in keys[chosen]])

    return curves(below, above, threshold_of)
