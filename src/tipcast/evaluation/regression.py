"""Numbers: errors of predictions, summed part by part where the rows lie."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tipcast.compute.base import Array, module_of, to_host
from tipcast.datasets.counts import Counts
from tipcast.evaluation.base import Evaluation, Evaluator, Metric
from tipcast.evaluation.sums import Floats, Sums, mean_interval, select_good, sum_fields, values_of
from tipcast.tasks.kinds import REGRESSION

SAMPLE = 512
"""Rows of a part that the figure may show."""


@dataclass(frozen=True)
class RegressionSums(Sums):
    """Sums over rows whose target is known, error = prediction - target; ``score_sum`` is over all
    rows.
    """

    score_sum: float = 0.0
    error_sum: float = 0.0
    absolute: float = 0.0
    squares: float = 0.0
    fourths: float = 0.0
    """Sum of the errors' fourth powers, for the interval."""
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
        bias = trained.target_sum / trained.rows - sums.target_mean
        return {"rmse": math.sqrt(sums.target_scatter / sums.rows + bias * bias)}

    def count(
        self, predictions: Array, target: Array | None = None, *, threshold: float | None = None
    ) -> RegressionSums:
        """Sum the errors of rows whose target is not NaN."""
        predicted = values_of(predictions)
        xp = module_of(predicted)
        odd, (scores, targets) = select_good(xp.isfinite(predicted), predicted, target)
        scores = scores.astype(xp.float64)
        errors = RegressionSums(len(scores), odd, len(scores), float(scores.sum()))
        if targets is None:
            return errors
        finite = xp.isfinite(targets)
        if not bool(finite.any()):  # there is no largest error
            return errors

        unknown, (targets, scores) = select_good(finite, targets.astype(xp.float64), scores)
        error = scores - targets
        squares = error * error
        mean = float(targets.mean())
        step = -(-len(targets) // SAMPLE)

        return replace(
            errors,
            unknown=unknown,
            error_sum=float(error.sum()),
            absolute=float(xp.abs(error).sum()),
            squares=float(squares.sum()),
            fourths=float(xp.dot(squares, squares)),
            largest=math.sqrt(float(squares.max())),
            target_mean=mean,
            target_scatter=float(((targets - mean) ** 2).sum()),
            sample=to_host(xp.stack([targets[::step], scores[::step]], axis=1)),
        )

    def total(self, parts: Sequence[RegressionSums]) -> RegressionSums:
        """Return the sums of several parts; the scatter by equation 2.1 of Chan, Golub, LeVeque
        (1979).
        """
        parts = [RegressionSums(), *parts]
        rows = max(sum(part.rows for part in parts), 1)
        mean = math.fsum(part.rows * part.target_mean for part in parts) / rows
        scatter = math.fsum(
            part.target_scatter + part.rows * (part.target_mean - mean) ** 2 for part in parts
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
        """Evaluate the rows whose target is known; None if there are none."""
        if not sums.rows:
            return None

        r2 = 0.0
        if sums.target_scatter:
            r2 = 1 - sums.squares / sums.target_scatter
        metrics = {
            "rmse": math.sqrt(sums.squares / sums.rows),
            "mae": sums.absolute / sums.rows,
            "r2": r2,
            "bias": sums.error_sum / sums.rows,
            "max_error": sums.largest,
        }
        interval = mean_interval(sums.rows, sums.squares, sums.fourths, root=True)
        return Evaluation(metrics, interval, sums)
