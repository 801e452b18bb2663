"""The values that an evaluation consists of: metrics, curves, bins and counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tipcast.evaluation.interval import Interval

CALIBRATION_BINS = 20
HISTOGRAM_BINS = 50

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Auc:
    """An area under the ROC curve."""

    value: float
    interval: Interval
    rows: int
    positives: int


@dataclass(frozen=True)
class Roc:
    """Points of the ROC curve (points,) by falling threshold; calling scores >= threshold positive gives the point."""

    fpr: Floats
    tpr: Floats
    thresholds: Floats


@dataclass(frozen=True)
class PrecisionRecall:
    """Points of the precision-recall curve (points,) by falling threshold."""

    recall: Floats
    precision: Floats
    thresholds: Floats


@dataclass(frozen=True)
class Calibration:
    """20 equal-width bins of scores; mean score and rate of positives are NaN where no rows are."""

    mean_score: Floats
    rate: Floats
    rows: Ints


@dataclass(frozen=True)
class Histogram:
    """Rows of each class in 50 equal-width bins of scores."""

    edges: Floats
    negatives: Ints
    positives: Ints


@dataclass(frozen=True)
class Confusion:
    """Rows by what they were and what they were called."""

    true_negatives: int
    false_positives: int
    false_negatives: int
    true_positives: int


@dataclass(frozen=True)
class Evaluation:
    """How well scores tell the classes apart."""

    metrics: dict[str, float]
    """auc, average_precision, log_loss, brier, accuracy, precision, recall, f1, positive_rate, rows."""
    auc_interval: Interval
    threshold: float
    """Scores at or above it are called positive."""
    confusion: Confusion
    roc: Roc
    precision_recall: PrecisionRecall
    calibration: Calibration
    histogram: Histogram
