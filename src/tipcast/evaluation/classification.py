"""Two classes: exact metrics, curves and bins of scores and labels that stay on the workers, at any number of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from tipcast.compute.base import Array
from tipcast.evaluation import binned, paired
from tipcast.evaluation.base import Estimate, Evaluator
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
from tipcast.evaluation.sums import Parts
from tipcast.evaluation.two_classes import (
    METRICS,
    ClassificationEvaluation,
    Confusion,
    PrecisionRecall,
    Roc,
    Sums,
    coarse,
    curves,
    delong,
    in_bins,
    metrics,
)


@final
class Classification(Evaluator):
    """Judges (rows,) P(1) against labels 0 and 1."""

    kind = "classification"
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

    def _estimate(self, parts: Parts) -> Estimate:
        """Return the exact AUC with DeLong's 95 % interval."""
        buckets = fill(parts)
        return _auc(_tallies(parts.client, buckets, details=False), buckets.wholes[0])

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
            tally(keys, Whole(positives, negatives, 0, 0), details=True)

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

    def lead(self, drawn: Mapping[str, Any], subtitle: str, classes: Sequence[str] = ()) -> bytes:
        """Draw the ROC curves, the first in front."""
        from tipcast.evaluation import plots  # Matplotlib takes half a second, which workers need not spend

        return plots.roc(drawn, subtitle)

    def figures(self, evaluation: Any, subtitle: str, classes: Sequence[str] = ()) -> dict[str, bytes]:
        """Draw precision against recall, calibration, confusion and scores by class."""
        from tipcast.evaluation import plots

        names = tuple(classes) or ("0", "1")
        called = f"predicted, at threshold {evaluation.threshold:.3f}"
        return {
            "plots/precision_recall.png": plots.precision_recall(evaluation, subtitle),
            "plots/calibration.png": plots.calibration(evaluation, subtitle, name=names[1]),
            "plots/confusion.png": plots.confusion(evaluation.confusion.matrix, subtitle, names, called),
            "plots/scores.png": plots.scores(evaluation, subtitle, classes=names),
        }

    def tables(self, evaluation: Any, classes: Sequence[str] = ()) -> dict[str, dict[str, list[Any]]]:
        """Return the ROC's points."""
        roc = evaluation.roc
        columns = {"fpr": roc.fpr.tolist(), "tpr": roc.tpr.tolist(), "threshold": roc.thresholds.tolist()}
        return {"tables/roc.json": columns}

    def remark(self, evaluation: Any, *, chosen: bool) -> str:
        """Return at which threshold rows are called positive."""
        basis = "the most accurate one on validation rows" if chosen else "set beforehand"
        at = f"at threshold {evaluation.threshold:.4f}, {basis}"
        return f"Accuracy, precision, recall and f1 {at}. {self.interval_remark}"

    def count(
        self, predictions: Array, target: Any = None, *, threshold: float | None = None, **_: Any
    ) -> binned.Binned:
        """Count scores in fine bins, see ``binned``."""
        return binned.count(predictions, target, self.threshold if threshold is None else threshold)

    def total(self, parts: Sequence[binned.Binned]) -> binned.Binned:
        """Return the sums of several parts."""
        return binned.total(parts)

    def summary(self, sums: binned.Binned) -> dict[str, float]:
        """Return the mean score and the share of rows called positive."""
        rows = int(sums.rows.sum())
        return {"mean": sums.score_sum / rows, "predicted_rate": sums.called / rows} if rows else {}

    def of_sums(self, sums: binned.Binned, threshold: float | None = None) -> ClassificationEvaluation | None:
        """Evaluate the labelled rows; None where they are of fewer than two classes."""
        return binned.evaluation(sums, self.threshold if threshold is None else threshold)

    def histogram(self, counted: Any) -> Any:
        """Return rows in fiftieths of the score."""
        if isinstance(counted, binned.Binned):
            return coarse(counted.rows)
        return counted.histogram.negatives + counted.histogram.positives

    def edges(self, evaluation: ClassificationEvaluation) -> list[float]:
        """Return fiftieths."""
        edges: list[float] = evaluation.histogram.edges.tolist()
        return edges


