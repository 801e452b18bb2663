"""Score with a saved support-vector classifier; in a model of its format this file travels in place of ``native``."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = "npz-svc"
BLOCK = 4_000_000  # kernel values that are held at once, so that memory does not grow with the rows


class SvcScorer:
    """Scores by support vectors with a Gaussian kernel on standardised features, and a sigmoid of their decision.

    P(1) is the logistic function of ``slope * decision(z) + offset``, where ``decision(z)`` is
    ``sum(dual * exp(-gamma * |z - vector|^2)) + intercept`` of the standardised features z.
    """

    def __init__(
        self,
        vectors: Any,
        dual: Any,
        intercept: float,
        gamma: float,
        mean: Any,
        scale: Any,
        slope: float,
        offset: float,
        device: str = "cpu",
    ) -> None:
        self.vectors, self.dual, self.intercept, self.gamma = vectors, dual, float(intercept), float(gamma)
        self.mean, self.scale, self.slope, self.offset = mean, scale, float(slope), float(offset)
        self.device = device

    def arrays(self) -> dict[str, Any]:
        """Return what the saved file holds: the constructor's arguments, without the device."""
        return {name: value for name, value in vars(self).items() if name != "device"}

    def score(self, x: Any) -> Any:
        """Return P(1), (n,) float64, for (n, features) float32 values, wherever they are, or on a GPU."""
        values = getattr(x, "values", x)
        if self.device == "cuda" and isinstance(values, np.ndarray):
            import cupy

            values = cupy.asarray(values)
        xp = sys.modules[type(values).__module__.partition(".")[0]]  # numpy or cupy
        mean, scale, vectors, dual = (xp.asarray(each) for each in (self.mean, self.scale, self.vectors, self.dual))
        margin = xp.empty(len(values))
        step = max(BLOCK // max(len(dual), 1), 1)
        for start in range(0, len(values), step):
            z = (values[start : start + step] - mean) / scale
            margin[start : start + step] = kernel(z, vectors, self.gamma, xp) @ dual
        margin = self.slope * (margin + self.intercept) + self.offset
        return 0.5 * (1 + xp.tanh(0.5 * margin))  # the logistic function, without overflow


def kernel(z: Any, vectors: Any, gamma: float, xp: Any = np) -> Any:
    """Return ``exp(-gamma * |z - vector|^2)`` of (n, features) rows and (m, features) vectors, (n, m)."""
    distances = z @ vectors.T
    distances *= -2
    distances += (z**2).sum(axis=1)[:, None]
    distances += (vectors**2).sum(axis=1)
    xp.maximum(distances, 0, out=distances)  # two that are alike may round to below it
    distances *= -gamma
    return xp.exp(distances, out=distances)


def load(
    path: str | os.PathLike[str], format: str, device: str = "cpu", threads: int = 1, through: str | None = None
) -> SvcScorer:
    """Load a saved classifier, as ``native.load`` does; it is scored on the host, by NumPy's own threads."""
    if format != FORMAT:
        raise ValueError(f"unknown model format {format!r}")
    return loaded(Path(path).read_bytes())


def loaded(content: bytes, threads: int = 1, device: str = "cpu") -> SvcScorer:
    """Return the scorer of a file's content, whose digest the caller has checked."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return SvcScorer(**arrays, device=device)
