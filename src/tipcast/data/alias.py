"""Walker's alias tables: a draw from any discrete distribution by one random word and two look-ups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Ints: TypeAlias = Any
Floats: TypeAlias = Any


@dataclass(frozen=True)
class Alias:
    """One table: the high ``bits`` of a random word choose a cell, the rest decide between it and its alias."""

    keep: Ints
    """(2**bits,) thresholds in units of the word's low bits."""
    other: Ints
    """(2**bits,) aliases."""
    shift: int

    def draw(self, words: Ints) -> Ints:
        """Map (n,) random unsigned words to (n,) outcomes."""
        cell = (words >> words.dtype.type(self.shift)).astype(np.intp)
        low = words & words.dtype.type((1 << self.shift) - 1)
        return np.where(low < self.keep[cell], cell, self.other[cell])


def alias(shares: Floats, word_bits: int) -> Alias:
    """Build an alias table without a loop: running shortfalls of poor cells are met by running excesses of rich ones.

    Parameters
    ----------
    shares
        (n,) weights, not negative.
    word_bits
        Bits of the random words that it will be drawn with.

    """
    bits = max(int(np.ceil(np.log2(len(shares)))), 1)
    weight = np.zeros(1 << bits)
    weight[: len(shares)] = shares
    weight *= len(weight) / weight.sum()
    poor, rich = np.flatnonzero(weight < 1), np.flatnonzero(weight >= 1)
    lack, excess = np.cumsum(1 - weight[poor]), np.cumsum(weight[rich] - 1)
    keep, other = weight.copy(), np.arange(len(weight))
    before = np.concatenate([[0.0], lack[:-1]]) if len(lack) else lack
    giver = np.minimum(np.searchsorted(excess, before, side="right"), len(rich) - 1)
    other[poor] = rich[giver]
    if len(lack):
        meets = np.searchsorted(lack, excess, side="left")
        ends = meets < len(lack)
        keep[rich] = np.where(ends, 1 - (lack[np.minimum(meets, len(lack) - 1)] - excess), 1)
        other[rich[:-1]] = rich[1:]
    shift = word_bits - bits
    kind = np.uint16 if word_bits == 16 else np.uint32
    return Alias(np.round(keep.clip(0, 1) * (1 << shift)).astype(kind), other.astype(np.intp), shift)


def inverse(shares: list[float]) -> Ints:
    """Tabulate 8192 outcomes in proportion to the shares: (8192,) uint8."""
    ends = np.cumsum(shares) / sum(shares)
    return np.searchsorted(ends, (np.arange(8192) + 0.5) / 8192, side="right").astype(np.uint8)
