"""Numbers: errors of predictions, summed part by part where the rows lie."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tipcast.compute.base import Array, module_of, to_host
from tipcast.datasets.counts import Counts
from tipcast.evaluation.base import Evaluation, Evaluator, Metric
from tipcast.evaluation.sums import (
    Floats,
    Sums,
    select_good,
    sum_fields,
    values_of,
    weight_sums,
    weighted_mean_sums,
    weighted_rows,
)
from tipcast.tasks.kinds import REGRESSION

SAMPLE = 512
"""Rows of a part that the figure may show."""


@dataclass(frozen=True)
class RegressionSums(Sums):
    """Sums over rows whose target is known, error = prediction - target, each times the row's
    weight; ``score_sum`` is over all rows, without weights.
    """

    score_sum: float = 0.0
    error_sum: float = 0.0
    absolute: float = 0.0
    squares: float = 0.0
    fourths: float = 0.0
    """Sum of the errors' fourth powers, for the interval; these are times the squared weights."""
    mixed: float = 0.0
    """Sum of the squared errors times the squared weights; 0 without weights."""
    largest: float = 0.0
    target_mean: float = 0.0
    target_scatter: float = 0.0
    """Sum of the targets' squared distances from their mean."""
    sample: Floats = field(default_factory=lambda: np.empty((0, 2)))
    """(rows, 2) target and prediction of some rows."""


def squared_error(predictions: Array, target: Array) -> Array:
    """Return (rows,) squared errors in float64."""
    error = predictions.astype("float64") - target
    return error * error


def error_sums(scores: Array, targets: Array, weights: Array | None) -> dict[str, Any]:
    """Return the fields of ``RegressionSums`` that rows with a known target decide.

    All arrays are (rows,) float64; the weights are above 0, or None.
    """
    xp = module_of(scores)
    error = scores - targets
    squares = error * error
    step = -(-len(targets) // SAMPLE)
    unsummed = {
        "largest": math.sqrt(float(squares.max())),
        "sample": to_host(xp.stack([targets[::step], scores[::step]], axis=1)),
    }

    if weights is None:
        mean = float(targets.mean())
        return unsummed | {
            "error_sum": float(error.sum()),
            "absolute": float(xp.abs(error).sum()),
            "squares": float(squares.sum()),
            "fourths": float(xp.dot(squares, squares)),
            "target_mean": mean,
            "target_scatter": float(((targets - mean) ** 2).sum()),
        }

    *_, total, mixed, fourths = weighted_mean_sums(squares, weights)
    mean = float(xp.dot(weights, targets) / weights.sum())
    return unsummed | {
        "error_sum": float(xp.dot(weights, error)),
        "absolute": float(xp.dot(weights, xp.abs(error))),
        "squares": total,
        "mixed": mixed,
        "fourths": fourths,
        "target_mean": mean,
        "target_scatter": float(xp.dot(weights, (targets - mean) ** 2)),
    }


class Regression(Evaluator):
    """Compares (rows,) values with a float target."""

    kind = REGRESSION
    sums = RegressionSums
    metrics = (
        Metric("rmse", False, label="RMSE"),
        Metric("mae", False),
        Metric("r2", True),
        Metric("bias", False, ranks=False),
        Metric("max_error", False),
    )
    plots = ("predicted",)
    loss = staticmethod(squared_error)
    root = True

    def baseline(self, evaluation: Evaluation, trained: Counts, tested: Counts) -> dict[str, float]:
        """Return the RMSE of the training rows' mean."""
        sums = evaluation.sums
        bias = trained.target_mean - sums.target_mean
        return {"rmse": math.sqrt(sums.target_scatter / sums.weight + bias * bias)}

    def count(
        self,
        predictions: Array,
        target: Array | None = None,
        weights: Array | None = None,
        *,
        threshold: float | None = None,
    ) -> RegressionSums:
        """Sum the errors of rows whose target is not NaN."""
        predicted = values_of(predictions)
        xp = module_of(predicted)
        good = xp.isfinite(predicted)
        odd, (scores, targets, weights) = select_good(good, predicted, target, weights)
        scores = scores.astype(xp.float64)
        rows = len(scores)
        sums = RegressionSums(rows, odd, rows, score_sum=float(scores.sum()))
        if targets is None:
            return sums

        finite = xp.isfinite(targets)
        columns = (targets.astype(xp.float64), scores, weights)
        unknown, (targets, scores, weights) = select_good(finite, *columns)
        weights, targets, scores = weighted_rows(weights, targets, scores)
        sums = replace(sums, unknown=unknown)
        if weights is not None:
            sums = replace(sums, weights=weight_sums(weights))
        if not len(targets):  # there is no largest error
            return sums
        return replace(sums, **error_sums(scores, targets, weights))

    def total(self, parts: Sequence[RegressionSums]) -> RegressionSums:
        """Return the sums of several parts; the scatter by equation 2.1 of Chan, Golub, LeVeque
        (1979).
        """
        parts = [RegressionSums(), *parts]
        weight = sum(part.weight for part in parts) or 1
        mean = math.fsum(part.weight * part.target_mean for part in parts) / weight
        scatter = math.fsum(
            part.target_scatter + part.weight * (part.target_mean - mean) ** 2 for part in parts
        )
        not_added: dict[str, Any] = {
            "target_mean": mean,
            "target_scatter": scatter,
            "largest": max(part.largest for part in parts),
            "sample": np.concatenate([part.sample for part in parts]),
        }

        return RegressionSums(**sum_fields(parts, but=not_added), **not_added)

    def summary(self, sums: RegressionSums, classes: Sequence[str] = ()) -> dict[str, float]:
        """Return the mean prediction."""
        if not sums.scored:
            return {}
        return {"mean": sums.score_sum / sums.scored}

    def of_sums(self, sums: RegressionSums, threshold: float | None = None) -> Any:
        """Evaluate the rows whose target is known; None if there are none that count."""
        if not sums.counted:
            return None

        r2 = 0.0
        if sums.target_scatter:
            r2 = 1 - sums.squares / sums.target_scatter
        metrics = {
            "rmse": math.sqrt(sums.squares / sums.weight),
            "mae": sums.absolute / sums.weight,
            "r2": r2,
            "bias": sums.error_sum / sums.weight,
            "max_error": sums.largest,
        }
        interval = sums.mean_interval(sums.squares, sums.fourths, sums.mixed, root=True)
        return Evaluation(metrics, interval, sums)
