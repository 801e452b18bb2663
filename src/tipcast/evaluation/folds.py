"""Metrics of the folds of a cross-validation: their mean, and its standard error."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class FoldMetrics:
    """Metrics that each fold's model has on the rows that it has not learned from."""

    values: Mapping[str, Sequence[float]]
    """Metric -> its value in each fold, in order; the headline first."""

    @classmethod
    def of(cls, names: Sequence[str], metrics_of_folds: Sequence[Mapping[str, float]]) -> Self:
        """Collect some metrics of all folds."""
        return cls({name: [metrics[name] for metrics in metrics_of_folds] for name in names})

    @property
    def means(self) -> dict[str, float]:
        """Metric -> mean over the folds."""
        return {name: statistics.fmean(values) for name, values in self.values.items()}

    @property
    def errors(self) -> dict[str, float]:
        """Metric -> standard error of the mean: the sample standard deviation of the folds' values
        over the root of their number.

        The folds' training rows overlap, so that it is too small rather than too large.
        """
        return {
            name: statistics.stdev(values) / math.sqrt(len(values))
            for name, values in self.values.items()
            if len(values) > 1
        }

    def curves(self) -> dict[str, dict[int, float]]:
        """Return the metrics by their keys in MLflow: each fold is a step, from 1."""
        return {f"folds/{name}": dict(enumerate(values, 1)) for name, values in self.values.items()}

    def summary(self) -> dict[str, float]:
        """Return means and standard errors by the names that metrics of validation rows have."""
        return self.means | {f"{name}_se": value for name, value in self.errors.items()}


def better(chosen: Sequence[float], other: Sequence[float], *, maximize: bool) -> int:
    """Return in how many folds the first values are better than the second ones."""
    pairs = zip(chosen, other, strict=True)
    if maximize:
        return sum(first > second for first, second in pairs)
    return sum(first < second for first, second in pairs)
