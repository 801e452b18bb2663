"""Models that one process fits on a random sample of the rows, independent of partitioning."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from tipcast.compute.base import Array, Frame, module_of, to_host
from tipcast.config.errors import travelling
from tipcast.models.base import Estimator, Fitted, Future, Progress, Split, columns, parts
from tipcast.models.fit import parts_of, watched

Taken = Sequence[tuple[Array, Array | None]]
"""Part by part, on its device: (n, features) values and (n,) targets that are in the sample."""


class Sampled(Estimator):
    """A model that one process fits on a sample of the rows."""

    ROWS: ClassVar[int | None] = None
    """Most rows to fit on, unless ``fit.rows`` says otherwise; None: all."""

    @property
    def most(self) -> int | None:
        """Most rows to fit on; None: all."""
        most: int | None = self.training.get("rows", self.ROWS)
        return most

    @abstractmethod
    def learn(self, taken: Taken, features: Sequence[str], seed: int, threads: int) -> Fitted:
        """Fit on the sample, in this process."""

    def fit(self, rows: Split, seed: int, threads: int = 1) -> Fitted:
        """Take the sample from frames in memory, and fit on it."""
        frames = parts(rows.x)
        targets = [None] * len(frames) if rows.y is None else parts(rows.y)
        own = chosen_by_part(map(len, frames), self.most, seed)
        taken = [take(*part) for part in zip(frames, targets, own, strict=True)]
        return self.learn(taken, columns(rows.x), seed, threads)

    def fit_distributed(self, client: Any, rows: Split, seed: int, progress: Progress = None) -> Fitted:
        """Send the sample to the worker with the most threads and fit there."""
        targets = None if rows.y is None else parts_of(client, rows.y)
        taken, _ = start(client, parts_of(client, rows.x), targets, self.most, seed)
        address, threads = max(client.nthreads().items(), key=lambda item: (item[1], item[0]))
        task = client.submit(_learn, self, taken, columns(rows.x), seed, threads, workers=[address], pure=False)
        fitted: Fitted = watched(client, [address], task.result)
        return fitted


@travelling
def _learn(estimator: Sampled, taken: Taken, features: Sequence[str], seed: int, threads: int) -> Fitted:
    return estimator.learn(taken, features, seed, threads)


def start(
    client: Any, x: Sequence[Future], y: Sequence[Future] | None, most: int | None, seed: int
) -> tuple[list[Future], int]:
    """Start taking a sample of rows, futures of (n, features) DataFrames and (n,) Series, where they lie.

    Returns futures of what ``take`` returns, in the order of the parts, and the number of rows that the sample is of.
    """
    rows = client.gather(client.map(len, x, pure=False))
    own = zip(x, y or [None] * len(x), chosen_by_part(rows, most, seed), strict=True)
    return [client.submit(take, *part, pure=False) for part in own], sum(rows)


def chosen_by_part(rows: Iterable[int], most: int | None, seed: int) -> list[Array | slice]:
    """Return the row numbers to take within each part, from the parts' sizes: all, or ``most`` drawn uniformly."""
    ends = np.cumsum(list(rows))
    if most is None or ends[-1] <= most:
        return [slice(None)] * len(ends)  # no part is copied
    numbers = np.sort(np.random.default_rng(seed).choice(ends[-1], most, replace=False))
    own = np.split(numbers, np.searchsorted(numbers, ends[:-1]))
    return [at - first for at, first in zip(own, [0, *ends[:-1]], strict=True)]


def take(x: Frame, y: Frame | None, numbers: Array | slice) -> tuple[Array, Array | None]:
    """Return some rows of a part where they are."""
    values = x.values
    at = numbers if isinstance(numbers, slice) else module_of(values).asarray(numbers)
    return values[at], None if y is None else y.values[at]


def joined(taken: Taken) -> tuple[Array, Array]:
    """Return the rows in float64 and the labels of all parts, on the host."""
    features, labels = zip(*taken, strict=True)
    x, y = (np.concatenate([to_host(each) for each in side]) for side in (features, labels))
    return x.astype(np.float64), y
