"""How good predictions of rows without answers probably are, from rows of the training that had answers.

Of two classes: the test rows tell which share of the rows of each score was of class 1. Were that so of new rows too,
each would be a positive with that probability, which gives expected true and false positives at every threshold, and
so an AUC: confidence-based performance estimation, as in NannyML's documentation (nannyml.readthedocs.io, "Estimation
of Performance of the Monitored Model"). The shares are an isotonic regression (Zadrozny and Elkan 2002, Transforming
Classifier Scores into Accurate Multiclass Probability Estimates) over groups of equal size, with straight lines in log
odds between and beyond them. Of numbers: the mean squared error of test rows by their prediction, weighted by how many
new rows have such a prediction.

Both see that new rows are harder or easier than the test rows were. Neither can see that the same rows have other
answers than then (concept drift): only answers tell that.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tipcast.evaluation.classification import MIDDLES, Binned
from tipcast.evaluation.multiclass import ClassSums
from tipcast.evaluation.regression import Errors, RegressionEvaluation
from tipcast.evaluation.sums import Floats
from tipcast.evaluation.two_classes import CALIBRATION_BINS, ClassificationEvaluation, area_under, coarse

GROUPS, LEAST_GROUPS = 50, 5
"""Most and fewest groups of scores."""
GROUP_ROWS, GROUP_RARER = 100, 10
"""Rows, and rows of the rarer class, that there should be for each group."""


@dataclass(frozen=True)
class Estimated:
    """The headline of rows as it is expected, or as it is."""

    value: float
    rows: int
    low: float | None = None
    """Bounds of its 95 % interval: what may come by chance; None where it has none."""
    high: float | None = None
    details: Mapping[str, float] = field(default_factory=dict)
    """What else is known of the rows, as ``calibration_error``."""


# What training keeps of its test rows


def reference(evaluation: Any, split: str) -> dict[str, Any]:
    """Describe the rows of a split with answers that a model has not learnt from, fit for JSON.

    ``value`` is the headline, ``rows`` their number. Of two classes there are ``scores`` and ``rates`` of class 1
    (groups,), both in log odds, and the ``slope`` of the one over the other beyond the groups; of numbers ``predicted``
    (bins,), and ``squares`` and ``errors`` (bins,), mean squared and mean errors of such predictions.
    """
    told = {"split": split, "rows": evaluation.rows, "value": evaluation.headline}
    if isinstance(evaluation, ClassificationEvaluation):
        return {**told, **_rates(evaluation)}
    if isinstance(evaluation, RegressionEvaluation):
        rows = evaluation.joint.sum(axis=0)
        used = np.flatnonzero(rows)
        errors, squares = evaluation.moments[:, used] / rows[used]
        middles = ((evaluation.axis[:-1] + evaluation.axis[1:]) / 2)[used]
        return {**told, "predicted": middles.tolist(), "squares": squares.tolist(), "errors": errors.tolist()}
    return told


def _rates(evaluation: ClassificationEvaluation) -> dict[str, Any]:
    """Return the rate of class 1 in groups of scores that have about as many rows each, in log odds, see ``_at``."""
    from sklearn.isotonic import isotonic_regression  # half a second, which workers need not spend

    positives, negatives = evaluation.confusion.positives, evaluation.confusion.negatives
    roc = evaluation.roc
    hits, alarms = roc.tpr[::-1] * positives, roc.fpr[::-1] * negatives  # at or above each threshold, by rising score
    thresholds, below = roc.thresholds[::-1], positives + negatives - hits - alarms
    rows = positives + negatives
    groups = max(min(GROUPS, rows // GROUP_ROWS, min(positives, negatives) // GROUP_RARER), LEAST_GROUPS)
    cuts = np.unique(np.searchsorted(below, np.arange(1, groups) / groups * rows))
    cuts = cuts[(below[cuts] > 0) & np.isfinite(thresholds[cuts])]
    of_one = -np.diff(hits[cuts], prepend=positives, append=0)
    of_both = np.diff(below[cuts], prepend=0, append=rows)
    rates = isotonic_regression(of_one / of_both, sample_weight=of_both)
    rates = _log_odds(np.clip(rates, 0.5 / of_both, 1 - 0.5 / of_both))
    starts = np.append(0, cuts)
    middles = np.searchsorted(below, below[starts] + of_both / 2, side="right") - 1
    scores = _log_odds(np.clip(thresholds[np.maximum(middles, starts)], MIDDLES[0], MIDDLES[-1]))
    weights = of_both / (2 + np.exp(rates) + np.exp(-rates))  # rows x rate x (1 - rate), by the delta method
    apart = scores - np.average(scores, weights=weights)
    scatter = float(weights @ apart**2)
    slope = float((weights * apart) @ rates) / scatter if scatter else 1.0
    return {"scores": scores.tolist(), "rates": rates.tolist(), "slope": slope}


def _log_odds(shares: Floats) -> Floats:
    return np.log(shares / (1 - shares))


def _at(then: Mapping[str, Any], shares: Floats) -> Floats:
    """Return the rate of class 1 at scores: straight lines between groups, and beyond them, all in log odds."""
    known, rates = np.asarray(then["scores"]), np.asarray(then["rates"])
    scores = _log_odds(shares)
    beyond = scores - np.clip(scores, known[0], known[-1])
    found: Floats = 1 / (1 + np.exp(-np.interp(scores, known, rates) - then["slope"] * beyond))
    return found


# New rows


def of_known(sums: Any) -> Any:
    """Return the sums of the rows whose answer is known, as if there were no others; None where nothing tells."""
    if isinstance(sums, Binned):
        rows = sums.positives + sums.negatives
        return dataclasses.replace(sums, rows=rows) if rows.any() else None
    if isinstance(sums, Errors):
        return dataclasses.replace(sums, histogram=sums.known, scored=sums.rows) if sums.rows else None
    if isinstance(sums, ClassSums):
        return dataclasses.replace(sums, predicted=sums.confusion.sum(axis=0)) if sums.rows else None
    return None


def estimated(profile: Mapping[str, Any], sums: Any) -> Estimated | None:
    """Estimate the headline of all rows that were scored; None without a ``reference`` in the training's profile.

    ``sums`` are what the evaluator counted, or ``of_known`` of it.
    """
    then = profile.get("reference")
    if then and isinstance(sums, Binned) and sums.rows.any():
        return _of_classes(then, sums.rows)
    if then and isinstance(sums, Errors) and sums.histogram.any():
        return _of_values(then, np.asarray(profile["score"]["edges"]), sums.histogram)
    return None


def _of_classes(then: Mapping[str, Any], rows: Any) -> Estimated | None:
    positives = rows * _at(then, MIDDLES)
    if not 0 < positives.sum() < rows.sum():
        return None
    value, interval = area_under(positives, rows - positives)
    every = int(rows.sum())
    apart = np.abs(coarse(rows * MIDDLES - positives, CALIBRATION_BINS)).sum() / every
    details = {"positive_rate": float(positives.sum()) / every, "calibration_error": float(apart)}
    return Estimated(value, every, interval.low, interval.high, details)


def _of_values(then: Mapping[str, Any], edges: Floats, rows: Any) -> Estimated:
    middles, every = (edges[:-1] + edges[1:]) / 2, int(rows.sum())
    squares, bias = (float(rows @ np.interp(middles, then["predicted"], then[name])) for name in ("squares", "errors"))
    return Estimated(math.sqrt(squares / every), every, details={"bias": bias / every})


def measured(evaluation: Any) -> Estimated:
    """Return the headline as it is, of rows whose answer is known, with what ``estimated`` tells of others."""
    details = {name: evaluation.metrics[name] for name in ("bias", "positive_rate") if name in evaluation.metrics}
    if isinstance(evaluation, ClassificationEvaluation):
        details["calibration_error"] = evaluation.calibration.error
    interval = evaluation.interval
    return Estimated(evaluation.headline, evaluation.rows, interval.low, interval.high, details)
