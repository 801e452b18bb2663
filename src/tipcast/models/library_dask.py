"""A fit by a library's own Dask class, on the parts that all workers hold."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tipcast.compute.base import Array, Frame, module_of
from tipcast.config.errors import TipcastError
from tipcast.models import base
from tipcast.models.base import Parts
from tipcast.models.library_class import as_sklearn, find_class, fit_weighted
from tipcast.models.library_rows import LibraryRows
from tipcast.models.preprocessing import Preprocessing

if TYPE_CHECKING:
    import dask.array as da
    from distributed import Client

DASK_ML = {"LinearRegression": {"solver": "newton", "max_iter": 10}}
"""Class of Dask-ML -> parameters that scikit-learn's class of that name lacks: here the solver
without a penalty.
"""
TRIES = 5
"""Fits by a Dask class of cuML's, at most. If other processes use the GPU, least squares of cuML
26.10 sometimes returns wrong coefficients for unchanged rows, a race like that of
https://github.com/rapidsai/cuml/pull/4539.
"""


@dataclass(frozen=True)
class DaskRows:
    """Training rows on workers, and how the library's class gets them."""

    client: "Client"
    sides: Mapping[str, Parts]
    """Features ``x`` and, if there are any, targets ``y`` and ``weight``."""
    homes: Sequence[str]
    """Address of the worker of each part."""
    steps: Preprocessing


def fit_dask_class(library: LibraryRows, rows: DaskRows, seed: int) -> Any:
    """Fit by the library's Dask class; return a model of one process."""
    cls = find_class(library.distributed)
    if cls.__module__.startswith("dask_ml."):
        return _fit_dask_ml(library, cls, rows, seed)
    return _fit_cuml(library, cls, rows, seed)


def _fit_dask_ml(library: LibraryRows, cls: type, rows: DaskRows, seed: int) -> Any:
    """Fit a class of Dask-ML on arrays with a chunk for each part."""
    groups = [[number] for number in range(len(rows.homes))]
    converters: dict[str, Callable[..., Array]] = {
        "x": partial(library.values, steps=rows.steps),
        "y": base.joined,
        "weight": base.joined,
    }
    dtype: type[np.floating[Any]] = np.float32
    if library.kind.has_target:
        dtype = np.float64

    # Without persist, Dask-ML's tasks would lose the futures that their arrays are made of.
    arrays = _dask_arrays(rows, groups, converters)
    persisted = {name: array.astype(dtype).persist() for name, array in arrays.items()}
    with warnings.catch_warnings(action="ignore"):
        unfitted = library.make(cls, seed, 1, **DASK_ML.get(cls.__name__, {}))
        return _from_dask_ml(library, fit_weighted(unfitted, **persisted))


def _from_dask_ml(library: LibraryRows, model: Any) -> Any:
    """Return scikit-learn's estimator with the centres or the coefficients that Dask-ML found."""
    reference = find_class(library.reference)
    if not library.kind.has_target:
        centres = np.asarray(model.cluster_centers_, dtype=np.float64)
        return reference(len(centres), init=centres, n_init=1, max_iter=1).fit(centres)

    linear = reference(**library.params)
    linear.coef_ = np.asarray(model.coef_, dtype=np.float64)
    linear.n_features_in_ = len(model.coef_)
    linear.intercept_ = 0.0
    if library.params.get("fit_intercept", True):
        linear.intercept_ = float(model.intercept_)
    return linear


def _fit_cuml(library: LibraryRows, cls: type, rows: DaskRows, seed: int) -> Any:
    """Fit a class of cuML on arrays with a chunk for each worker; C003 if the coefficients are
    wrong in every try.
    """
    # One array for each worker: cuML's classes would copy parts that are not arrays.
    groups = [
        [number for number, home in enumerate(rows.homes) if home == address]
        for address in sorted(set(rows.homes))
    ]
    converters: dict[str, Callable[..., Array]] = {
        "x": partial(library.values, steps=rows.steps),
        "y": library.targets,
        "weight": base.joined,
    }

    for _ in range(TRIES):  # with new arrays: cuML moves the mean of their columns to 0, and back
        unfitted = library.make(cls, seed, 1, client=rows.client)
        fitted = fit_weighted(unfitted, **_dask_arrays(rows, groups, converters))
        model = as_sklearn(fitted.get_combined_model())
        if library.kind.has_classes or not hasattr(model, "coef_"):
            return model
        if _explains(library, rows, model):
            return model

    what = f"gave coefficients that explain nothing in {TRIES} attempts"
    fix = "use cluster.n_workers=1, or model=ridge"
    raise TipcastError("C003", library.distributed, what, fix)


def _dask_arrays(
    rows: DaskRows,
    groups: Sequence[Sequence[int]],
    converters: Mapping[str, Callable[..., Array]],
) -> "dict[str, da.Array]":
    """Return side -> Dask array.

    Each group of parts becomes a chunk, made by the side's converter on the worker that holds the
    group.
    """
    import dask.array as da  # takes a third of a second, which a fit on one worker saves

    client = rows.client
    arrays = {}
    for name, side in rows.sides.items():
        chunks = [
            client.submit(
                converters[name],
                [side[number] for number in group],
                workers=[rows.homes[group[0]]],
                pure=False,
            )
            for group in groups
        ]
        shapes = client.gather(client.map(_shape_of, chunks, pure=False))
        chunk_arrays = [
            da.from_delayed(chunk, *shape) for chunk, shape in zip(chunks, shapes, strict=True)
        ]
        arrays[name] = da.concatenate(chunk_arrays)

    return arrays


def _shape_of(chunk: Array) -> tuple[tuple[int, ...], Any, Array]:
    """Return a chunk's shape, type and an empty piece of it."""
    return chunk.shape, chunk.dtype, chunk[:0]


def _explains(library: LibraryRows, rows: DaskRows, model: Any) -> bool:
    """Whether a linear model's training rows are no further from its predictions than from a
    constant.
    """
    count = partial(_squares, library)
    sums = rows.client.gather(
        rows.client.map(
            count, rows.sides["x"], rows.sides["y"], model=model, steps=rows.steps, pure=False
        )
    )
    number, total, squares, residual_squares = np.sum(sums, axis=0)

    spread = squares
    if library.params.get("fit_intercept", True):
        spread = squares - total**2 / number
    return bool(residual_squares <= spread + 1e-6 * squares)


def _squares(
    library: LibraryRows, x: Frame, y: Frame, model: Any, steps: Preprocessing
) -> list[float]:
    """Return the number of a part's rows, the sum of its targets, the sum of their squares, and
    that of the squared residuals.
    """
    z = library.values([x], steps).astype(np.float64, copy=False)
    target = y.values.astype(np.float64)
    residuals = target - z @ module_of(z).asarray(model.coef_) - model.intercept_
    return [
        float(len(target)),
        float(target.sum()),
        float(target @ target),
        float(residuals @ residuals),
    ]
