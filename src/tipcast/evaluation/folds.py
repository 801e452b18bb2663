"""Metrics of the folds of a cross-validation: their mean, and its standard error."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tipcast.evaluation import evaluator_of
from tipcast.evaluation.base import OWN
from tipcast.tasks.kinds import Kind


@dataclass(frozen=True)
class FoldMetrics:
    """Metrics that each fold's model has on the rows that it has not learned from."""

    values: Mapping[str, Sequence[float]]
    """Metric -> its value in each fold, in order; the headline first."""

    @property
    def means(self) -> dict[str, float]:
        """Metric -> mean over the folds; NaN for a metric that is NaN in one."""
        with np.errstate(invalid="ignore"):  # of both infinities
            return {name: float(np.mean(values)) for name, values in self.values.items()}

    @property
    def errors(self) -> dict[str, float]:
        """Metric -> standard error of the mean: the sample standard deviation of the folds' values
        over the root of their number.

        The folds' training rows overlap, so that it is too small rather than too large. It is NaN
        for a metric that is not finite in each fold.
        """
        with np.errstate(invalid="ignore"):
            return {
                name: float(np.std(values, ddof=1)) / math.sqrt(len(values))
                for name, values in self.values.items()
                if len(values) > 1
            }

    def curves(self) -> dict[str, dict[int, float]]:
        """Return the metrics by their keys in MLflow: each fold is a step, from 1."""
        return {f"folds/{name}": dict(enumerate(values, 1)) for name, values in self.values.items()}

    def summary(self) -> dict[str, float]:
        """Return means and standard errors by the names that metrics of validation rows have."""
        return self.means | {f"{name}_se": value for name, value in self.errors.items()}


def fold_metrics(kind: Kind, metrics_of_folds: Sequence[Mapping[str, float]]) -> FoldMetrics:
    """Collect the metrics of a kind's evaluator, and those of users, of all folds.

    A fold without metrics, as one whose predictions are not finite, leaves none.
    """
    metrics = (*evaluator_of(kind).metrics, *OWN[kind.name])
    names = [metric.name for metric in metrics]
    if not all(metrics_of_folds):
        names = []
    return FoldMetrics({name: [fold[name] for fold in metrics_of_folds] for name in names})


def better_folds(chosen: Sequence[float], other: Sequence[float], *, maximize: bool) -> int:
    """Return in how many folds the first values are better than the second ones."""
    pairs = zip(chosen, other, strict=True)
    if maximize:
        return sum(first > second for first, second in pairs)
    return sum(first < second for first, second in pairs)
