"""DeLong's interval against its definition; a thinned curve is near the whole."""

from __future__ import annotations

import numpy as np
import pytest
from distributed import Client

from tipcast.evaluation.base import Interval
from tipcast.evaluation.classification import Classification
from tipcast.evaluation.two_classes import MAX_POINTS, delong, thin


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_equals_the_definition(client: Client, digits: int) -> None:
    r = np.random.default_rng(digits)
    scores = np.round(r.random(700), digits)
    labels = (r.random(700) < 0.2 + 0.6 * scores).astype(int)
    ones, zeros = scores[labels == 1], scores[labels == 0]
    kernel = (ones[:, None] > zeros) + 0.5 * (ones[:, None] == zeros)
    variance = np.var(kernel.mean(axis=1), ddof=1) / len(ones) + np.var(kernel.mean(axis=0), ddof=1) / len(zeros)
    found = Classification().evaluate(client, [client.submit(np.array, scores)], [client.submit(np.array, labels)])
    half = 1.959963984540054 * np.sqrt(variance)
    assert found.interval.low == pytest.approx(kernel.mean() - half, abs=1e-12)
    assert found.interval.high == pytest.approx(kernel.mean() + half, abs=1e-12)


def test_covers_the_truth_nineteen_times_in_twenty() -> None:
    r = np.random.default_rng(3)
    truth = 0.760249938906523  # of two unit normals one apart: the normal distribution at 1 / sqrt(2)
    hits = 0
    for _ in range(200):
        ones, zeros = np.sort(r.normal(1, 1, 80)), np.sort(r.normal(0, 1, 120))
        misses = 1 - np.searchsorted(zeros, ones) / 120, np.searchsorted(ones, zeros) / 80
        found = delong(1 - misses[0].mean(), 80, 120, (misses[0] ** 2).sum(), (misses[1] ** 2).sum())
        hits += found.low <= truth <= found.high
    assert 180 <= hits <= 198


def test_bounds() -> None:
    assert delong(0.7, 1, 50, 0.09, 2.0) == Interval(0.0, 1.0)
    assert delong(1.0, 50, 50, 0.0, 0.0) == Interval(1.0, 1.0)
    assert delong(0.99, 5, 5, 0.01, 0.01).high == 1.0


@pytest.mark.parametrize("shape", ["noise", "runs", "rare", "steep"])
def test_a_thinned_curve_is_near_the_whole(shape: str) -> None:
    rows, r = 60_000, np.random.default_rng(0)
    along = np.arange(rows) / rows
    share = {"noise": 0.5, "runs": np.arange(rows) // 7 % 2, "rare": 0.02, "steep": along**20}[shape]
    labels = (r.random(rows) < share).astype(int)
    y, x = np.r_[0, np.cumsum(labels)] / labels.sum(), np.r_[0, np.cumsum(1 - labels)] / (1 - labels).sum()
    chosen = thin(x, y)
    assert len(chosen) <= MAX_POINTS
    assert (chosen[0], chosen[-1]) == (0, rows)
    assert (np.diff(chosen) > 0).all()
    assert np.trapezoid(x[chosen], y[chosen]) == pytest.approx(np.trapezoid(x, y), abs=1e-4)


def test_few_corners_stay_as_they_are() -> None:
    labels = np.asarray([0, 0, 0, 1, 1, 0, 1, 1, 1])
    assert thin(np.r_[0, np.cumsum(1 - labels)] / 4, np.r_[0, np.cumsum(labels)] / 5).tolist() == [0, 3, 5, 6, 9]
