"""A sample of the rows, for fits whose time grows faster than their number: the same rows however they are parted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tipcast.backends.base import Array, Frame
from tipcast.backends.host import module_of, to_host
from tipcast.estimators.base import Future


def chosen(rows: int, most: int | None, seed: int) -> Array:
    """Return the numbers of the rows that are taken, ascending: all, or a draw in which each row is as likely.

    Parameters
    ----------
    rows
        How many there are.
    most
        How many may be taken; None: all.
    seed
        Of the draw.

    """
    if most is None or rows <= most:
        return np.arange(rows)
    return np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))


def start(
    client: Any, x: Sequence[Future], y: Sequence[Future], most: int | None, seed: int
) -> tuple[list[Future], int]:
    """Start taking a sample where the rows lie.

    Parameters
    ----------
    client
        ``distributed.Client`` whose workers hold the rows.
    x, y
        Futures of (n, features) float32 DataFrames and (n,) int32 Series, part by part alike.
    most, seed
        See ``chosen``.

    Returns
    -------
    tuple
        Futures of what ``take`` returns, in the order of the parts, and the number of rows that the sample is of.

    """
    ends = np.cumsum(client.gather(client.map(len, x, pure=False)))
    numbers = chosen(int(ends[-1]), most, seed)
    own = np.split(numbers, np.searchsorted(numbers, ends[:-1]))
    parts = zip(x, y, own, [0, *ends[:-1]], strict=True)
    taken = [client.submit(take, *part, at - first, pure=False) for *part, at, first in parts]
    return taken, int(ends[-1])


def take(x: Frame, y: Frame, numbers: Array) -> tuple[Array, Array]:
    """Return some rows on the host: (n, features) float64, which no estimator rounds again, and (n,) int32."""
    xp = module_of(x.values)
    at = xp.asarray(numbers)
    return to_host(x.values[at]).astype(np.float64), to_host(y.values[at])


def joined(parts: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Return the rows and the labels of all parts."""
    features, labels = zip(*parts, strict=True)
    return np.concatenate(features), np.concatenate(labels)
