"""Random samples of rows that lie in parts, independent of the partitioning, and means and deviations of all rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tipcast.compute.base import Array, Frame, device_of, module_of, to_host

Taken = Sequence[tuple[Array, Array | None]]
"""Part by part, on its device: (n, features) values and (n,) targets that are in the sample."""


@dataclass(frozen=True)
class Moments:
    """Means and spread of the columns of some rows."""

    rows: int
    mean: Array
    squares: Array
    """Sums of squared differences from the mean."""
    device: str
    """What the rows are on, see ``device_of``."""

    @property
    def scale(self) -> Array:
        """Standard deviations, 1 of what is constant."""
        return np.where(self.squares > 0, np.sqrt(self.squares / self.rows), 1.0)

    def except_for(self, columns: Sequence[int]) -> Moments:
        """Return moments by which some columns stay as they are."""
        mean, squares = self.mean.copy(), self.squares.copy()
        mean[list(columns)], squares[list(columns)] = 0, self.rows
        return replace(self, mean=mean, squares=squares)


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
    """Return the moments of a part, on the host."""
    values = (x.values if hasattr(x, "values") else x).astype(np.float64)
    mean = values.mean(axis=0) if len(values) else module_of(values).zeros(values.shape[1])
    return Moments(len(values), to_host(mean), to_host(((values - mean) ** 2).sum(axis=0)), device_of(values))


def combined(parts: Sequence[Moments]) -> Moments:
    """Return the moments of the rows of all parts."""
    rows = sum(part.rows for part in parts)
    mean = sum(part.rows * part.mean for part in parts) / rows
    squares = sum(part.squares + part.rows * (part.mean - mean) ** 2 for part in parts)
    return Moments(rows, mean, squares, max(part.device for part in parts))


def standardized(values: Array, known: Moments) -> Array:
    """Return (n, features) values with mean 0 and variance 1 of all rows, as float64, where the values are."""
    xp = module_of(values)
    return (values - xp.asarray(known.mean)) / xp.asarray(known.scale)
