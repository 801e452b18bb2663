"""Nearest rows by cuML, which is imported where a process with a GPU looks them up."""

from __future__ import annotations

from typing import final

from tipcast.compute.base import Array

SLACK = 4e-3
"""Error of cuML's squared distances, beside the rows' squared lengths whose differences they are, at most: also where a
GPU multiplies with the 10 bits of TF32."""


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
