"""Exact metrics, curves and bins of scores and labels that stay on the workers, at any number of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tipcast.evaluation.buckets import Buckets, fill
from tipcast.evaluation.counts import BINS, Tally, Whole, tally
from tipcast.evaluation.curve import thin
from tipcast.evaluation.interval import delong
from tipcast.evaluation.keys import classes_below, key_of, score_of, sort_keys
from tipcast.evaluation.result import (
    CALIBRATION_BINS,
    HISTOGRAM_BINS,
    Auc,
    Calibration,
    Confusion,
    Evaluation,
    Histogram,
    PrecisionRecall,
    Roc,
)


def evaluate(
    client: Any,
    scores: Sequence[Any],
    labels: Sequence[Any],
    *,
    threshold: float | None,
    masks: Sequence[Any] | None = None,
    where: str = "scores",
) -> Evaluation:
    """Evaluate scores against labels, exactly, without bringing rows to the driver.

    Parameters
    ----------
    client
        A ``distributed.Client``.
    scores
        Futures of (rows,) float32 or float64 arrays or Series, P(1) in 0..1, all of one dtype.
    labels
        Futures of (rows,) integer arrays or Series of 0 and 1, in the same order.
    threshold
        Scores at or above it are called positive; None takes the lowest threshold of highest accuracy.
    masks
        Futures of (rows,) arrays; rows count where the mask is 1 (True). None takes all rows.
    where
        The data's name in error messages.

    Raises
    ------
    TipcastError
        D014 no rows; D015 one class only; D030 scores that are no probabilities; D031 labels other than 0 and 1.

    """
    return measure(client, fill(client, scores, labels, masks, where), threshold)


def auc(
    client: Any, scores: Sequence[Any], labels: Sequence[Any], masks: Sequence[Any] | None = None, where: str = "scores"
) -> Auc:
    """Return the exact AUC with DeLong's 95 % interval, of all rows or those where the mask is 1; see ``evaluate``."""
    buckets = fill(client, scores, labels, masks, where)
    return _auc(_tallies(client, buckets, details=False), buckets.wholes[0])


def measure(client: Any, buckets: Buckets, threshold: float | None) -> Evaluation:
    """Evaluate sorted buckets; see ``evaluate``."""
    whole, dtype = buckets.wholes[0], buckets.dtype
    tallies = _tallies(client, buckets, details=True)
    if threshold is None:
        return _evaluation(tallies, whole, dtype, *_most_accurate(tallies, whole, dtype))
    return _evaluation(tallies, whole, dtype, threshold, buckets.below(client, key_of(threshold, dtype)))


def evaluate_here(scores: Any, labels: Any) -> Evaluation:
    """Evaluate scores and labels of this process, unchecked, at the most accurate threshold; see ``evaluate``."""
    keys = sort_keys(scores, labels)
    positives, negatives = classes_below(keys)
    whole = Whole(positives, negatives, 0, 0)
    tallies = [tally(keys, whole)]
    return _evaluation(tallies, whole, str(keys.dtype), *_most_accurate(tallies, whole, str(keys.dtype)))


def _evaluation(
    tallies: Sequence[Tally], whole: Whole, dtype: str, threshold: float, below: tuple[int, int]
) -> Evaluation:
    area = _auc(tallies, whole)
    confusion = Confusion(below[1], whole.negatives - below[1], below[0], whole.positives - below[0])
    roc, precision_recall = _curves(tallies, whole, dtype)
    return Evaluation(
        metrics=_metrics(tallies, area, confusion),
        auc_interval=area.interval,
        threshold=threshold,
        confusion=confusion,
        roc=roc,
        precision_recall=precision_recall,
        calibration=_calibration(tallies),
        histogram=_histogram(tallies),
    )


def _tallies(client: Any, buckets: Buckets, details: bool) -> list[Tally]:
    """Return the sums of each bucket, by ascending score."""
    pairs = zip(buckets.futures, buckets.wholes, strict=True)
    found: list[Tally] = client.gather([client.submit(tally, f, whole, details, pure=False) for f, whole in pairs])
    return found


def _auc(tallies: Sequence[Tally], whole: Whole) -> Auc:
    positives, negatives = whole.positives, whole.negatives
    value = sum(t.area for t in tallies) / (2 * positives * negatives)
    misses = (math.fsum(t.positive_misses for t in tallies), math.fsum(t.negative_misses for t in tallies))
    return Auc(value, delong(value, positives, negatives, *misses), positives + negatives, positives)


def _most_accurate(tallies: Sequence[Tally], whole: Whole, dtype: str) -> tuple[float, tuple[int, int]]:
    """Return the lowest threshold of highest accuracy, and the positives and negatives below it."""
    found = [t.best for t in tallies if t.best is not None]
    best = max(found, key=lambda candidate: candidate[0])
    if whole.negatives - whole.positives > best[0]:  # calling no row positive is better still
        top = float(np.nextafter(np.float32(1), np.float32(2)))
        return top, (whole.positives, whole.negatives)
    return score_of(best[1] & ~1, dtype), (best[2], best[3])


def _metrics(tallies: Sequence[Tally], area: Auc, confusion: Confusion) -> dict[str, float]:
    hits, calls = confusion.true_positives, confusion.true_positives + confusion.false_positives
    return {
        "auc": area.value,
        "average_precision": math.fsum(t.precision for t in tallies) / area.positives,
        "log_loss": math.fsum(t.log_loss for t in tallies) / area.rows,
        "brier": math.fsum(t.squares for t in tallies) / area.rows,
        "accuracy": (hits + confusion.true_negatives) / area.rows,
        "precision": hits / calls if calls else 0.0,
        "recall": hits / area.positives,
        "f1": 2 * hits / (calls + area.positives),
        "positive_rate": area.positives / area.rows,
        "rows": float(area.rows),
    }


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
    tops = np.asarray(columns[1]) + np.asarray(columns[2])
    _, kept = np.unique(tops, return_index=True)
    below, above, areas = (np.asarray(column)[kept] for column in columns[1:])
    chosen = thin(above / whole.negatives, below / whole.positives, areas / (2 * whole.positives * whole.negatives))
    chosen = chosen[::-1]
    hits, alarms = whole.positives - below[chosen], whole.negatives - above[chosen]
    picked = [columns[0][i] for i in kept[chosen]]
    thresholds = np.asarray([math.inf if key < 0 else score_of(key, dtype) for key in picked])
    roc = Roc(alarms / whole.negatives, hits / whole.positives, thresholds)
    hits, calls = hits[1:], (hits + alarms)[1:]
    return roc, PrecisionRecall(hits / whole.positives, hits / calls, thresholds[1:])


def _bins(tallies: Sequence[Tally], number: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Return rows, positives and sum of scores in ``number`` equal-width bins."""
    fine = (sum(t.bin_rows for t in tallies), sum(t.bin_positives for t in tallies), sum(t.bin_scores for t in tallies))
    return tuple(np.asarray(values).reshape(number, BINS // number).sum(axis=1) for values in fine)


def _calibration(tallies: Sequence[Tally]) -> Calibration:
    rows, positives, scores = _bins(tallies, CALIBRATION_BINS)
    some = np.where(rows > 0, rows, 1)
    mean, rate = (np.where(rows > 0, values / some, np.nan) for values in (scores, positives))
    return Calibration(mean, rate, rows)


def _histogram(tallies: Sequence[Tally]) -> Histogram:
    rows, positives, _ = _bins(tallies, HISTOGRAM_BINS)
    return Histogram(np.linspace(0, 1, HISTOGRAM_BINS + 1), rows - positives, positives)