def of_buckets(client: Any, buckets: Buckets, threshold: float | None) -> ClassificationEvaluation:
    """Evaluate sorted buckets at a threshold; None takes the lowest of highest accuracy."""
    whole, dtype = buckets.wholes[0], buckets.dtype
    tallies = _tallies(client, buckets, details=True)
    if threshold is None:
        return _evaluation(tallies, whole, dtype, *_most_accurate(tallies, whole, dtype))
    return _evaluation(tallies, whole, dtype, threshold, buckets.below(client, key_of(threshold, dtype)))


def _evaluation(
    tallies: Sequence[Tally], whole: Whole, dtype: str, threshold: float, below: tuple[int, int]
) -> ClassificationEvaluation:
    area = _auc(tallies, whole)
    confusion = Confusion(below[1], whole.negatives - below[1], below[0], whole.positives - below[0])
    sums = Sums(
        auc=area.value,
        precision=math.fsum(t.precision for t in tallies),
        log_loss=math.fsum(t.log_loss for t in tallies),
        squares=math.fsum(t.squares for t in tallies),
        confusion=confusion,
    )
    roc, precision_recall = _curves(tallies, whole, dtype)
    rows, positives, scores = (
        sum(getattr(t, name) for t in tallies) for name in ("bin_rows", "bin_positives", "bin_scores")
    )
    calibration, histogram = in_bins(rows - positives, positives, scores)
    return ClassificationEvaluation(
        metrics=metrics(sums),
        interval=area.interval,
        threshold=threshold,
        confusion=confusion,
        roc=roc,
        precision_recall=precision_recall,
        calibration=calibration,
        histogram=histogram,
    )


def _tallies(client: Any, buckets: Buckets, details: bool) -> list[Tally]:
    """Return the sums of each bucket, by ascending score."""
    pairs = zip(buckets.futures, buckets.wholes, strict=True)
    found: list[Tally] = client.gather([client.submit(tally, f, whole, details, pure=False) for f, whole in pairs])
    return found


def _auc(tallies: Sequence[Tally], whole: Whole) -> Estimate:
    positives, negatives = whole.positives, whole.negatives
    value = sum(t.area for t in tallies) / (2 * positives * negatives)
    misses = (math.fsum(t.positive_misses for t in tallies), math.fsum(t.negative_misses for t in tallies))
    return Estimate(value, delong(value, positives, negatives, *misses), positives + negatives)


def _most_accurate(tallies: Sequence[Tally], whole: Whole, dtype: str) -> tuple[float, tuple[int, int]]:
    """Return the lowest threshold of highest accuracy, and the positives and negatives below it."""
    found = [t.best for t in tallies if t.best is not None]
    best = max(found, key=lambda candidate: candidate[0])
    if whole.negatives - whole.positives > best[0]:  # calling no row positive is better still
        top = float(np.nextafter(np.float32(1), np.float32(2)))
        return top, (whole.positives, whole.negatives)
    return score_of(best[1] & ~1, dtype), (best[2], best[3])


def _curves(tallies: Sequence[Tally], whole: Whole, dtype: str) -> tuple[Roc, PrecisionRecall]:
    columns: list[list[int]] = [[], [], [], []]
    area = 0
    for t in tallies:
        for column, values in zip(columns[:3], t.vertices[:3], strict=True):
            column.extend(values)
        columns[3].extend(area + value for value in t.vertices[3])
        area += t.area
    for column, value in zip(columns, (-1, whole.positives, whole.negatives, area), strict=True):
        column.append(value)  # above the highest score: no row is called positive
    _, kept = np.unique(np.asarray(columns[1]) + np.asarray(columns[2]), return_index=True)
    below, above, areas = (np.asarray(column)[kept] for column in columns[1:])

    def threshold_of(chosen: Any) -> Any:
        picked = [columns[0][i] for i in kept[chosen]]
        return np.asarray([math.inf if key < 0 else score_of(key, dtype) for key in picked])

    return curves(below, above, areas / (2 * whole.positives * whole.negatives), threshold_of)
