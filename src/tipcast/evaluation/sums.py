"""Sums of parts: added up where the rows lie, on whatever device; and the intervals of what they
estimate.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tipcast.compute.base import Array, module_of

Z95 = 1.959963984540054
"""97.5 % point of the normal distribution."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Interval(NamedTuple):
    """An estimate's bounds at 95 % confidence."""

    low: float
    high: float

    def around(self, value: float, form: str = ".4f") -> str:
        """Return the estimate with its bounds, as ``0.5886 (0.5774 to 0.5998)``."""
        return f"{value:{form}} ({self.low:{form}} to {self.high:{form}})"


@dataclass(frozen=True)
class Parts:
    """Columns of rows, part by part alike: futures on workers, or arrays of this process."""

    columns: Sequence[Any]
    """Columns, as predictions and what they are judged by."""
    client: Any = None
    """A ``distributed.Client``; None: this process."""
    where: str = "predictions"
    """The rows' name in error messages."""

    def add(self, count: Callable[..., Any], total: Callable[[Sequence[Any]], Any]) -> Any:
        """Count each part where it lies, by ``count`` of its columns, and return the total."""
        parts = list(zip(*self.columns, strict=True))
        if self.client is None:
            return total([count(*part) for part in parts])
        return self.client.submit(
            total, [self.client.submit(count, *part, pure=False) for part in parts]
        ).result()


@dataclass(frozen=True)
class Sums:
    """Sums over rows, on the host; each kind adds its own. Without arguments they are of no
    rows.
    """

    scored: int = 0
    """Rows with a prediction that can be, whether or not their target is known."""
    not_numbers: int = 0
    """Rows whose prediction cannot be: they count for nothing else."""
    unknown: int = 0
    """Scored rows whose target is not known, or cannot be."""

    @property
    def rows(self) -> int:
        """Rows that the metrics are of."""
        return self.scored - self.unknown


def added(parts: Sequence[Any], but: Collection[str] = ()) -> dict[str, Any]:
    """Return the sums over the parts, dataclasses alike, of their fields ``but`` some; see
    ``summed``.
    """
    names = [field.name for field in fields(parts[0]) if field.name not in but]
    return dict(
        zip(names, summed([[getattr(part, name) for name in names] for part in parts]), strict=True)
    )


def summed(parts: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the sums of columns of numbers, exactly, or of arrays, each as large as the
    largest.
    """
    sums: list[Any] = []
    for values in zip(*parts, strict=True):
        if isinstance(values[0], np.ndarray):
            shape = [max(sizes) for sizes in zip(*(value.shape for value in values), strict=True)]
            total = np.zeros(
                shape, dtype=np.result_type(np.int64, *(value.dtype for value in values))
            )
            for value in values:
                total[tuple(slice(size) for size in value.shape)] += value
            sums.append(total)
        else:
            sums.append(
                sum(values)
                if all(isinstance(value, int) for value in values)
                else math.fsum(values)
            )

    return sums


def values_of(values: Any) -> Array:
    """Return the array of a Series, a frame or an array."""
    return getattr(values, "values", values)  # a pandas or cuDF Series holds its array there


def kept(good: Array, *columns: Any) -> tuple[int, list[Any]]:
    """Return how many rows are not good, and the arrays of the columns of those that are; a column
    may be None.
    """
    odd = len(good) - int(module_of(good).count_nonzero(good))
    arrays = [values_of(column) for column in columns]
    return odd, [array if array is None or not odd else array[good] for array in arrays]


def mean_interval(rows: int, total: float, squares: float, *, root: bool = False) -> Interval:
    """Return the asymptotic 95 % interval of a mean of losses, or of its root by the delta method.

    See van der Vaart (1998), Asymptotic Statistics, chapter 3. ``total`` and ``squares`` are sums
    over the rows of the value and of its square.
    """
    value = math.sqrt(total / rows) if root else total / rows
    if rows < 2:
        return Interval(0.0, math.inf)
    half = root_slope(value, root) * half_width(rows, total, squares)
    return Interval(max(value - half, 0.0), value + half)


def half_width(rows: float, total: float, squares: float) -> float:
    """Return half the asymptotic 95 % interval of a mean; of fewer than two rows it is infinite."""
    variance = max(squares - total * total / rows, 0.0)
    return Z95 * math.sqrt(variance / (rows - 1) / rows) if rows > 1 else math.inf


def root_slope(value: float, root: bool) -> float:
    """Return the derivative at a mean of its root, which is ``value``, or of the mean itself."""
    if not root:
        return 1.0
    return 1 / (2 * value) if value else 0.0
