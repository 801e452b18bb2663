"""Plots of an evaluation as PNG bytes, in one restrained style; the only room that knows matplotlib."""

from tipcast.evaluation.plots.bars import confusion, importance, scores
from tipcast.evaluation.plots.curves import calibration, history, precision_recall, roc

__all__ = ["calibration", "confusion", "history", "importance", "precision_recall", "roc", "scores"]
