"""How close scores of two classes are to the rate of positives."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CALIBRATION_BINS = 16


class Calibration(NamedTuple):
    """How close scores are to the rate of positives."""

    bins: Mapping[str, NDArray[Any]]
    """See ``ClassificationEvaluation``."""
    mean_prediction: float
    error: float
    """Expected calibration error, see Naeini et al. (2015)."""


def calibrate(bins: NDArray[Any], square_bins: NDArray[Any]) -> Calibration:
    """Compare the mean score and the rate of positives of 16 bins of the labelled rows.

    ``bins`` and ``square_bins`` are those of ``BinarySums``. With weights, a bin's rows are the
    effective ones, the squared sum of the weights over the sum of the squares (Kish 1965, Survey
    Sampling): as many rows of equal weight say as much.
    """
    n_bins = bins.shape[1]
    sizes = bins.sum(axis=0)
    fine = np.stack([sizes * (np.arange(n_bins) + 0.5) / n_bins, bins[1], sizes])
    coarse = fine.reshape(3, CALIBRATION_BINS, -1).sum(axis=2)
    used = np.flatnonzero(coarse[2])
    score_sums, positives, weights = coarse[:, used]

    columns = {
        "from": used / CALIBRATION_BINS,
        "to": (used + 1) / CALIBRATION_BINS,
        "rows": weights,
        "mean_prediction": score_sums / weights,
        "positive_rate": positives / weights,
    }
    if square_bins.size:
        squares = square_bins.sum(axis=0).reshape(CALIBRATION_BINS, -1).sum(axis=1)[used]
        columns |= {"rows": weights**2 / squares, "weight": weights}

    total = weights.sum()
    mean_prediction = float(score_sums.sum() / total)
    error = float(np.abs(score_sums - positives).sum() / total)
    return Calibration(columns, mean_prediction, error)
