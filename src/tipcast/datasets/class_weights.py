"""Weights of training rows by which all classes count the same in a fit."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tipcast.compute.base import Frame, Frames, Session
from tipcast.datasets.rows import Rows


def multipliers(classes: Sequence[int]) -> tuple[float, ...]:
    """Return what the rows of each class are multiplied by: n / (k * rows of the class).

    ``classes`` are the rows of each class, n is their sum, and k the number of classes that have
    rows. A class without rows gets 0.
    """
    n = sum(classes)
    k = np.count_nonzero(classes)
    return tuple(n / (k * rows) if rows else 0.0 for rows in classes)


def balanced_weight(
    y: Frame, weight: Frame | None, classes: Sequence[int], frames: Frames
) -> Frame:
    """Return the weight of each row: the multiplier of its class, times its own weight.

    ``y`` is a (rows,) Series of classes, ``weight`` a (rows,) Series or None, ``classes`` are the
    rows of each class in all training rows. Returns a (rows,) Series of ``Frames.real``.
    """
    values = frames.xp.asarray(multipliers(classes), dtype=frames.real)[y.values]
    if weight is not None:
        values = values * weight.values
    return frames.series(values, "weight")


def balanced(session: Session, rows: Rows) -> Rows:
    """Return training rows on workers with balanced weights, which are made where the rows lie."""
    weight = session.client.map(
        balanced_weight,
        rows.y,
        rows.weight or [None] * len(rows.y),
        classes=rows.counts.classes,
        frames=session.frames,
        pure=False,
        key="class_weight",
    )
    return replace(rows, weight=list(weight))
