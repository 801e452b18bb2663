"""Random samples of rows that lie in parts, independent of the partitioning, and means and deviations of all rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tipcast.compute.base import Array, Frame, device_of, module_of, to_host

Taken = Sequence[tuple[Array, Array | None]]
"""Part by part, on its device: (n, features) values and (n,) targets that are in the sample."""
Moments = tuple[int, Array, Array, str]
"""Rows, their means and standard deviations (of one part sums of squared differences), and the device they are on."""


def chosen_by_part(rows: Iterable[int], most: int | None, seed: int) -> list[Array | slice]:
    """Return the row numbers to take within each part, from the parts' sizes: all, or ``most`` drawn uniformly."""
    ends = np.cumsum(list(rows))
    if most is None or ends[-1] <= most:
        return [slice(None)] * len(ends)  # no part is copied
    numbers = np.sort(np.random.default_rng(seed).choice(ends[-1], most, replace=False))
    own = np.split(numbers, np.searchsorted(numbers, ends[:-1]))
    return [at - first for at, first in zip(own, [0, *ends[:-1]], strict=True)]


def take(x: Frame, y: Frame | None, numbers: Array | slice) -> tuple[Array, Array | None]:
    """Return some rows of a part where they are."""
    values = x.values
    at = numbers if isinstance(numbers, slice) else module_of(values).asarray(numbers)
    return values[at], None if y is None else y.values[at]


def moments(x: Frame | Array) -> Moments:
    """Return a part's rows, means, sums of squared differences from them, on the host, and where they were computed."""
    values = (x.values if hasattr(x, "values") else x).astype(np.float64)
    mean = values.mean(axis=0) if len(values) else module_of(values).zeros(values.shape[1])
    return len(values), to_host(mean), to_host(((values - mean) ** 2).sum(axis=0)), device_of(values)


def standard(found: Sequence[Moments]) -> Moments:
    """Return the rows of parts by their moments, means and standard deviations, 1 of what is constant, and a device."""
    rows = sum(n for n, *_ in found)
    mean = sum(n * m for n, m, *_ in found) / rows
    variance = sum(s + n * (m - mean) ** 2 for n, m, s, _ in found) / rows
    return rows, mean, np.where(variance > 0, np.sqrt(variance), 1.0), max(device for *_, device in found)


def standardized(x: Frame, mean: Array, scale: Array) -> Frame:
    """Return a part's rows less a mean, by a scale: float64, of the part's own kind of frame."""
    values = x.values
    xp = module_of(values)
    scaled = (values - xp.asarray(mean)) / xp.asarray(scale)
    return type(x)(scaled, index=x.index, columns=x.columns)
