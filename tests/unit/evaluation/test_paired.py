"""The paired bootstrap against DeLong's formula for two models, and what its interval promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from distributed import Client
from tests.unit.evaluation.conftest import spread

from tipcast.evaluation import sums
from tipcast.evaluation.classification import Classification
from tipcast.evaluation.sums import Difference, Parts, area, bootstrap

Z95 = 1.959963984540054


def _rows(rows: int, seed: int, better: float = 0.0) -> tuple[Any, Any, Any]:
    """Return labels and two models' scores that share most of their noise; the first is better by so much."""
    r = np.random.default_rng(seed)
    labels = (r.random(rows) < 0.4).astype(np.int32)
    shared = labels + r.normal(0, 1.5, rows)
    first, second = (shared + shift * labels + r.normal(0, 0.7, rows) for shift in (better, 0.0))
    return labels, _scores(first), _scores(second)


def _scores(values: Any) -> Any:
    return np.round(1 / (1 + np.exp(-values)), 3).astype(np.float32)  # ties


def _kernel(scores: Any, labels: Any) -> Any:
    ones, zeros = scores[labels == 1], scores[labels == 0]
    return (ones[:, None] > zeros) + 0.5 * (ones[:, None] == zeros)


def _delong(labels: Any, first: Any, second: Any) -> tuple[float, float]:
    """Return the difference of AUC and its standard error by DeLong's formula for paired models."""
    kernels = _kernel(first, labels) - _kernel(second, labels)
    variance = np.var(kernels.mean(axis=1), ddof=1) / len(kernels)
    variance += np.var(kernels.mean(axis=0), ddof=1) / kernels.shape[1]
    return float(kernels.mean()), float(np.sqrt(variance))


def _found(client: Client, labels: Any, first: Any, second: Any, cuts: tuple[int, ...] = (), **more: Any) -> Difference:
    columns = [spread(client, values, cuts) for values in (first, second, labels)]
    aucs = tuple(Classification().evaluate(client, scores, columns[2]).headline for scores in columns[:2])
    return bootstrap(Parts(columns, client), aucs, **{"replicates": 2000, "seed": 0, **more})


@pytest.mark.parametrize("better", [0.0, 0.3])
def test_agrees_with_delong(client: Client, better: float) -> None:
    labels, first, second = _rows(3000, 1, better)
    value, error = _delong(labels, first, second)
    found = _found(client, labels, first, second, cuts=(700, 701, 2200))
    assert found.value == pytest.approx(value, abs=1e-12)
    assert found.replicates.std() == pytest.approx(error, rel=0.06)
    assert found.interval.low == pytest.approx(value - Z95 * error, abs=0.25 * error)
    assert found.interval.high == pytest.approx(value + Z95 * error, abs=0.25 * error)
    assert (found.rows, found.resampled) == (3000, 3000)
    assert (found.interval.low > 0) == (better > 0)


def test_of_many_rows_a_part_is_resampled_and_scaled(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    labels, first, second = _rows(6000, 2, 0.2)
    value, error = _delong(labels, first, second)
    monkeypatch.setattr(sums, "MOST_ROWS", 1000)
    found = _found(client, labels, first, second, cuts=(1001, 3500))
    assert found.resampled == 1000
    assert found.value == pytest.approx(value, abs=1e-12), "the difference itself is of all rows"
    assert found.replicates.mean() == pytest.approx(value, abs=0.2 * error)
    assert found.replicates.std() == pytest.approx(error, rel=0.15)


def test_rows_are_taken_at_even_distances_across_parts(client: Client) -> None:
    values = np.arange(100)
    cuts = (13, 14, 50)
    parts = np.split(values, cuts)
    taken, before = [], 0
    for part in parts:
        taken += list(sums.sample(part, part, part, -before % 7, 7)[0])
        before += len(part)
    assert taken == list(range(0, 100, 7))


def test_the_seed_decides_and_not_the_parts(client: Client) -> None:
    labels, first, second = _rows(500, 3)
    one = _found(client, labels, first, second, replicates=100)
    again = _found(client, labels, first, second, cuts=(100, 333), replicates=100)
    other = _found(client, labels, first, second, replicates=100, seed=1)
    np.testing.assert_array_equal(one.replicates, again.replicates)
    assert not np.array_equal(one.replicates, other.replicates)


def test_a_model_against_itself_differs_by_nothing(client: Client) -> None:
    labels, first, _ = _rows(400, 4)
    found = _found(client, labels, first, first, replicates=100)
    assert (found.value, found.interval.low, found.interval.high) == (0, 0, 0)


def test_area_counts_pairs() -> None:
    assert area(np.array([2, 1]), np.array([0, 1]), 3) == (1 + 1 + 1 + 0.5) / 4
