"""Rows as a library's class gets them: all or a sample, and preprocessed."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import InputTags, get_tags

from tipcast.compute.base import Array, Frame
from tipcast.config.errors import TipcastError
from tipcast.models import base
from tipcast.models.base import Estimator, Split
from tipcast.models.library_class import find_class
from tipcast.models.preprocessing import Moments, Preprocessing

TREES = ("sklearn.ensemble.", "sklearn.tree.", "cuml.ensemble.")
"""Beginnings of the names of classes that grow trees."""
MOST_DENSE_COLUMNS = 4_096
"""Most columns of 0 and 1 for categories if a library takes no sparse matrix: 33 GB for a million
rows.
"""


def chosen_by_part(rows: Iterable[int], most: int | None, seed: int) -> list[Array | slice]:
    """Return the row numbers to take within each part, from the parts' sizes: all, or ``most``
    drawn uniformly.
    """
    ends = np.cumsum(list(rows))
    if most is None or ends[-1] <= most:
        return [slice(None)] * len(ends)  # no part is copied

    numbers = np.sort(np.random.default_rng(seed).choice(ends[-1], most, replace=False))
    by_part = np.split(numbers, np.searchsorted(numbers, ends[:-1]))
    starts = [0, *ends[:-1]]
    return [part - start for part, start in zip(by_part, starts, strict=True)]


def rows_at(numbers: Array | slice, **sides: Frame) -> Split:
    """Return some rows of a part, whose sides are those of a ``Split``, on their device and without
    their index.
    """
    chosen = {
        name: side.reset_index(drop=True).iloc[numbers].reset_index(drop=True)
        for name, side in sides.items()
    }
    return Split(**chosen)


def weight_and_sum(target: Frame, weight: Frame | None = None) -> tuple[float, float]:
    """Return the sum of a part's weights, or else its number of rows, and the weighted sum of its
    targets.
    """
    values = target.values
    if weight is None:
        return float(len(values)), float(values.sum(dtype=np.float64))

    weights = weight.values.astype(np.float64)
    return float(weights.sum()), float(weights @ values.astype(np.float64))


@dataclass(frozen=True)
class LibraryRows(Estimator):
    """A library's class, and the rows that it takes."""

    library: str = ""
    """Dotted name of the class that fits."""
    distributed: str = ""
    """The library's own Dask class, as cuML and Dask-ML have them."""
    reference: str = ""
    """The class whose parameters are valid: a GPU's class has them under the same names."""
    on_gpu: bool = False
    """Whether the model has a class for GPUs too: both get the same features."""

    def make(self, cls: type, seed: int, threads: int, **params: Any) -> Any:
        """Return an unfitted object of a class, with ``params`` in place of the model's own."""
        accepted = set(inspect.signature(cls).parameters)
        if "kwargs" in accepted:  # cuML's Dask classes pass on what they do not name
            accepted |= set(inspect.signature(find_class(self.reference)).parameters) - {"n_jobs"}
        settings = {"random_state": seed, "n_jobs": threads}
        accepted_settings = {name: value for name, value in settings.items() if name in accepted}
        return cls(**{**accepted_settings, **self.params, **params})

    @property
    def takes_categories(self) -> bool:
        """Yes, each of their values as a column."""
        return True

    @property
    def takes_missing(self) -> bool:
        """Yes, if scikit-learn says so of the class, and no other class fits the model."""
        if self.on_gpu or self.fit_settings.get("standardize"):
            return False
        return bool(self._tags.allow_nan)

    @property
    def one_hot(self) -> bool:
        """Yes, except for trees, which can split codes as often as it takes."""
        return not self.reference.startswith(TREES)

    @property
    def dense(self) -> bool:
        """Whether the class takes no sparse matrix, or is better without one: neighbours are found
        in trees.
        """
        cls = find_class(self.reference)
        if self.device != "cpu" or self.distributed or not hasattr(cls, "predict"):
            return True
        return hasattr(cls, "kneighbors") or not self._tags.sparse

    def check_width(self, values: Mapping[str, int]) -> None:
        """Refuse (C003) categories with more values than there can be dense columns; there is no
        limit to sparse ones.
        """
        columns = sum(values.values())
        if not self.dense or columns <= MOST_DENSE_COLUMNS:
            return

        widest = max(values, key=lambda name: values[name])
        what = (
            f"{columns:,} values of {', '.join(values)} each make a dense 0/1 column; the model "
            f"takes at most {MOST_DENSE_COLUMNS:,}"
        )
        fix = (
            f"leave {widest} out of task.features and task.categorical (in a table, "
            f"data.types={{{widest}: none}}), or use model=random_forest"
        )
        raise TipcastError("C003", self.library, what, fix)

    @property
    def _tags(self) -> Any:
        """scikit-learn's tags on the rows that the class takes."""
        try:
            return get_tags(self.make(find_class(self.reference), 0, 1)).input_tags
        # The class only looks like scikit-learn's, or its parameters are bad.
        except (AttributeError, TypeError, ValueError):
            return InputTags(sparse=False)

    @property
    def precision(self) -> type[np.floating[Any]]:
        """Type of the rows that the library gets.

        It is float64 if the rows are standardised or have categories: float32 sums of ten million
        squares are off by percents.
        """
        if self.fit_settings.get("standardize") or self.categorical:
            return np.float64
        return np.float32

    def places(self, features: Sequence[str]) -> list[int]:
        """Return the positions of the categories among the features."""
        return [features.index(name) for name in self.categorical]

    def preprocessing(self, parts: Sequence[Moments], features: Sequence[str]) -> Preprocessing:
        """Return the steps before the library, learnt from the moments of all parts."""
        standardize = bool(self.fit_settings.get("standardize"))
        dense = bool(self.categorical) and self.dense
        steps = Preprocessing.of_parts(
            parts, self.places(features), standardize=standardize, dense=dense
        )
        self.check_width(dict(zip(self.categorical, steps.widths, strict=True)))
        return steps

    def values(self, frames: list[Frame], steps: Preprocessing) -> Array:
        """Return frames as (n, columns) values as the library takes them; empties their list."""
        order = "F" if self.kind.has_target else "C"
        return steps.transform(base.joined(frames, order, self.precision), order)

    def targets(self, parts: list[Frame]) -> Array:
        """Return parts of the targets as (n,) classes, or values of at least the rows' precision;
        empties their list.

        Targets that are float64 stay so, as scikit-learn's trees learn from float32 rows too.
        """
        y = base.joined(parts)
        if y.dtype.kind == "f":
            return y.astype(np.promote_types(y.dtype, self.precision), copy=False)
        return y
