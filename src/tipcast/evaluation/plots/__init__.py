"""Plots of an evaluation and of a run, in one restrained style; the only room that knows matplotlib.

Each is a PNG of 900 x 900 pixels; ``subtitle`` is the line below its title, as model, rows and period.
"""

# isort: skip_file
from tipcast.evaluation.plots.evaluations import (
    calibration, classes, clusters, confusion, difference, distribution, precision_recall, predicted, residuals, roc,
    scores,
)  # fmt: skip
from tipcast.evaluation.plots.runs import (
    centroids, contributions, history, importance, ladder, roc_overlay,
)  # fmt: skip
from tipcast.evaluation.plots.style import small

__all__ = [
    "calibration", "centroids", "classes", "clusters", "confusion", "contributions", "difference", "distribution",
    "history", "importance", "ladder", "precision_recall", "predicted", "residuals", "roc",
    "roc_overlay", "scores", "small",
]  # fmt: skip
