"""cuML's random forests: one worker's alone, or one that several grow together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tipcast.compute.base import Frame


@dataclass(frozen=True)
class Grown:
    """A forest, without the library that grew it."""

    checkpoint: bytes
    """Of treelite."""
    importance: tuple[float, ...]
    """Decrease of impurity by feature."""
    device: str


def grow(name: str, x: Sequence[Frame], y: Sequence[Frame], params: Mapping[str, Any], seed: int) -> Grown:
    """Grow a forest from rows that this worker holds.

    Parameters
    ----------
    name
        Of a class of ``cuml.ensemble``.
    x, y
        Parts: (n, features) float32 cuDF DataFrames and (n,) Series, part by part alike.
    params
        Of the class.
    seed
        Of the whole forest.

    """
    import cuml.ensemble

    return _grown(getattr(cuml.ensemble, name)(**params, random_state=seed).fit(*_joined(x, y)))


def grow_together(
    name: str, client: Any, workers: Sequence[str], x: Any, y: Any, params: Mapping[str, Any], seed: int
) -> Grown:
    """Grow a forest from the rows of several workers, each tree by all of them.

    Parameters
    ----------
    name
        Of a class of ``cuml.dask.ensemble``.
    client
        A ``distributed.Client`` of a process that has a GPU.
    workers
        Addresses of the workers that hold rows.
    x, y
        dask-cuDF DataFrame and Series.
    params, seed
        See ``grow``.

    """
    import cuml.dask.ensemble

    forest = getattr(cuml.dask.ensemble, name)(client=client, workers=list(workers), **params, random_state=seed)
    return _grown(forest.fit(x, y).get_combined_model())


def _joined(x: Sequence[Frame], y: Sequence[Frame]) -> tuple[Any, Any]:
    """Return all rows as one array, column by column, so that nothing is copied once more, and the targets."""
    import cupy

    if len(x) == 1:
        return x[0].values, y[0].values
    values = cupy.empty((sum(map(len, x)), x[0].shape[1]), dtype=cupy.float32, order="F")
    start = 0
    for part in x:
        values[start : start + len(part)] = part.values
        start += len(part)
    return values, cupy.concatenate([part.values for part in y])


def _grown(model: Any) -> Grown:
    import cupy

    importance = cupy.asnumpy(cupy.asarray(model.feature_importances_))
    device = f"cuda:{cupy.cuda.Device().id}"
    return Grown(model.as_treelite().serialize_bytes(), tuple(float(share) for share in importance), device)
