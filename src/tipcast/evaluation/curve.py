"""Thin an ROC curve: few vertices, all of them on the curve, and the same area."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_POINTS = 2000
_STEPS = 900
"""Steps along the curve that are aimed at; one takes between half and one and a half of the even length."""

Floats = NDArray[np.float64]


def thin(x: Floats, y: Floats, area: Floats) -> NDArray[np.intp]:
    """Choose vertices of a monotone curve so that the chords' area stays that of the curve.

    Each step goes to the vertex within reach at which the area gained or lost so far comes closest to none. Without a
    vertex within half to one and a half of the even step, the step goes to the last one before, or over the jump.

    Parameters
    ----------
    x, y
        Vertices (points,), both ascending from 0 to 1.
    area
        Area (points,) left of the curve up to each vertex: the integral of x over y.

    Returns
    -------
    indices
        Ascending, at most 2000, with the first and the last.

    """
    corners = _corners(x, y)
    if len(corners) <= MAX_POINTS:
        return corners
    x, y, area = x[corners], y[corners], area[corners]
    along = x + y
    step = along[-1] / _STEPS
    near = np.searchsorted(along, along + 0.5 * step)
    far = np.searchsorted(along, along + 1.5 * step, side="right")
    chosen, drift, last = [0], 0.0, len(x) - 1
    while (i := chosen[-1]) < last:
        stop = max(int(far[i]), i + 2)
        start = max(min(int(near[i]), stop - 1), i + 1)
        chords = (y[start:stop] - y[i]) * (x[start:stop] + x[i]) / 2
        drifts = drift + (area[start:stop] - area[i]) - chords
        k = int(np.argmin(np.abs(drifts)))
        drift = float(drifts[k])
        chosen.append(start + k)
    return corners[chosen]


def _corners(x: Floats, y: Floats) -> NDArray[np.intp]:
    """Return the vertices that are not inside a horizontal or a vertical stretch."""
    turns = np.ones(len(x), dtype=bool)
    dx, dy = np.diff(x) == 0, np.diff(y) == 0
    turns[1:-1] = ~((dx[1:] & dx[:-1]) | (dy[1:] & dy[:-1]))
    return np.flatnonzero(turns)
