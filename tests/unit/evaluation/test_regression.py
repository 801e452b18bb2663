"""Regression metrics against scikit-learn, their interval, and what the figure shows."""

import numpy as np
import pytest
from distributed import Client
from sklearn import metrics as reference
from tests.conftest import spread

from tipcast.evaluation.regression import SAMPLE, Regression
from tipcast.evaluation.sums import Interval, PartedColumns

EVALUATOR = Regression()


def rows(count: int = 5000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    r = np.random.default_rng(seed)
    targets = r.gamma(2.0, 3.0, count)
    return (targets + r.normal(0.2, 1 + 0.1 * targets)).astype(np.float32), targets.astype(
        np.float32
    )


def test_equals_scikit_learn(client: Client) -> None:
    predicted, targets = rows()
    found = EVALUATOR.evaluate(client, spread(client, predicted), spread(client, targets))
    p = predicted.astype(float)
    t = targets.astype(float)
    expected = {
        "rmse": reference.root_mean_squared_error(t, p),
        "mae": reference.mean_absolute_error(t, p),
        "r2": reference.r2_score(t, p),
        "bias": np.mean(p - t),
        "max_error": reference.max_error(t, p),
    }
    assert found.metrics == pytest.approx(expected, rel=1e-11)
    assert found.rows == 5000
    assert 0 < len(found.sums.sample) <= 4 * SAMPLE
    assert set(map(tuple, found.sums.sample)) <= set(
        zip(targets.tolist(), predicted.tolist(), strict=True)
    )
    same = np.full(10, 3.0, dtype=np.float32)
    constant = {"rmse": 0, "mae": 0, "r2": 0, "bias": 0, "max_error": 0}
    assert EVALUATOR.evaluate_here(same, same).metrics == constant


def test_r2_of_targets_far_from_zero() -> None:
    predicted, targets = (values.astype(float) + 1e8 for values in rows())
    found = EVALUATOR.total([EVALUATOR.count(predicted[at::3], targets[at::3]) for at in range(3)])
    evaluation = EVALUATOR.of_sums(found)
    assert evaluation is not None
    assert evaluation.metrics["r2"] == pytest.approx(
        reference.r2_score(targets, predicted), rel=1e-9
    )


def test_the_interval_covers_the_truth_nineteen_times_in_twenty() -> None:
    # of normal errors with mean 0.2 and deviation 1
    true_rmse = np.sqrt(1 + 0.2**2)
    hits = 0
    for seed in range(400):
        found = EVALUATOR.evaluate_here(
            np.random.default_rng(seed).normal(0.2, 1, 300), np.zeros(300)
        ).interval
        hits += found.low <= true_rmse <= found.high
    assert 365 <= hits <= 393


def two_models(r: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return predictions of two models that share most of their errors, the first of which is
    worse, and the targets.
    """
    targets = r.normal(0, 3, 800)
    second = targets + r.normal(0, 1, 800)
    first = second + r.normal(0, 0.5, 800)
    return first, second, targets


def difference(
    client: Client, first: np.ndarray, second: np.ndarray, targets: np.ndarray
) -> tuple[float, Interval]:
    futures = [spread(client, values, (300,)) for values in (first, second, targets)]
    both = [EVALUATOR.evaluate_here(predicted, targets) for predicted in (first, second)]
    return EVALUATOR.difference(PartedColumns(futures, client), both)


def test_the_difference_is_that_of_the_errors(client: Client) -> None:
    first, second, targets = two_models(np.random.default_rng(3))
    value, _ = difference(client, first, second, targets)
    assert value == pytest.approx(
        np.sqrt(np.mean((first - targets) ** 2)) - np.sqrt(np.mean((second - targets) ** 2))
    )


def test_the_interval_of_a_difference_covers_the_truth(client: Client) -> None:
    r = np.random.default_rng(3)
    hits = 0
    for _ in range(60):
        _, interval = difference(client, *two_models(r))
        hits += interval.low <= np.sqrt(1.25) - 1 <= interval.high
    assert hits >= 52


def test_a_model_does_not_differ_from_itself(client: Client) -> None:
    first, _, targets = two_models(np.random.default_rng(3))
    assert difference(client, first, first, targets) == (0, Interval(0, 0))
