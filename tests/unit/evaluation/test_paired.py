"""The difference of two models' AUC against DeLong's definition."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from distributed import Client
from tests.unit.evaluation.conftest import spread

from tipcast.evaluation.classification import Classification
from tipcast.evaluation.sums import Interval, Parts

Z95 = 1.959963984540054


def _rows(rows: int, seed: int, better: float = 0.0) -> tuple[Any, Any, Any]:
    """Return labels and two models' scores that share most of their noise; the first is better by so much."""
    r = np.random.default_rng(seed)
    labels = (r.random(rows) < 0.4).astype(np.int32)
    shared = labels + r.normal(0, 1.5, rows)
    first, second = (shared + shift * labels + r.normal(0, 0.7, rows) for shift in (better, 0.0))
    ties = [np.round(1 / (1 + np.exp(-values)), 3).astype(np.float32) for values in (first, second)]
    return labels, *ties


def _kernel(scores: Any, labels: Any) -> Any:
    ones, zeros = scores[labels == 1], scores[labels == 0]
    return (ones[:, None] > zeros) + 0.5 * (ones[:, None] == zeros)


def _delong(labels: Any, first: Any, second: Any) -> tuple[float, float]:
    """Return the difference of AUC and its standard error by DeLong's formula for paired models."""
    kernels = _kernel(first, labels) - _kernel(second, labels)
    variance = np.var(kernels.mean(axis=1), ddof=1) / len(kernels)
    variance += np.var(kernels.mean(axis=0), ddof=1) / kernels.shape[1]
    return float(kernels.mean()), float(np.sqrt(variance))


def _found(client: Client, labels: Any, first: Any, second: Any, *, binned: bool = False) -> tuple[float, Interval]:
    columns = [spread(client, values, (700, 701, 2200)) for values in (first, second, labels)]
    both = [Classification().evaluate(client, scores, columns[2]) for scores in columns[:2]]
    if binned:  # as of many rows, whose scores are not kept
        both = [replace(each, sums=replace(each.sums, ranked=np.zeros((2, 0)))) for each in both]
    return Classification().difference(Parts(columns, client), both)


@pytest.mark.parametrize("binned", [False, True])
@pytest.mark.parametrize("better", [0.0, 0.3])
def test_agrees_with_delongs_definition(client: Client, better: float, binned: bool) -> None:
    labels, first, second = _rows(3000, 1, better)
    value, error = _delong(labels, first, second)
    found, interval = _found(client, labels, first, second, binned=binned)
    assert found == pytest.approx(value, abs=1e-12)
    bounds = (value - Z95 * error, value + Z95 * error)
    assert interval == pytest.approx(bounds, abs=1e-4 if binned else 1e-12)
    assert (interval.low > 0) == (better > 0)
    assert _found(client, labels, first, first, binned=binned) == (0, Interval(0, 0))


def test_scores_that_share_a_bin_tell_nothing(client: Client) -> None:
    labels = np.arange(300_000) % 2
    assert _found(client, labels, 1e-6 * labels, 1e-6 * (1 - labels)) == (0, Interval(-1.0, 1.0))
    labels, scores = np.array([0, 0, 1]), np.array([0.1, 0.5, 0.3])  # and of one positive nothing is known
    both = [Classification().evaluate_here(each, labels) for each in (scores, scores[::-1])]
    parts = Parts([[scores], [scores[::-1]], [labels]])
    assert Classification().difference(parts, both)[1] == Interval(-1.0, 1.0)
