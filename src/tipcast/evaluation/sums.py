"""Sums over parts, each counted where its rows lie, and confidence intervals of estimates."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields
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
    weights: Floats = field(default_factory=lambda: np.zeros(0))
    """(3,) of the rows with a known target: the number whose weight is above 0, the sum of the
    weights, and that of the squared weights; empty without weights.
    """

    @property
    def rows(self) -> int:
        """Rows that the metrics are computed from, whatever their weights."""
        return self.scored - self.unknown

    @property
    def weighted(self) -> bool:
        """Whether the rows have weights."""
        return bool(self.weights.size)

    @property
    def counted(self) -> int:
        """Rows that count: with weights, those whose weight is above 0."""
        return int(self.weights[0]) if self.weighted else self.rows

    @property
    def weight(self) -> float:
        """What a mean is divided by: the sum of the weights; without weights, the number of
        rows.
        """
        return float(self.weights[1]) if self.weighted else self.rows

    def mean_interval(
        self, total: float, squares: float, mixed: float, *, root: bool = False
    ) -> Interval:
        """Return the 95 % interval of a mean over these rows, or of its root.

        ``total`` and ``squares`` are sums of a value and of its square, with weights those of
        ``weighted_mean_sums``, as is ``mixed``.
        """
        if self.weighted:
            return weighted_mean_interval((*self.weights, total, mixed, squares), root=root)
        return mean_interval(self.rows, total, squares, root=root)


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


def shares_of(parts: NDArray[Any], wholes: NDArray[Any]) -> Floats:
    """Return parts over wholes, 0 where a whole is 0."""
    shares: Floats = np.divide(parts, wholes, out=np.zeros(wholes.shape), where=wholes > 0)
    return shares


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


def weighted_rows(weights: Array | None, *columns: Array) -> list[Any]:
    """Return weights in float64, and the columns, of the rows whose weight is above 0; without
    weights, None and all rows.
    """
    if weights is None:
        return [None, *columns]

    wide = weights.astype("float64")
    _, kept = select_good(wide > 0, wide, *columns)
    return kept


def mean_interval(rows: int, total: float, squares: float, *, root: bool = False) -> Interval:
    """Return the asymptotic 95 % interval of a mean of losses, or of its root by the delta method.

    See van der Vaart (1998), Asymptotic Statistics, chapter 3. ``total`` and ``squares`` are sums
    over the rows of the value and of its square.
    """
    return _loss_interval(total / rows, half_width(rows, total, squares), root)


def weighted_mean_interval(sums: Sequence[float], *, root: bool = False) -> Interval:
    """Return the same of a weighted mean; ``sums`` are those of ``weighted_mean_sums``."""
    _, weight, _, total, _, _ = sums
    return _loss_interval(total / weight, weighted_half_width(*sums), root)


def _loss_interval(mean: float, half: float, root: bool) -> Interval:
    """Return the interval of a mean of losses, or of its root, from half that of the mean."""
    value = math.sqrt(mean) if root else mean
    if math.isinf(half):
        return Interval(0.0, math.inf)

    half = root_slope(value, root) * half
    return Interval(max(value - half, 0.0), value + half)


def mean_sums(values: Array, weights: Array | None = None) -> list[float]:
    """Return the sums that half the interval of a mean is computed from: those of ``half_width``;
    with weights, those of ``weighted_half_width``.

    ``values`` and ``weights`` are (rows,) float64.
    """
    if weights is not None:
        return weighted_mean_sums(values, weights)
    return [float(len(values)), float(values.sum()), float(module_of(values).dot(values, values))]


def weight_sums(weights: Array) -> Floats:
    """Return (3,) the rows whose weight is above 0, the sum of the weights, and that of the squared
    weights.
    """
    rows = int((weights > 0).sum())
    squares = module_of(weights).dot(weights, weights)
    return np.asarray([rows, float(weights.sum()), float(squares)])


def weighted_mean_sums(values: Array, weights: Array) -> list[float]:
    """Return the sums that a weighted mean and its interval are computed from: the three of
    ``weight_sums``; then the sums of the values times the weights, of the values times the squared
    weights, and of both squared.
    """
    xp = module_of(values)
    products = values * weights
    mixed = float(xp.dot(products, weights))
    return [
        *weight_sums(weights).tolist(),
        float(products.sum()),
        mixed,
        float(xp.dot(products, products)),
    ]


def half_width_of(sums: Sequence[float]) -> float:
    """Return half the interval of a mean, from the sums of ``mean_sums``."""
    if len(sums) == 3:
        return half_width(*sums)
    return weighted_half_width(*sums)


def half_width(rows: float, total: float, squares: float) -> float:
    """Return half the asymptotic 95 % interval of a mean; infinite for fewer than two rows."""
    variance = max(squares - total * total / rows, 0.0)
    if rows <= 1:
        return math.inf
    return Z95 * math.sqrt(variance / (rows - 1) / rows)


def weighted_half_width(
    rows: float,
    weight: float,
    weight_squares: float,
    total: float,
    mixed: float,
    squares: float,
) -> float:
    """Return half the asymptotic 95 % interval of a weighted mean; infinite for fewer than two rows
    with a weight.

    The variance is that of the linearised ratio of two sums, sum(w^2 (x - mean)^2) / sum(w)^2, as
    of Hajek's mean; see Sarndal, Swensson, Wretman (1992), Model Assisted Survey Sampling, chapter
    5. It is multiplied by rows / (rows - 1), so that equal weights give the interval of no weights.
    The arguments are the sums of ``weighted_mean_sums``.
    """
    if rows <= 1:
        return math.inf

    mean = total / weight
    scatter = max(squares - 2 * mean * mixed + mean * mean * weight_squares, 0.0)
    return Z95 * math.sqrt(rows / (rows - 1) * scatter) / weight


def root_slope(value: float, root: bool) -> float:
    """Return the derivative of a root, whose value is given, with respect to the mean; 1 for the
    mean itself.
    """
    if not root:
        return 1.0
    if not value:
        return 0.0
    return 1 / (2 * value)
