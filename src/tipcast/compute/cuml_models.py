"""What cuML's models need beyond scikit-learn's interface; cuML is imported where a process with a GPU runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from tipcast.compute.base import Array, Frame

SLACK = 4e-3
"""Error of cuML's squared distances, beside the rows' squared lengths whose differences they are, at most: also where a
GPU multiplies with the 10 bits of TF32."""


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
    """Grow a forest from dask-cuDF collections on several workers, each tree by all of them; see ``grow``."""
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
    return Grown(model.as_treelite().serialize_bytes(), tuple(importance.tolist()), device)


@final
class Neighbours:
    """Rows on this process's GPU, and cuML's index of them.

    Its distances are of single precision: they choose candidates, which are measured again.

    Parameters
    ----------
    rows
        (m, features) float64 on the host.

    """

    def __init__(self, rows: Array) -> None:
        import cupy
        from cuml.neighbors import NearestNeighbors

        self._rows = cupy.asarray(rows)
        index = NearestNeighbors(algorithm="brute", metric="euclidean", output_type="cupy")
        self._index = index.fit(self._rows.astype(cupy.float32))

    def nearest(self, z: Array, number: int) -> tuple[Array, Array, Array]:
        """Find the ``number`` rows nearest to each of (n, features) float64 rows on this GPU.

        Returns
        -------
        tuple
            (n, number) distances by double precision, ascending; which rows they are of; and (n,) how far out no row is
            missing.

        """
        import cupy

        rough, at = self._index.kneighbors(z.astype(cupy.float32), n_neighbors=number)
        squares = cupy.zeros(at.shape)
        for column, own in zip(self._rows.T, z.T, strict=True):
            squares += (column[at] - own[:, None]) ** 2
        order = squares.argsort(axis=1)
        squares, at = (cupy.take_along_axis(each, order, axis=1) for each in (squares, at))
        furthest = rough.max(axis=1).astype(cupy.float64) ** 2
        lengths = (z**2).sum(axis=1)
        reach = cupy.sqrt(cupy.maximum(furthest - SLACK * (1 + lengths + furthest), 0))
        return cupy.sqrt(squares), at, reach


def support_vectors(**params: Any) -> Any:
    """Return ``cuml.svm.SVC`` of its own parameters that takes and gives host arrays."""
    from cuml.svm import SVC

    return SVC(**params, output_type="numpy")
