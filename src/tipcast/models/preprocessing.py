"""Preprocessing for a library's class: standardised numbers, and a column of 0 and 1 for each value
of a category.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from tipcast.compute.base import Array, Frame, module_of, to_host

LEAST_FILLED = 0.3
"""Share of values other than 0 from which columns are dense, as in scikit-learn's
ColumnTransformer: solvers of dense rows are exact, those of sparse rows stop at a tolerance.
"""


@dataclass(frozen=True)
class Moments:
    """What preprocessing learns from one part of the training rows, on the host."""

    rows: int
    mean: Array
    """(features,) float64."""
    squares: Array
    """(features,) sums of squared differences from the mean."""
    values: tuple[Array, ...] = ()
    """The values of each category, sorted, without NaN."""
    counts: tuple[Array, ...] = ()
    """Rows of each of these values."""


def moments(part: Frame, categories: Sequence[int] = ()) -> Moments:
    """Return the moments of a part's (rows, features) frame; ``categories`` are places of
    features.
    """
    values = part.values.astype(np.float64)
    mean = module_of(values).zeros(values.shape[1])
    if len(values):
        mean = values.mean(axis=0)
    squares = ((values - mean) ** 2).sum(axis=0)

    distinct = []
    for at in categories:
        codes = to_host(values[:, at])
        distinct.append(np.unique(codes[~np.isnan(codes)], return_counts=True))

    return Moments(
        len(values),
        to_host(mean),
        to_host(squares),
        values=tuple(codes for codes, _ in distinct),
        counts=tuple(rows for _, rows in distinct),
    )


@dataclass(frozen=True)
class Preprocessing:
    """Steps before the model; they are saved with it as a pipeline of scikit-learn's."""

    scaler: StandardScaler
    """Scales all features; categories stay as they are."""
    standardize: bool
    encoder: ColumnTransformer | None = None
    """Gives each value of a category a column, categories first; None without categories."""
    categories: tuple[int, ...] = ()
    """Places of the features that are categories."""
    shares: tuple[Array, ...] = field(default=(), compare=False)
    """For each category, the share of the training rows with each of its values."""

    @classmethod
    def of_parts(
        cls, parts: Sequence[Moments], categories: Sequence[int], *, standardize: bool, dense: bool
    ) -> "Preprocessing":
        """Learn from the moments of all parts: no process has all rows.

        ``dense``: the library takes no sparse matrix, or the rows are on a GPU. Otherwise the
        columns are dense if at least ``LEAST_FILLED`` of their values are not 0.
        """
        scaler = scaler_of(parts)
        if not categories:
            return cls(scaler, standardize)

        at = list(categories)
        scaler.mean_[at] = 0
        scaler.var_[at] = 1
        scaler.scale_[at] = 1

        values = []
        shares = []
        for number in range(len(at)):
            distinct, counts = _merged(
                [part.values[number] for part in parts], [part.counts[number] for part in parts]
            )
            values.append(distinct)
            shares.append(counts / scaler.n_samples_seen_)

        columns = sum(map(len, values)) + len(scaler.mean_) - len(at)
        dense = dense or len(scaler.mean_) >= LEAST_FILLED * columns
        encode = OneHotEncoder(categories=values, handle_unknown="ignore", sparse_output=not dense)
        encoder = ColumnTransformer(
            [("categories", encode, at)],
            remainder="passthrough",
            sparse_threshold=0.0 if dense else 1.0,
        )
        row = np.zeros((1, len(scaler.mean_)))
        row[0, at] = [distinct[0] for distinct in values]
        encoder.fit(row)  # the encoder has been given the values of all rows
        return cls(scaler, standardize, encoder, tuple(at), tuple(shares))

    def transform(self, z: Array, order: str = "F") -> Array:
        """Return (rows, features) values as the library gets them; standardises them in place.

        On a GPU, and if ``of_parts`` has decided so, categories are dense columns; otherwise the
        result is sparse. ``order`` is that of dense columns on a GPU, ``F`` or ``C``.
        """
        xp = module_of(z)
        # In place: in double precision these rows take most of the memory.
        if self.standardize:
            z -= xp.asarray(self.scaler.mean_)  # the scaler itself takes no rows on a GPU
            z /= xp.asarray(self.scaler.scale_)

        if self.encoder is None:
            return z
        if xp is np:
            return self.encoder.transform(z)
        return self.dense(z, order)

    def dense(self, z: Array, order: str) -> Array:
        """Return (rows, features) values with the encoder's columns, on their device; each column
        is written once.
        """
        xp = module_of(z)
        numbers = [at for at in range(z.shape[1]) if at not in self.categories]
        columns = xp.empty((len(z), sum(self.widths) + len(numbers)), dtype=z.dtype, order=order)

        start = 0
        for at, values in zip(self.categories, self._values, strict=True):
            columns[:, start : start + len(values)] = z[:, [at]] == xp.asarray(values)
            start += len(values)

        columns[:, start:] = z[:, numbers]
        return columns

    def pipeline(self, model: Any) -> Any:
        """Return the model with the steps before it, or the model alone if there are none."""
        steps: list[tuple[str, Any]] = []
        if self.standardize:
            steps.append(("scaler", self.scaler))
        if self.encoder is not None:
            steps.append(("encoder", self.encoder))

        if not steps:
            return model
        return Pipeline([*steps, ("model", model)])

    def spread(self, coefficients: Array) -> Array:
        """Return how much each feature's part of a linear model varies over the training rows.

        ``coefficients`` are (outputs, columns) for what ``transform`` returns. For a number the
        result is the standardised coefficient, for a category the standard deviation of the
        coefficients of its values. Returns (features,), the mean over the outputs.
        """
        scale = self.scaler.scale_
        if self.standardize:
            scale = np.ones_like(scale)
        numbers = [at for at in range(len(scale)) if at not in self.categories]
        spread = np.empty((len(coefficients), len(scale)))

        start = 0
        for at, shares in zip(self.categories, self.shares, strict=True):
            weights = coefficients[:, start : start + len(shares)]
            mean = weights @ shares
            spread[:, at] = np.sqrt(np.maximum(weights**2 @ shares - mean**2, 0))
            start += len(shares)

        spread[:, numbers] = np.abs(coefficients[:, start:]) * scale[numbers]
        return spread.mean(axis=0)

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of columns of each category: one for each of its values."""
        return tuple(map(len, self.shares))

    @property
    def _values(self) -> Sequence[Array]:
        assert self.encoder is not None  # noqa: S101 - asked for categories alone
        values: Sequence[Array] = self.encoder.named_transformers_["categories"].categories_
        return values


def scaler_of(parts: Sequence[Moments]) -> StandardScaler:
    """Return scikit-learn's scaler for the rows of all parts."""
    scaler = StandardScaler()
    rows = sum(part.rows for part in parts)
    mean = sum(part.rows * part.mean for part in parts) / rows
    squares = sum(part.squares + part.rows * (part.mean - mean) ** 2 for part in parts)

    scaler.n_samples_seen_ = rows
    scaler.mean_ = mean
    scaler.var_ = squares / rows
    scaler.scale_ = np.where(scaler.var_ > 0, np.sqrt(scaler.var_), 1.0)
    scaler.n_features_in_ = len(mean)
    return scaler


def _merged(values: Sequence[Array], counts: Sequence[Array]) -> tuple[Array, Array]:
    """Return the values of all parts, sorted, and the rows of each; the value 0, with no rows, if
    there are no values.
    """
    distinct, places = np.unique(np.concatenate(values), return_inverse=True)
    if not len(distinct):
        return np.zeros(1), np.zeros(1)

    rows = np.bincount(places, weights=np.concatenate(counts), minlength=len(distinct))
    return distinct, rows
