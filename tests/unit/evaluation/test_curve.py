"""Thinning keeps shape and area."""

from __future__ import annotations

import numpy as np
import pytest

from tipcast.evaluation.curve import MAX_POINTS, thin


def stairs(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x, y and area of the curve of rows in ascending score."""
    y, x = np.r_[0, np.cumsum(labels)] / labels.sum(), np.r_[0, np.cumsum(1 - labels)] / (1 - labels).sum()
    return x, y, np.r_[0, np.cumsum(np.diff(y) * (x[1:] + x[:-1]) / 2)]


@pytest.mark.parametrize("rows", [2000, 10_000, 60_000])
@pytest.mark.parametrize("shape", ["noise", "runs", "rare", "steep"])
def test_area_stays(rows: int, shape: str) -> None:
    r = np.random.default_rng(rows)
    along = np.arange(rows) / rows
    share = {"noise": 0.5, "runs": np.arange(rows) // 7 % 2, "rare": 0.02, "steep": along**20}[shape]
    x, y, area = stairs((r.random(rows) < share).astype(int))
    chosen = thin(x, y, area)
    assert len(chosen) <= MAX_POINTS
    assert (chosen[0], chosen[-1]) == (0, rows)
    assert (np.diff(chosen) > 0).all()
    assert np.trapezoid(x[chosen], y[chosen]) == pytest.approx(area[-1], abs=1e-6)


def test_few_corners_stay_as_they_are() -> None:
    x, y, area = stairs(np.asarray([0, 0, 0, 1, 1, 0, 1, 1, 1]))
    assert thin(x, y, area).tolist() == [0, 3, 5, 6, 9]
