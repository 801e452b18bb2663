"""Sums over parts, each counted where its rows lie, and confidence intervals of estimates."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tipcast.compute.base import Array, Frame, module_of

if TYPE_CHECKING:
    from distributed import Client

Z95 = 1.959963984540054
"""97.5 % point of the normal distribution."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
PartValues = Sequence[Any]
"""A column part by part: futures of arrays, Series or frames, or these of this process."""


class Interval(NamedTuple):
    """An estimate's bounds at 95 % confidence."""

    low: float
    high: float

    def around(self, value: float, form: str = ".4f") -> str:
        """Return the estimate with its bounds, as ``0.5886 (0.5774 to 0.5998)``."""
        return f"{value:{form}} ({self.low:{form}} to {self.high:{form}})"


@dataclass(frozen=True)
class PartedColumns:
    """Columns of the same rows, cut into the same parts."""

    columns: Sequence[PartValues]
    """Columns, such as the predictions and the target."""
    client: "Client | None" = None
    """The workers of the futures; None: the columns are in this process."""
    where: str = "predictions"
    """The rows' name in error messages."""

    def map_reduce(self, count: Callable[..., Any], total: Callable[[Sequence[Any]], Any]) -> Any:
        """Return the total of the counts of all parts.

        Each part is counted by a task on the worker that holds its columns; ``total`` is one more
        task, on one worker, and its result alone comes to the driver. Without a client, all is
        computed here.
        """
        client = self.client
        parts = list(zip(*self.columns, strict=True))
        if client is None:
            return total([count(*part) for part in parts])

        sums = [client.submit(count, *part, pure=False) for part in parts]
        return client.submit(total, sums).result()


@dataclass(frozen=True)
class Sums:
    """Sums over rows, on the host; each kind adds fields. The defaults are the sums of no rows."""

    scored: int = 0
    """Rows with a possible prediction, whether or not their target is known."""
    impossible_predictions: int = 0
    """Rows with an impossible prediction: they count for nothing else."""
    unknown: int = 0
    """Scored rows whose target is unknown or impossible."""

    @property
    def rows(self) -> int:
        """Rows that the metrics are computed from."""
        return self.scored - self.unknown


def sum_fields(parts: Sequence[Sums], but: Collection[str] = ()) -> dict[str, Any]:
    """Return field -> sum over the parts, without the fields in ``but``; see ``sum_columns``."""
    names = [field.name for field in fields(parts[0]) if field.name not in but]
    sums = sum_columns([[getattr(part, name) for name in names] for part in parts])
    return dict(zip(names, sums, strict=True))


def sum_columns(parts: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the sum of each column of the parts: of numbers, exactly; of arrays, with the largest
    size of each axis.
    """
    sums: list[Any] = []
    for values in zip(*parts, strict=True):
        if isinstance(values[0], np.ndarray):
            sums.append(_array_sum(values))
        elif all(isinstance(value, int) for value in values):
            sums.append(sum(values))
        else:
            sums.append(math.fsum(values))

    return sums


def _array_sum(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the sum of arrays, each padded with zeros to the largest size of each axis."""
    shape = [max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True)]
    dtype = np.result_type(np.int64, *(array.dtype for array in arrays))
    total: NDArray[Any] = np.zeros(shape, dtype=dtype)
    for array in arrays:
        total[tuple(slice(size) for size in array.shape)] += array
    return total


def values_of(values: Array | Frame) -> Array:
    """Return the array of a Series, a frame or an array."""
    return getattr(values, "values", values)  # a pandas or cuDF Series holds its array there


def select_good(good: Array, *columns: Array | Frame | None) -> tuple[int, list[Any]]:
    """Return how many rows are not good, and the arrays of the columns for the good rows; a column
    may be None.
    """
    odd = len(good) - int(module_of(good).count_nonzero(good))
    arrays = [values_of(column) for column in columns]
    if not odd:
        return odd, arrays

    good_rows = [None if array is None else array[good] for array in arrays]
    return odd, good_rows


def mean_interval(rows: int, total: float, squares: float, *, root: bool = False) -> Interval:
    """Return the asymptotic 95 % interval of a mean of losses, or of its root by the delta method.

    See van der Vaart (1998), Asymptotic Statistics, chapter 3. ``total`` and ``squares`` are sums
    over the rows of the value and of its square.
    """
    value = total / rows
    if root:
        value = math.sqrt(value)
    if rows < 2:
        return Interval(0.0, math.inf)

    half = root_slope(value, root) * half_width(rows, total, squares)
    return Interval(max(value - half, 0.0), value + half)


def half_width(rows: float, total: float, squares: float) -> float:
    """Return half the asymptotic 95 % interval of a mean; infinite for fewer than two rows."""
    variance = max(squares - total * total / rows, 0.0)
    if rows <= 1:
        return math.inf
    return Z95 * math.sqrt(variance / (rows - 1) / rows)


def root_slope(value: float, root: bool) -> float:
    """Return the derivative of a root, whose value is given, with respect to the mean; 1 for the
    mean itself.
    """
    if not root:
        return 1.0
    if not value:
        return 0.0
    return 1 / (2 * value)
