"""Models that are fitted by one worker on a sample of the rows: what their two reaches have in common."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tipcast.backends.base import Array, Frame
from tipcast.backends.host import device_of
from tipcast.config.errors import travelling
from tipcast.estimators import sampling
from tipcast.estimators.base import Fitted, Future, Progress, columns


@dataclass(frozen=True)
class Sampled(ABC):
    """A model of a sample of the rows."""

    params: Mapping[str, Any]
    training: Mapping[str, Any]
    device: str
    categorical: tuple[str, ...] = ()

    NAME: ClassVar[str]
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
        """Fit on the sample: (n, features) float64 and (n,) int32 on the host; ``used`` is the device it comes from."""


class SampledEverywhere(Sampled):
    """Takes the sample from the rows of all workers; one of them fits."""

    def fit(
        self,
        client: Any,
        x: Sequence[Future],
        y: Sequence[Future],
        validation: tuple[Sequence[Future], Sequence[Future]] | None,
        seed: int,
        progress: Progress | None = None,
    ) -> Fitted:
        """Take the sample, and fit on it.

        Parameters
        ----------
        client
            ``distributed.Client`` whose workers hold the rows.
        x, y
            Futures of (n, features) float32 DataFrames and (n,) int32 Series, part by part alike.
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
        sample, every = sampling.start(client, x, y, self.most, seed)
        features = client.submit(columns, x[0], pure=False)
        used = client.submit(_device, x[0], pure=False)
        fitted: Fitted = client.submit(_learn, sample, self, features, used, pure=False).result()
        logging.getLogger("tipcast").info(
            "%s is fitted on %s of %s training rows (model.fit.rows)",
            self.NAME,
            f"{fitted.info['rows']:,}",
            f"{every:,}",
        )
        return fitted


class SampledHere(Sampled):
    """Takes the sample from one process's rows."""

    def fit(self, x: Frame, y: Frame, validation: tuple[Frame, Frame] | None, seed: int, threads: int = 1) -> Fitted:
        """Take the sample from frames in memory, and fit on it."""
        part = sampling.take(x, y, sampling.chosen(len(x), self.most, seed))
        return _learn([part], self, columns(x), _device(x))


@travelling
def _learn(parts: Sequence[tuple[Array, Array]], estimator: Sampled, features: Sequence[str], used: str) -> Fitted:
    return estimator.learn(*sampling.joined(parts), features, used)


def fitted(found: Any, format: str, **facts: Any) -> Fitted:
    """Return a fit whose scorer is the model itself: saved as an npz of what its ``arrays`` returns."""
    return Fitted(scorer=found, history={}, model=found, file="model.npz", format=format, write=_write, **facts)


def _write(model: Any, path: Path) -> None:
    np.savez(path, **model.arrays())


def _device(x: Frame) -> str:
    return device_of(x.values)
