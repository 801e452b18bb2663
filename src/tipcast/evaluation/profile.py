"""What rows look like, as counts in bins: those of training travel with the model, later ones are held against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tipcast.backends.base import Array
from tipcast.backends.host import module_of, to_host
from tipcast.evaluation.result import HISTOGRAM_BINS, Evaluation

MISSING = -1
"""Feature value of what is missing; its code is 0."""
LAST = 300
"""Largest whole value that is counted by itself: all features but distances are whole numbers below it."""
MILES = np.concatenate(([0.0], np.geomspace(0.1, 200, 96)))
"""Borders that distances are counted between."""
CODES = LAST + 2
"""Codes of a feature: missing, then values."""
CONTINUOUS = ("trip_distance",)
NOMINAL = ("PULocationID", "DOLocationID")
"""Features whose neighbouring values have nothing in common."""
GROUPS = 10
"""Bins of about equal share that ordered values are put into: deciles, as is usual for a stability index."""
COMMON = 19
"""Values of a nominal feature that have a bin of their own; the others share one."""

Bins = Sequence[Sequence[int]]
"""First and last code of each bin; an empty one stands for all codes that no other bin has."""


def count(matrix: Array, names: Sequence[str]) -> dict[str, Any]:
    """Count features' values.

    Parameters
    ----------
    matrix
        (rows, features) float32 of any device, missing values -1.
    names
        The features.

    Returns
    -------
    dict
        Feature -> (CODES,) int64 rows of each code, on the host.

    """
    xp = module_of(matrix)
    return {
        name: to_host(xp.bincount(_codes(matrix[:, at], name, xp), minlength=CODES)) for at, name in enumerate(names)
    }


def _codes(values: Array, name: str, xp: Any) -> Array:
    if name in CONTINUOUS:
        return xp.searchsorted(xp.asarray(MILES, dtype=values.dtype), values, side="right")
    return xp.clip(values, MISSING, LAST).astype(xp.int32) - MISSING


def total(counts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums of several parts' counts."""
    return {name: sum(part[name] for part in counts) for name in (counts[0] if counts else ())}


def of_frame(x: Any) -> dict[str, Any]:
    """Count the values of a (rows, features) frame."""
    return count(x.values, [str(name) for name in x.columns])


def profile(client: Any, x: Sequence[Any], held_out: Evaluation, split: str) -> dict[str, Any]:
    """Describe the rows that a model was trained on, in one pass over them where they lie.

    Parameters
    ----------
    client
        A ``distributed.Client``.
    x
        Futures of (rows, features) float32 frames.
    held_out
        Evaluation on rows that the model has not seen: scores of training rows are more extreme than later ones are.
    split
        Name of those rows.

    Returns
    -------
    dict
        ``rows``; ``features``: name -> ``bins`` (codes, see ``Bins``) and their ``shares`` of the rows; ``score``: the
        same in fiftieths, the ``split``, its ``rows`` and the ``histogram`` of all fiftieths. Fit for JSON.

    """
    parts = client.map(of_frame, x, pure=False, key="profile")
    counts = client.submit(total, parts, pure=False).result()
    scores = held_out.histogram.negatives + held_out.histogram.positives
    return {
        "rows": int(next(iter(counts.values())).sum()),
        "features": {name: _described(found, grouped(found, name)) for name, found in counts.items()},
        "score": {
            "split": split,
            "rows": int(scores.sum()),
            **_described(scores, _ordered(scores, 0)),
            "histogram": spread(scores),
        },
    }


def _described(counts: Any, bins: Bins) -> dict[str, Any]:
    return {"bins": [list(each) for each in bins], "shares": shares(counts, bins)}


def grouped(counts: Any, name: str) -> list[list[int]]:
    """Put a feature's codes into bins; what is missing has its own."""
    if name not in NOMINAL:
        return [[0, 0], *_ordered(counts, 1)]
    common = np.argsort(-counts[1:], kind="stable")[:COMMON] + 1
    return [[0, 0], *([int(code)] * 2 for code in sorted(common) if counts[code]), []]


def _ordered(counts: Any, start: int) -> list[list[int]]:
    """Cut the codes from ``start`` on at deciles; one code with several of them leaves fewer bins."""
    every = max(int(counts[start:].sum()), 1)
    bins: list[list[int]] = []
    seen, first, decile = 0, start, 1
    for code in range(start, len(counts) - 1):
        seen += int(counts[code])
        if decile < GROUPS and seen * GROUPS >= every * decile:
            bins.append([first, code])
            first, decile = code + 1, seen * GROUPS // every + 1
    return [*bins, [first, len(counts) - 1]]


def shares(counts: Any, bins: Bins) -> list[float]:
    """Return the share of the rows in each bin; zeros where there are no rows."""
    every = float(counts.sum()) or 1.0
    found = [float(counts[each[0] : each[1] + 1].sum()) / every if each else 0.0 for each in bins]
    rest = 1.0 - sum(found) if counts.sum() else 0.0
    return [share if each else max(rest, 0.0) for share, each in zip(found, bins, strict=True)]


def spread(counts: Any) -> list[float]:
    """Return each code's share of the rows; zeros where there are no rows."""
    found: list[float] = (counts / max(int(counts.sum()), 1)).tolist()
    return found


def label(name: str, codes: Sequence[int]) -> str:
    """Return what a bin holds, in words."""
    if not codes:
        return "others"
    first, last = codes
    if name == "score":
        return f"{first / HISTOGRAM_BINS:.2f} to {(last + 1) / HISTOGRAM_BINS:.2f}"
    if last == 0:
        return "missing"
    if name in CONTINUOUS:
        return f"{MILES[first - 1]:.1f} to {MILES[last]:.1f}" if last < len(MILES) else f"{MILES[first - 1]:.1f} on"
    low, high = first + MISSING, last + MISSING
    return str(low) if low == high else f"{low} to {high}" if last < CODES - 1 else f"{low} on"
