"""Categories as columns of 0 and 1, one for each value, for the models that know numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from tipcast.compute.base import Array


def one_hot(z: Array, at: Sequence[int]) -> tuple[Any, tuple[Any, Array]]:
    """Make a column of each value that the categories, by their places, have; the other columns come after these.

    A value of another row that is none of them is in none of the columns.

    Returns
    -------
    tuple
        Sparse rows; and what makes them of (n, features) values, with the standard deviations of their columns.

    """
    categories = ("categories", OneHotEncoder(handle_unknown="ignore"), list(at))
    encoder = ColumnTransformer([categories], remainder="passthrough", sparse_threshold=1.0)
    rows = encoder.fit_transform(z)
    return rows, (encoder, StandardScaler(with_mean=False).fit(rows).scale_)


def of_features(weights: Array, encoder: Any, features: int) -> Array:
    """Return the sums of columns' weights over those of each feature."""
    (_, categories, at), *_ = encoder.transformers_
    owners = np.repeat(at, [len(values) for values in categories.categories_])
    return np.bincount(np.concatenate([owners, np.setdiff1d(np.arange(features), at)]), weights, features)
