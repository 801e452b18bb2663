"""Plots of an evaluation and of a sweep, in one restrained style; the only room that knows matplotlib.

Each is a PNG of 900 x 900 pixels; ``subtitle`` is the line below its title, as model, rows and period.
"""

from tipcast.evaluation.plots.bars import classes, confusion, difference, importance, scores
from tipcast.evaluation.plots.curves import calibration, history, precision_recall, roc
from tipcast.evaluation.plots.style import small
from tipcast.evaluation.plots.trials import ladder, parallel, roc_overlay
from tipcast.evaluation.plots.values import centroids, clusters, contributions, distribution, predicted, residuals

__all__ = [
    "calibration", "centroids", "classes", "clusters", "confusion", "contributions", "difference",
    "distribution", "history", "importance", "ladder", "parallel", "precision_recall", "predicted",
    "residuals", "roc", "roc_overlay", "scores", "small",
]  # fmt: skip
