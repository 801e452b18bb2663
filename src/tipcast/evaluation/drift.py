"""How far rows have moved from those of training: the population stability index of each feature and of the score.

PSI = sum over bins of (share now - share then) * ln(share now / share then). Below 0.1 little has changed, from 0.25
on much has: the rule of thumb of Siddiqi, Credit Risk Scorecards (Wiley 2006). Of two samples of one population, PSI is
about (1/n + 1/m) times a chi-squared variable with one degree of freedom less than there are bins: Yurdakul,
Statistical Properties of Population Stability Index (dissertation, Western Michigan University 2018). So few rows have
a large PSI by chance alone, and a verdict needs more than chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tipcast.evaluation import binned, profile
from tipcast.evaluation.binned import Binned

SOME, MUCH = 0.1, 0.25
EMPTY = 0.5
"""Rows that an empty bin counts as: the logarithm of nothing is no number."""
Z95 = 1.6448536269514722
"""95 % point of the normal distribution."""
SCORE = "score"


@dataclass(frozen=True)
class Drift:
    """How one feature, or the score, has moved."""

    name: str
    psi: float
    chance: float
    """What 95 of 100 samples of unmoved rows stay below."""
    labels: Sequence[str]
    """The bins, and their shares of the rows then and now."""
    then: Sequence[float]
    now: Sequence[float]

    @property
    def verdict(self) -> str:
        """``little``, ``some`` or ``much``."""
        if self.psi < SOME or self.psi <= self.chance:
            return "little"
        return "some" if self.psi < MUCH else "much"


def psi(then: Sequence[float], now: Sequence[float], then_rows: int, now_rows: int) -> float:
    """Return the population stability index of so many rows' shares in the same bins."""
    least = EMPTY / max(then_rows, 1), EMPTY / max(now_rows, 1)
    pairs = [(max(a, least[0]), max(b, least[1])) for a, b in zip(then, now, strict=True) if a or b]
    return math.fsum((b - a) * math.log(b / a) for a, b in pairs)


def chance(bins: int, then_rows: int, now_rows: int) -> float:
    """Return the 95 % point of the index of two samples of one population (chi-squared by Wilson and Hilferty)."""
    free = max(bins - 1, 1)
    spread = 2 / (9 * free)
    return (1 / max(then_rows, 1) + 1 / max(now_rows, 1)) * free * (1 - spread + Z95 * math.sqrt(spread)) ** 3


def drifts(described: Mapping[str, Any], features: Mapping[str, Any], scores: Binned) -> list[Drift]:
    """Hold rows against a training's profile.

    Parameters
    ----------
    described
        What ``profile.profile`` returned at training.
    features
        Feature -> counts, see ``profile.count``.
    scores
        All rows' scores.

    Returns
    -------
    list of Drift
        The score first, then the features, the most moved first.

    """
    rows = int(scores.rows.sum())
    if not rows:
        return []
    score = _drift(SCORE, described["score"], binned.coarse(scores.rows), described["score"]["rows"], rows)
    found = [
        _drift(name, described["features"][name], counts, described["rows"], rows)
        for name, counts in features.items()
        if name in described["features"]
    ]
    return [score, *sorted(found, key=lambda drift: (-drift.psi, drift.name))]


def _drift(name: str, then: Mapping[str, Any], counts: Any, then_rows: int, rows: int) -> Drift:
    now = profile.shares(counts, then["bins"])
    labels = [profile.label(name, each) for each in then["bins"]]
    filled = sum(1 for pair in zip(then["shares"], now, strict=True) if max(pair) > 0)
    limit = chance(filled, then_rows, rows)
    moved = psi(then["shares"], now, then_rows, rows)
    return Drift(name, moved, limit, labels, then["shares"], now)
