"""The plane that rows of many features are drawn on: their first two principal components."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tipcast.evaluation.plots.page import percent
from tipcast.evaluation.sums import Floats


@dataclass(frozen=True)
class Plane:
    """The first two principal components of standardised features."""

    scaler: Any
    """A fitted ``StandardScaler``."""
    components: Any
    """A fitted ``PCA``."""

    @property
    def names(self) -> tuple[str, str]:
        """Names of the axes, with the share of the variance that each component has."""
        first, second = np.nan_to_num(self.components.explained_variance_ratio_)
        return (
            f"first principal component ({percent(first)} of variance)",
            f"second principal component ({percent(second)})",
        )

    def project(self, points: Floats) -> Floats:
        """Return (points, 2) coordinates of points (points, features)."""
        coordinates: Floats = self.components.transform(
            _standardised(self.scaler.transform, points)
        )
        return coordinates


def principal_plane(x: Floats) -> Plane:
    """Find the plane of rows (rows, features)."""
    from sklearn.decomposition import PCA  # needed by clusterings only
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(x)
    with np.errstate(invalid="ignore"):
        components = PCA(2, random_state=0).fit(_standardised(scaler.transform, x, zeros=2))
    return Plane(scaler, components)


def _standardised(transform: Callable[[Floats], Floats], points: Floats, zeros: int = 0) -> Floats:
    """Standardise points, and add a column, and rows, of zeros: they change no component, and a
    single feature or row has two with them.
    """
    return np.pad(transform(points), ((0, zeros), (0, 1)))
