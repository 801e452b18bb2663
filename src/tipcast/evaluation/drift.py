"""How far rows have moved from those of training: the population stability index of each feature and of predictions.

PSI = sum over bins of (share now - share then) * ln(share now / share then). Below 0.1 little has changed, from 0.25
on much has: the rule of thumb of Siddiqi, Credit Risk Scorecards (Wiley 2006). Of two samples of one population, PSI is
about (1/n + 1/m) times a chi-squared variable with one degree of freedom less than there are bins: Yurdakul,
Statistical Properties of Population Stability Index (dissertation, Western Michigan University 2018). So few rows have
a large PSI by chance alone, and a verdict needs more than chance.

What training's rows were like travels with the model, as JSON: ``rows``; ``features``: name -> ``edges`` or ``values``
of its bins and their ``shares`` of the rows; ``score``: the ``split`` and number of ``rows`` whose predictions it
tells of, their ``histogram``, its ``bins`` put together to about ten (first and last bin) and their ``shares``. What a
watch needs beside is ``reference``, see ``estimate``, and ``answered``: the share of clean rows that had an answer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tipcast.compute.base import Array, module_of, to_host
from tipcast.evaluation.sums import Parts, even

SOME, MUCH = 0.1, 0.25
EMPTY = 0.5
"""Rows that an empty bin counts as: the logarithm of 0 is not a number."""
ONE_SIDED = 1.6448536269514722
"""95 % point of the normal distribution."""
SCORE = "score"
SAMPLE = 20_000
"""Rows, at even distances, that the bins of features are cut by; their shares are of all rows."""
GROUPS = 10
"""Bins of about equal share that ordered values are put into: deciles, as is usual for a stability index."""
COMMON = 19
"""Values of a nominal feature that have a bin of their own; the others share one."""
MISSING = -1.0
"""What a feature without other negative values has where it is missing."""

Counts = np.ndarray[Any, Any]
Bins = Sequence[Sequence[int]]
"""First and last code of each bin."""


# Profiles of training


def profile(
    client: Any, x: Sequence[Any], parts: Sequence[int], score: Mapping[str, Any], nominal: Sequence[str] = ()
) -> dict[str, Any]:
    """Describe the rows that a model was trained on, in two passes over them where they lie; fit for JSON, see above.

    ``x`` are futures of (rows, features) float32 frames, of as many rows as ``parts`` tells; ``score`` is what
    ``Evaluator.profile`` told of held-out rows. Neighbouring values of ``nominal`` features have nothing in common.
    """
    rows = sum(parts)
    step, starts = even(parts, SAMPLE)
    taken = [client.submit(sample, part, start, step, pure=False) for part, start in zip(x, starts, strict=True)]
    features: dict[str, dict[str, Any]] = client.submit(cut, taken, tuple(nominal), pure=False).result()
    counts = Parts((x,), client).add(functools.partial(of_frame, features=features), total)
    for name, each in features.items():
        each["shares"] = spread(counts[name])
    return {"rows": rows, "features": features, "score": dict(score)}


def described(histogram: Counts, split: str, edges: Sequence[float] | None = None) -> dict[str, Any]:
    """Describe held-out predictions by (bins,) rows: by class, or of numbers between (bins + 1,) edges."""
    bins = _deciles(histogram) if edges is not None else [[at, at] for at in range(len(histogram))]
    found = {"split": split, "rows": int(histogram.sum()), "bins": bins, "shares": shares(histogram, bins)}
    found["histogram"] = spread(histogram)
    return found if edges is None else {**found, "edges": list(edges)}


def sample(x: Any, start: int, step: int) -> Any:
    """Return every ``step``-th row of a frame, on the host."""
    return to_host(x.iloc[start::step])


def cut(samples: Sequence[Any], nominal: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return name -> the bins of a feature, by samples of its rows."""
    found = {}
    for name in samples[0].columns:
        values = np.concatenate([np.asarray(each[name], dtype=np.float64) for each in samples])
        values = values[np.isfinite(values)]
        if name in nominal:
            known, many = np.unique(values, return_counts=True)
            common = known[np.argsort(-many, kind="stable")[:COMMON]]
            found[str(name)] = {"values": sorted(common.tolist())}
        else:
            found[str(name)] = {"edges": _edges(values)}
    return found


def _edges(values: Counts) -> list[float]:
    """Return the borders of deciles; one value with several of them leaves fewer."""
    whole = values[values != MISSING]
    if not len(whole):
        return []
    edges = np.quantile(whole, np.arange(1, GROUPS) / GROUPS, method="higher")
    low = [0.0] if whole.min() >= 0 else []  # what is below is missing
    return sorted({*low, *(edge for edge in edges.tolist() if edge > whole.min())})


# Counts of rows


def of_frame(x: Any, features: Mapping[str, Mapping[str, Any]]) -> dict[str, Counts]:
    """Count the values of a (rows, features) frame; see ``count``."""
    return count(x.values, [str(name) for name in x.columns], features)


def count(
    matrix: Array, names: Sequence[str], features: Mapping[str, Mapping[str, Any]], side: Array | None = None
) -> dict[str, Counts]:
    """Count rows of a (rows, features) float32 matrix, on any device, in the bins of a profile's ``features``.

    Returns feature -> (bins,) rows on the host, or with ``side``, (rows,) of 0 and 1, (2, bins) rows of each side. The
    last bin is of NaN, of a nominal feature of all other values. Features that the profile lacks are not counted.
    """
    return {name: _counted(matrix[:, at], features[name], side) for at, name in enumerate(names) if name in features}


