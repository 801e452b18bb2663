"""Models that are fitted by one worker on a sample of the rows: the same rows however they are parted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tipcast.compute.base import Array, Frame, device_of, module_of, to_host
from tipcast.config.errors import travelling
from tipcast.models.base import Collection, Estimator, Fitted, Future, Parts, Progress, columns, parts
from tipcast.models.fit import parts_of


@dataclass(frozen=True)
class Sampled(Estimator, ABC):
    """A model of a sample of the rows."""

    ROWS: ClassVar[int]
    """How many rows are fitted on at most, unless ``fit.rows`` says otherwise."""

    @property
    def most(self) -> int:
        """How many rows are fitted on at most."""
        return int(self.training.get("rows") or self.ROWS)

    @abstractmethod
    def check(self) -> None:
        """Refuse unknown parameters and impossible values."""

    @abstractmethod
    def learn(self, x: Array, y: Array, features: Sequence[str], used: str) -> Fitted:
        """Fit on the sample, (n, features) float64 and (n,) targets on the host; ``used`` is where it comes from."""


class SampledEverywhere(Sampled):
    """Takes the sample from the rows of all workers; one of them fits."""

    def fit(
        self,
        client: Any,
        x: Collection,
        y: Collection,
        validation: tuple[Collection, Collection] | None,
        seed: int,
        progress: Progress | None = None,
    ) -> Fitted:
        """Take the sample, and fit on it.

        Parameters
        ----------
        client
            ``distributed.Client`` whose workers hold the rows.
        x, y
            Dask DataFrame of (n, features) float32 and Series of (n,) int32 labels.
        validation
            Not used.
        seed
            Of the sample.
        progress
            Not called: the libraries do not tell.

        Raises
        ------
        TipcastError
            D015 when the sample has too few rows of a class; those of the model.

        """
        values = parts_of(client, x)
        sample, _ = start(client, values, parts_of(client, y), self.most, seed)
        used = client.submit(_device, values[0], pure=False)
        fitted: Fitted = client.submit(_learn, sample, self, columns(x), used, pure=False).result()
        return fitted


class SampledHere(Sampled):
    """Takes the sample from one process's rows."""

    def fit(self, x: Parts, y: Parts, validation: tuple[Parts, Parts] | None, seed: int, threads: int = 1) -> Fitted:
        """Take the sample from frames in memory, and fit on it."""
        values = parts(x)
        taken = [
            take(*each)
            for each in zip(values, parts(y), chosen_by_part(map(len, values), self.most, seed), strict=True)
        ]
        return _learn(taken, self, columns(x), _device(values[0]))


@travelling
def _learn(sample: Sequence[tuple[Array, Array]], estimator: Sampled, features: Sequence[str], used: str) -> Fitted:
    return estimator.learn(*joined(sample), features, used)


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
    rows = client.gather(client.map(len, x, pure=False))
    own = zip(x, y, chosen_by_part(rows, most, seed), strict=True)
    return [client.submit(take, *part, pure=False) for part in own], sum(rows)


def chosen_by_part(rows: Iterable[int], most: int | None, seed: int) -> list[Array]:
    """Return the rows that are taken of each part, by their numbers in it, from the parts' numbers of rows."""
    ends = np.cumsum(list(rows))
    numbers = chosen(int(ends[-1]), most, seed)
    own = np.split(numbers, np.searchsorted(numbers, ends[:-1]))
    return [at - first for at, first in zip(own, [0, *ends[:-1]], strict=True)]


def take(x: Frame, y: Frame, numbers: Array) -> tuple[Array, Array]:
    """Return some rows on the host: (n, features) float64, which no estimator rounds again, and (n,) int32."""
    xp = module_of(x.values)
    at = xp.asarray(numbers)
    return to_host(x.values[at]).astype(np.float64), to_host(y.values[at])


def joined(parts: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Return the rows and the labels of all parts."""
    features, labels = zip(*parts, strict=True)
    return np.concatenate(features), np.concatenate(labels)


def fitted(found: Any, format: str, **facts: Any) -> Fitted:
    """Return a fit whose scorer is the model itself: saved as an npz of what its ``arrays`` returns."""
    return Fitted(scorer=found, history={}, model=found, format=format, write=_write, **facts)


def _write(model: Any, path: Path) -> None:
    np.savez(path, **model.arrays())


def _device(x: Frame) -> str:
    return device_of(x.values)
