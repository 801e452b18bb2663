"""Plots of an evaluation and of a run: PNGs of 600 x 600 pixels in one style, whatever settings a
user has.

``subtitle`` is the line below the title, as model, rows and period. Matplotlib's defaults hold
while a plot is drawn, whatever backend, matplotlibrc or style the user has; these are put back.
"""

# ruff: noqa: E402 - what MPLBACKEND names is hidden while Matplotlib loads

import contextlib
import os

_BACKEND = os.environ.get("MPLBACKEND")
# A notebook's kernel may name a backend that is not installed here: Matplotlib would refuse it
# when it is imported.
if _BACKEND:
    os.environ["MPLBACKEND"] = "agg"

import matplotlib

if _BACKEND:
    os.environ["MPLBACKEND"] = _BACKEND
    with contextlib.suppress(ValueError):
        matplotlib.rcParams["backend"] = _BACKEND

from tipcast.evaluation.plots.bars import importance, ladder
from tipcast.evaluation.plots.clusters import centroids, clusters
from tipcast.evaluation.plots.contributions import contributions
from tipcast.evaluation.plots.curves import calibration, precision_recall, roc
from tipcast.evaluation.plots.matrices import confusion
from tipcast.evaluation.plots.predicted import predicted
from tipcast.evaluation.plots.trials import history, parameter_scores

__all__ = [
    "calibration",
    "centroids",
    "clusters",
    "confusion",
    "contributions",
    "history",
    "importance",
    "ladder",
    "parameter_scores",
    "precision_recall",
    "predicted",
    "roc",
]
