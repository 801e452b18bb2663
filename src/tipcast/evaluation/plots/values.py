"""Colors of features' values: of amounts from low to high, of categories by their names."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from numpy.typing import NDArray

from tipcast.evaluation.plots.page import BLUE, INK, ORANGE
from tipcast.evaluation.sums import Floats

AMOUNTS = LinearSegmentedColormap.from_list("amounts", [BLUE, "#c3b7c9", ORANGE])
"""Colors from the lowest value of a feature to the highest."""
NAMED = ("#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#7a4f1d", "#6a3d9a")
"""Colors of the commonest categories of a feature."""
PLAIN = "#9aa1aa"
"""Color of other categories: their codes are no amounts."""
MISSING = INK
Column = NDArray[np.float32]
"""(rows,) values of a feature: amounts, or codes of categories."""
Categories = Mapping[str, Sequence[str]]
"""Feature that is a category -> the names of its codes; empty if they have none."""


@dataclass(frozen=True)
class ShownFeatures:
    """Features whose values are shown by colors, and what the colors say.

    Categories have no order: those of one feature are colored by name, all others are grey. It is
    the first feature with few categories, or else the first one whose codes have names.
    """

    columns: Mapping[str, Column]
    """Feature -> its values."""
    categories: Categories

    @cached_property
    def named(self) -> str:
        """The feature whose categories are colored by name; empty if no codes have names."""
        candidates = [name for name in self.columns if self.categories.get(name)]
        return min(candidates, key=self._has_many, default="")

    def _has_many(self, name: str) -> bool:
        """Return whether a feature has more categories than there are colors."""
        codes = self.columns[name]
        return len(np.unique(codes[~is_missing_code(codes)])) > len(NAMED)

    @cached_property
    def colors_of_codes(self) -> dict[int, str]:
        """Color of each of the commonest codes of the named feature."""
        if not self.named:
            return {}
        return commonest(self.columns[self.named])

    def colors(self) -> Floats:
        """Return colors (rows, features, 4) of all values."""
        return np.stack([self._colors_of(name) for name in self.columns], axis=1)

    def _colors_of(self, name: str) -> Floats:
        values = self.columns[name]
        if name not in self.categories:
            return amount_colors(values)
        if name == self.named:
            return category_colors(values, self.colors_of_codes)
        return category_colors(values, {})

    def legend(self, colors: Floats) -> dict[str, Any]:
        """Return what those of the colors (rows, features, 4) say that no name belongs to."""
        entries: dict[str, Any] = {}
        if any(name not in self.categories for name in self.columns):
            entries |= {"low value": AMOUNTS(0.0), "high value": AMOUNTS(1.0)}
        if is_used(PLAIN, colors):
            entries["other categories" if self.named else "category"] = PLAIN
        if is_used(MISSING, colors):
            entries["missing"] = MISSING
        return entries

    def names(self) -> dict[str, str]:
        """Return the name of each category that has a color of its own -> the color."""
        names = self.categories.get(self.named, ())
        return {
            names[code]: color for code, color in self.colors_of_codes.items() if code < len(names)
        }


def is_used(color: str, colors: Floats) -> bool:
    """Return whether a color is among others (rows, features, 4)."""
    return bool((colors == to_rgba(color)).all(axis=-1).any())


def amount_colors(values: Column) -> Floats:
    """Return colors (rows, 4) of amounts (rows,) by their rank; ink of missing ones."""
    missing = np.isnan(values)  # sorted last
    ranks = np.searchsorted(np.sort(values), values)
    highest = max(int((~missing).sum()) - 1, 1)

    colors: Floats = AMOUNTS(ranks / highest)
    colors[missing] = to_rgba(MISSING)
    return colors


def category_colors(codes: Column, colors_of_codes: Mapping[int, str]) -> Floats:
    """Return colors (rows, 4) of codes (rows,); grey of those that have none, ink of missing
    ones.
    """
    colors = np.tile(to_rgba(PLAIN), (len(codes), 1))
    for code, color in colors_of_codes.items():
        colors[codes == code] = to_rgba(color)
    colors[is_missing_code(codes)] = to_rgba(MISSING)
    return colors


def is_missing_code(codes: Column) -> NDArray[np.bool_]:
    """Return (rows,) whether no category is there: NaN, or the code -1."""
    return ~(codes >= 0)


def commonest(codes: Column) -> dict[int, str]:
    """Return a color of each of the commonest codes (rows,), in the order of the codes."""
    counts = Counter(codes[~is_missing_code(codes)].astype(int).tolist())
    ranked = sorted(counts, key=lambda code: (-counts[code], code))
    return dict(zip(sorted(ranked[: len(NAMED)]), NAMED, strict=False))
