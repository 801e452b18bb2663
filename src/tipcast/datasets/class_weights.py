"""Weights of training rows by which all classes count the same in a fit."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tipcast.compute.base import Frame, Frames, Session, module_of
from tipcast.datasets.rows import Rows


def multipliers(class_sums: Sequence[float]) -> tuple[float, ...]:
    """Return what the weights of each class's rows are multiplied by: n / (k * sum of the class).

    ``class_sums`` are those of ``Counts``, n is their sum, and k the number of classes that count.
    A class that does not count gets 0. The weights of all classes then have the same sum, n / k.
    """
    n = sum(class_sums)
    k = np.count_nonzero(class_sums)
    return tuple(n / (k * of_class) if of_class else 0.0 for of_class in class_sums)


def balanced_weight(
    y: Frame, weight: Frame | None, class_sums: Sequence[float], frames: Frames
) -> Frame:
    """Return the weight of each row: the multiplier of its class, times its own weight.

    ``y`` is a (rows,) Series of classes, ``weight`` a (rows,) Series or None, ``class_sums`` are
    those of the ``Counts`` of all training rows. Returns a (rows,) Series of ``Frames.real``.
    """
    xp = module_of(y.values)
    values = xp.asarray(multipliers(class_sums), dtype=frames.real)[y.values]
    if weight is not None:
        values = values * weight.values
    return type(y)(values, name="weight")


def balanced(session: Session, rows: Rows) -> Rows:
    """Return training rows on workers with balanced weights, which are made where the rows lie."""
    weight = session.client.map(
        balanced_weight,
        rows.y,
        rows.weight or [None] * len(rows.y),
        class_sums=rows.counts.class_sums,
        frames=session.frames,
        pure=False,
        key="class_weight",
    )
    return replace(rows, weight=list(weight))
