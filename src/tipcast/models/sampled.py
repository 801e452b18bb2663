"""Models that one process fits on a sample of the rows: the same rows however they are parted."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tipcast.compute.base import Array, Frame, module_of, to_host
from tipcast.config.errors import travelling
from tipcast.models.base import Collection, Estimator, Fitted, Future, Parts, Progress, Validation, columns, parts
from tipcast.models.fit import parts_of, watched

Taken = Sequence[tuple[Array, Array | None]]
"""Part by part, on its device: (n, features) values and (n,) targets that are in the sample."""


class Sampled(Estimator):
    """A model of a sample of the rows."""

    ROWS: ClassVar[int | None] = None
    """How many rows are fitted on at most, unless ``fit.rows`` says otherwise; None: all."""

    @property
    def most(self) -> int | None:
        """How many rows are fitted on at most; None: all."""
        most: int | None = self.training.get("rows", self.ROWS)
        return most

    @abstractmethod
    def learn(self, taken: Taken, features: Sequence[str], seed: int, threads: int) -> Fitted:
        """Fit on the sample, in this process."""


class SampledEverywhere(Sampled):
    """Takes the sample from the rows of all workers; one of them fits."""

    def fit(
        self,
        client: Any,
        x: Collection,
        y: Collection | None,
        validation: Validation,
        seed: int,
        progress: Progress = None,
    ) -> Fitted:
        """Take the sample to the worker of the most threads, and fit on it there."""
        frames = parts_of(client, x)
        taken, _ = start(client, frames, None if y is None else parts_of(client, y), self.most, seed)
        address, threads = max(client.nthreads().items(), key=lambda item: (item[1], item[0]))
        task = client.submit(_learn, self, taken, columns(x), seed, threads, workers=[address], pure=False)
        fitted: Fitted = watched(client, [address], task.result)
        return fitted


class SampledHere(Sampled):
    """Takes the sample from one process's rows."""

    def fit(self, x: Parts, y: Parts | None, validation: Validation, seed: int, threads: int = 1) -> Fitted:
        """Take the sample from frames in memory, and fit on it."""
        frames = parts(x)
        targets = [None] * len(frames) if y is None else parts(y)
        own = chosen_by_part(map(len, frames), self.most, seed)
        taken = [take(*part) for part in zip(frames, targets, own, strict=True)]
        return self.learn(taken, columns(x), seed, threads)


@travelling
def _learn(estimator: Sampled, taken: Taken, features: Sequence[str], seed: int, threads: int) -> Fitted:
    return estimator.learn(taken, features, seed, threads)


def chosen(rows: int, most: int | None, seed: int) -> Array:
    """Return the numbers of at most so many of the rows, ascending: all, or a draw in which each row is as likely."""
    if most is None or rows <= most:
        return np.arange(rows)
    return np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))


def start(
    client: Any, x: Sequence[Future], y: Sequence[Future] | None, most: int | None, seed: int
) -> tuple[list[Future], int]:
    """Start taking a sample of rows, futures of (n, features) DataFrames and (n,) Series, where they lie.

    Returns
    -------
    tuple
        Futures of what ``take`` returns, in the order of the parts, and the number of rows that the sample is of.

    """
    rows = client.gather(client.map(len, x, pure=False))
    own = zip(x, y or [None] * len(x), chosen_by_part(rows, most, seed), strict=True)
    return [client.submit(take, *part, pure=False) for part in own], sum(rows)


def chosen_by_part(rows: Iterable[int], most: int | None, seed: int) -> list[Array | slice]:
    """Return the rows that are taken of each part, by their numbers in it, from the parts' numbers of rows."""
    ends = np.cumsum(list(rows))
    if most is None or ends[-1] <= most:
        return [slice(None)] * len(ends)  # no part is copied
    numbers = chosen(int(ends[-1]), most, seed)
    own = np.split(numbers, np.searchsorted(numbers, ends[:-1]))
    return [at - first for at, first in zip(own, [0, *ends[:-1]], strict=True)]


def take(x: Frame, y: Frame | None, numbers: Array | slice) -> tuple[Array, Array | None]:
    """Return some rows of a part where they are."""
    values = x.values
    at = numbers if isinstance(numbers, slice) else module_of(values).asarray(numbers)
    return values[at], None if y is None else y.values[at]


def joined(taken: Taken) -> tuple[Array, Array]:
    """Return the rows, in float64, which no estimator rounds again, and the labels of all parts on the host."""
    features, labels = zip(*taken, strict=True)
    x, y = (np.concatenate([to_host(each) for each in side]) for side in (features, labels))
    return x.astype(np.float64), y


def fitted(found: Any, format: str, **facts: Any) -> Fitted:
    """Return a fit whose scorer is the model itself: saved as an npz of what its ``arrays`` returns."""
    return Fitted(scorer=found, history={}, model=found, format=format, write=_write, **facts)


def _write(model: Any, path: Path) -> None:
    np.savez(path, **model.arrays())
