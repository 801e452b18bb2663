"""Score with saved nearest neighbours; in a model of its format this file travels in place of ``native``.

Values may be few, and so rows at the same distance. Which of these are the last of the ``k`` nearest would
depend on library, machine and the order of the rows: here all rows at the distance of the last share the votes that
are left, which is the mean over every choice among them.

SciPy's k-d tree looks them up: it finds the neighbours that scikit-learn's search does, in less time than the tree of
scikit-learn, its brute force or blocks of NumPy, and a model with scikit-learn in it would need SciPy too.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = "npz-knn"
WEIGHTS = ("uniform", "distance")
FORMER = "positives"  # what older files call the sums, of two classes
BLOCK = 500_000  # neighbours that are held at once, so that memory does not grow with the rows
GPU_BLOCK = 20_000_000  # the same on a GPU, which fewer do not keep busy
SPARE = 16  # neighbours looked up beyond k: where they all are as near as the last, more are looked up
SLACK = 4e-3  # error of cuML's squared distances, beside the squared lengths, at most: also with the 10 bits of TF32
ALIKE = 1e-9  # relative difference of two distances that are the same: sums round differently from library to library


class KnnScorer:
    """Scores by the votes of the nearest training rows, on standardised features; rows that are the same are kept once.

    ``rows`` are (m, features) float64, the distinct training rows, standardised by (features,) ``mean`` and ``scale``;
    each stands for so many, (m,) ``counts``. ``sums`` are (m,) of their values, which of two classes is how many are of
    the second; of more classes (classes, m) how many are of each. ``n_neighbors`` and ``weights`` as of scikit-learn's
    ``KNeighborsClassifier``. ``threads`` look up neighbours at once, 0 for all cores; with ``device`` ``cuda`` rows
    that lie on the host are scored on a GPU too.
    """

    def __init__(
        self,
        rows: Any,
        counts: Any,
        sums: Any,
        n_neighbors: int,
        weights: str,
        mean: Any,
        scale: Any,
        threads: int = 1,
        device: str = "cpu",
    ) -> None:
        self.rows, self.counts, self.sums = rows, counts, sums
        self.n_neighbors, self.weights = int(n_neighbors), str(weights)
        self.mean, self.scale = mean, scale
        self.threads, self.device = threads, device
        if self.weights not in WEIGHTS or not 0 < self.n_neighbors <= counts.sum():
            raise ValueError(f"{self.n_neighbors} neighbours, weighted {self.weights!r}, of {counts.sum()} rows")
        self._found: dict[str, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:  # the index is made where it is used
        return KnnScorer, (*self.arrays().values(), self.threads, self.device)

    def arrays(self) -> dict[str, Any]:
        """Return what the saved file holds: the constructor's first arguments."""
        names = ("rows", "counts", "sums", "n_neighbors", "weights", "mean", "scale")
        return {name: getattr(self, name) for name in names}

    def score(self, x: Any) -> Any:
        """Return what the neighbours of (n, features) float32 rows say, here or on a GPU; NaN where any is not finite.

        float64, P(1) or the value (n,), of more classes the probabilities (n, classes).
        """
        values = getattr(x, "values", x)
        if self.device == "cuda" and isinstance(values, np.ndarray):
            import cupy

            values = cupy.asarray(values)
        xp = sys.modules[type(values).__module__.partition(".")[0]]  # numpy or cupy
        mean, scale, counts, sums = (
            xp.asarray(each, dtype=xp.float64) for each in (self.mean, self.scale, self.counts, self.sums)
        )
        scores, number = xp.full((len(values), *sums.shape[:-1]), xp.nan), self.n_neighbors + SPARE
        for start in range(0, len(values), BLOCK):
            z = (values[start : start + BLOCK] - mean) / scale
            known = xp.isfinite(z).all(axis=1)
            scores[start : start + BLOCK][known] = self._votes(z[known], counts, sums, number, xp)
        return scores

    def _votes(self, z: Any, counts: Any, sums: Any, number: int, xp: Any) -> Any:
        """Return the scores of standardised rows by so many neighbours each, or more where they do not tell."""
        number = min(number, len(self.rows))
        scores = xp.empty((len(z), *sums.shape[:-1]))
        step = max((BLOCK if xp is np else GPU_BLOCK) // (number * sums[..., 0].size), 1)
        for start in range(0, len(z), step):
            block = z[start : start + step]
            distances, at, reach = self._nearest(block, number, xp)
            found, last = votes(distances, counts[at], sums[..., at], self.n_neighbors, self.weights, xp)
            unsure = reach <= last * (1 + ALIKE)
            if number < len(self.rows) and bool(unsure.any()):
                found[unsure] = self._votes(block[unsure], counts, sums, 4 * number, xp)
            scores[start : start + step] = found
        return scores

    def _nearest(self, z: Any, number: int, xp: Any) -> tuple[Any, Any, Any]:
        """Return (n, number) distances, ascending, whose rows they are, and (n,) how far out no row is missing."""
        if xp.__name__ not in self._found:
            self._found[xp.__name__] = _index(self.rows, xp)
        index = self._found[xp.__name__]
        if xp is np:
            distances, at = (each.reshape(-1, number) for each in index.query(z, number, workers=self.threads or -1))
            return distances, at, distances[:, -1]
        rows, index = index  # whose distances are of single precision: they choose candidates, measured again here
        rough, at = index.kneighbors(z.astype(xp.float32), n_neighbors=number)
        squares = xp.zeros(at.shape)
        for column, own in zip(rows.T, z.T, strict=True):
            squares += (column[at] - own[:, None]) ** 2
        order = squares.argsort(axis=1)
        squares, at = (xp.take_along_axis(each, order, axis=1) for each in (squares, at))
        furthest, lengths = rough.max(axis=1).astype(xp.float64) ** 2, (z**2).sum(axis=1)
        reach = xp.sqrt(xp.maximum(furthest - SLACK * (1 + lengths + furthest), 0))
        return xp.sqrt(squares), at, reach


def votes(distances: Any, counts: Any, sums: Any, k: int, weights: str, xp: Any = np) -> tuple[Any, Any]:
    """Return the means by the k nearest of (n, m) rows that stand for several each, and (n,) the distance of the last.

    The means are (n,) of (n, m) sums, (n, classes) of (classes, n, m). Weights ``distance`` are the inverse; rows at
    distance 0 decide alone where there are any, as in scikit-learn.
    """
    last = xp.take_along_axis(distances, (counts.cumsum(axis=1) >= k).argmax(axis=1)[:, None], axis=1)
    nearer = distances < last * (1 - ALIKE)
    tied = ~nearer & (distances <= last * (1 + ALIKE))
    left = k - (counts * nearer).sum(axis=1)  # places that the tied ones share
    rate = (sums * tied).sum(axis=-1) / (counts * tied).sum(axis=1)
    if weights == "distance":
        same = distances == 0
        nearer = nearer * (last / xp.where(same, 1, distances))  # the tied ones weigh 1
    scores = (sums * nearer).sum(axis=-1) + left * rate
    scores /= (counts * nearer).sum(axis=1) + left
    if weights == "distance":
        exact = same[:, 0]
        alone = (sums * same).sum(axis=-1) / xp.where(exact, (counts * same).sum(axis=1), 1)
        scores = xp.where(exact, alone, scores)
    return scores.T, last[:, 0]


def _index(rows: Any, xp: Any) -> Any:
    """Return SciPy's tree of (m, features) rows; on a GPU the rows there, and cuML's index of them."""
    if xp is np:
        from scipy.spatial import cKDTree

        return cKDTree(rows)
    from cuml.neighbors import NearestNeighbors

    rows, index = xp.asarray(rows), NearestNeighbors(algorithm="brute", metric="euclidean", output_type="cupy")
    return rows, index.fit(rows.astype(xp.float32))


def load(
    path: str | os.PathLike[str] | bytes, format: str, device: str = "cpu", threads: int = 1, through: str | None = None
) -> KnnScorer:
    """Load a saved model, as ``native.load`` does, to score on the host."""
    if format != FORMAT:
        raise ValueError(f"unknown model format {format!r}")
    return loaded(path if isinstance(path, bytes) else Path(path).read_bytes(), threads)


def loaded(content: bytes, threads: int = 1, device: str = "cpu") -> KnnScorer:
    """Return the scorer of a file's content, whose digest the caller has checked."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        found = dict(arrays)
    if FORMER in found:
        found["sums"] = found.pop(FORMER)
    return KnnScorer(**found, threads=threads, device=device)
