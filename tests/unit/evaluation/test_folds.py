"""Metrics of folds: means and standard errors, of values that are not finite too."""

import math

import pytest

from tipcast.evaluation.folds import FoldMetrics


def test_the_error_of_a_mean_is_the_deviation_over_the_root_of_the_folds() -> None:
    metrics = FoldMetrics({"auc": [0.5, 0.7, 0.9]})
    assert metrics.summary() == pytest.approx({"auc": 0.7, "auc_se": 0.2 / math.sqrt(3)})


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([1.0, math.nan, 3.0], math.nan),
        ([1.0, math.inf, 3.0], math.inf),
        ([1.0, math.inf, -math.inf], math.nan),
    ],
)
def test_the_error_of_a_metric_that_is_not_finite_is_nan(values: list[float], mean: float) -> None:
    metrics = FoldMetrics({"cost": values})
    assert metrics.means["cost"] == pytest.approx(mean, nan_ok=True)
    assert math.isnan(metrics.errors["cost"])
