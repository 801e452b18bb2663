"""Two classes counted in fine score bins while rows are scored: memory does not grow with them, and none is kept.

`classification` is exact and keeps a key of each row. Here rows in one bin of 1/20,000 count as tied; log loss, Brier
score, the mean and what depends on the threshold are exact all the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from tipcast.compute.base import Array, module_of, to_host
from tipcast.evaluation.sums import Interval, added
from tipcast.evaluation.two_classes import (
    ClassificationEvaluation,
    Confusion,
    Sums,
    curves,
    delong,
    in_bins,
    metrics,
)

BINS = 20_000
"""Equal-width bins: a multiple of those that plots and tables have."""
MIDDLES = (np.arange(BINS) + 0.5) / BINS
COUNTED = ("rows", "positives", "negatives")
Counts = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Binned:
    """Sums over rows, on the host. Each labelled row is counted in ``rows`` too."""

    rows: Counts
    """(BINS,) all rows that have a score."""
    positives: Counts
    """(BINS,) rows labelled 1, and below those labelled 0."""
    negatives: Counts
    called: int
    """All rows with a score at or above the threshold."""
    true_positives: int
    false_positives: int
    log_loss: float
    squares: float
    score_sum: float
    """Of all rows."""


def count(scores: Array, labels: Array | None, threshold: float) -> Binned:
    """Count a part's (rows,) P(1) and labels, -1 or None where not known; called 1 at or above the threshold."""
    xp = module_of(scores)
    bins = xp.minimum((scores * BINS).astype(xp.int32), BINS - 1)
    called = scores >= threshold
    nothing = np.zeros(BINS, dtype=np.int32)
    rows, added = _counted(bins, xp), float(scores.sum(dtype=xp.float64))
    if labels is None or not bool((labels >= 0).any()):
        return Binned(rows, nothing, nothing, int(called.sum()), 0, 0, 0.0, 0.0, added)
    positive, negative = labels == 1, labels == 0
    eps = float(np.finfo(scores.dtype).eps)  # as scikit-learn clips
    right = xp.where(positive, scores, 1 - scores)[positive | negative].astype(xp.float64)
    return Binned(
        rows=rows,
        positives=_counted(bins[positive], xp),
        negatives=_counted(bins[negative], xp),
        called=int(called.sum()),
        true_positives=int((called & positive).sum()),
        false_positives=int((called & negative).sum()),
        log_loss=-float(xp.log(xp.clip(right, eps, 1 - eps)).sum()),
        squares=float(((1 - right) ** 2).sum()),
        score_sum=added,
    )


def _counted(bins: Array, xp: Any) -> Counts:
    found: Counts = to_host(xp.bincount(bins, minlength=BINS)).astype(np.int32)  # of one part: half the memory
    return found


def total(parts: Sequence[Binned]) -> Binned:
    """Return the sums of several parts."""
    nothing = np.zeros(BINS, dtype=np.int64)
    counts: dict[str, Any] = {name: sum((getattr(part, name) for part in parts), nothing) for name in COUNTED}
    return Binned(**counts, **added(parts, [each.name for each in fields(Binned) if each.name not in COUNTED]))


def resolution(found: Binned) -> float:
    """Return how far the AUC can be from the exact one: half the share of pairs whose rows are in one bin."""
    pairs = float(found.positives.sum()) * float(found.negatives.sum())
    return float((found.positives * found.negatives).sum()) / (2 * pairs)


def area_under(p: Counts, n: Counts) -> tuple[float, Interval]:
    """Return the AUC of (bins,) rows of each class by rising score, counted or expected, and DeLong's interval."""
    p_all, n_all = p.sum(), n.sum()
    below, above = np.cumsum(p) - p, np.cumsum(n) - n
    auc = float((p * (2 * above + n)).sum() / (2 * p_all * n_all))
    missed = float((p * (1 - (above + n / 2) / n_all) ** 2).sum()), float((n * ((below + p / 2) / p_all) ** 2).sum())
    return auc, delong(auc, p_all, n_all, *missed)


def evaluation(found: Binned, threshold: float) -> ClassificationEvaluation | None:
    """Evaluate the labelled rows; None where they are of fewer than two classes."""
    p_all, n_all = int(found.positives.sum()), int(found.negatives.sum())
    if not p_all or not n_all:
        return None
    used = np.flatnonzero(found.positives + found.negatives)
    p, n = found.positives[used].astype(float), found.negatives[used].astype(float)
    below, above = np.cumsum(p) - p, np.cumsum(n) - n  # positives and negatives in lower bins
    auc, interval = area_under(p, n)
    hits, alarms = p_all - below, n_all - above
    tp, fp = found.true_positives, found.false_positives
    sums = Sums(
        auc=auc,
        precision=float((p * hits / (hits + alarms)).sum()),
        log_loss=found.log_loss,
        squares=found.squares,
        confusion=Confusion(n_all - fp, fp, p_all - tp, tp),
    )
    edges = np.append(used / BINS, math.inf)
    area = np.append(0.0, np.cumsum(p * (2 * above + n))) / (2 * p_all * n_all)
    roc, precision_recall = curves(np.append(below, p_all), np.append(above, n_all), area, lambda at: edges[at])
    calibration, histogram = in_bins(found.negatives, found.positives, (found.positives + found.negatives) * MIDDLES)
    return ClassificationEvaluation(
        metrics={"auc": auc, "auc_resolution": resolution(found), **metrics(sums)},
        interval=interval,
        threshold=threshold,
        confusion=sums.confusion,
        roc=roc,
        precision_recall=precision_recall,
        calibration=calibration,
        histogram=histogram,
    )