def _counted(values: Array, bins: Mapping[str, Any], side: Array | None) -> Counts:
    xp = module_of(values)
    borders = xp.asarray(bins.get("values", bins.get("edges")), dtype=values.dtype)
    last = len(borders) + ("edges" in bins)
    if "edges" in bins:
        at = xp.searchsorted(borders, values, side="right")
        at = xp.where(xp.isnan(values), last, at)
    elif last:
        at = xp.minimum(xp.searchsorted(borders, values), last - 1)
        at = xp.where(borders[at] == values, at, last)
    else:
        at = xp.zeros(len(values), dtype=xp.int64)
    if side is None:
        found: Counts = to_host(xp.bincount(at, minlength=last + 1))
        return found
    at = at + side * at.dtype.type(last + 1)
    apart: Counts = to_host(xp.bincount(at, minlength=2 * (last + 1))).reshape(2, -1)
    return apart


def total(counts: Sequence[Mapping[str, Counts]]) -> dict[str, Counts]:
    """Return the sums of several parts' counts."""
    return {name: np.sum([part[name] for part in counts], axis=0) for name in (counts[0] if counts else ())}


def _deciles(counts: Counts) -> list[list[int]]:
    """Cut codes at deciles of the rows; one code with several of them leaves fewer bins."""
    passed = np.minimum(np.cumsum(counts[:-1]) * GROUPS // max(int(counts.sum()), 1), GROUPS - 1)
    ends = np.flatnonzero(np.diff(passed, prepend=0)).tolist()
    starts = [0, *(end + 1 for end in ends)]
    return [[first, last] for first, last in zip(starts, [*ends, len(counts) - 1], strict=True)]


def shares(counts: Counts, bins: Bins) -> list[float]:
    """Return the share of the rows in each bin of codes; zeros where there are no rows."""
    every = float(counts.sum()) or 1.0
    return [float(counts[first : last + 1].sum()) / every for first, last in bins]


def spread(counts: Counts) -> list[float]:
    """Return each code's share of the rows; zeros where there are no rows."""
    found: list[float] = (counts / max(int(counts.sum()), 1)).tolist()
    return found


# Later rows against a profile


@dataclass(frozen=True)
class Drift:
    """How one feature, or the predictions, have moved."""

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
    """Return the population stability index of rows' shares in the same bins."""
    least = EMPTY / max(then_rows, 1), EMPTY / max(now_rows, 1)
    pairs = [(max(a, least[0]), max(b, least[1])) for a, b in zip(then, now, strict=True) if a or b]
    return math.fsum((b - a) * math.log(b / a) for a, b in pairs)


def chance(bins: int, then_rows: int, now_rows: int) -> float:
    """Return the 95 % point of the index of two samples of one population (chi-squared by Wilson and Hilferty)."""
    free = max(bins - 1, 1)
    spread = 2 / (9 * free)
    return (1 / max(then_rows, 1) + 1 / max(now_rows, 1)) * free * (1 - spread + ONE_SIDED * math.sqrt(spread)) ** 3


def drifts(then: Mapping[str, Any], features: Mapping[str, Counts], histogram: Counts) -> list[Drift]:
    """Hold counts of rows, by feature, and the histogram of all predictions against a training's profile.

    Returns the score first, then the features, the most moved first.
    """
    rows = int(histogram.sum())
    if not rows:
        return []
    score = then[SCORE]
    histogram = np.pad(histogram, (0, max(len(score["histogram"]) - len(histogram), 0)))  # classes that none is of now
    now = shares(histogram, score["bins"])
    found = [
        _drift(name, labels(each), each["shares"], spread(features[name]), then["rows"], int(features[name].sum()))
        for name, each in then["features"].items()
        if name in features
    ]
    first = _drift(SCORE, labels(score), score["shares"], now, score["rows"], rows)
    return [first, *sorted(found, key=lambda drift: (-drift.psi, drift.name))]


def _drift(
    name: str, words: Sequence[str], then: Sequence[float], now: Sequence[float], then_rows: int, rows: int
) -> Drift:
    filled = sum(1 for pair in zip(then, now, strict=True) if max(pair) > 0)
    return Drift(name, psi(then, now, then_rows, rows), chance(filled, then_rows, rows), words, then, now)


def labels(bins: Mapping[str, Any]) -> list[str]:
    """Return what each bin of a feature, or of predictions, holds, in words."""
    if "histogram" in bins:
        if "edges" not in bins:
            return [str(first) for first, _ in bins["bins"]]
        edges = bins["edges"]
        width = functools.partial(_number, decimals=2) if (edges[0], edges[-1]) == (0, 1) else _number
        return [f"{width(edges[first])} to {width(edges[last + 1])}" for first, last in bins["bins"]]
    if "values" in bins:
        return [*map(_number, bins["values"]), "others"]
    edges = [_number(edge) for edge in bins["edges"]]
    if not edges:
        return ["all", "missing"]
    between = [f"{low} to {high}" for low, high in zip(edges, edges[1:], strict=False)]
    return [f"below {edges[0]}", *between, f"{edges[-1]} on", "missing"]


def _number(value: float, decimals: int | None = None) -> str:
    return f"{value:.4g}" if decimals is None else f"{value:.{decimals}f}"
