"""cuML's random forest over all GPU workers and inside one process, under scikit-learn's parameter names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from tipcast.backends import forest
from tipcast.backends.base import Frame
from tipcast.config.errors import TipcastError
from tipcast.estimators import native
from tipcast.estimators.base import Fitted, Future, Progress, columns, shares
from tipcast.estimators.cuml_parameters import settings
from tipcast.estimators.placement import by_worker, results


@final
@dataclass(frozen=True)
class DistributedCumlForest:
    """One forest grown from the rows of all workers, each tree by all of them together."""

    params: Mapping[str, Any]
    training: Mapping[str, Any]
    device: str
    categorical: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse parameters that cuML would."""
        settings(self.params, self.training)

    def fit(
        self,
        client: Any,
        x: Sequence[Future],
        y: Sequence[Future],
        validation: tuple[Sequence[Future], Sequence[Future]] | None,
        seed: int,
        progress: Progress | None = None,
    ) -> Fitted:
        """Grow the trees; a worker that holds all rows does so alone, with several trees at once.

        Parameters
        ----------
        client
            ``distributed.Client`` whose workers hold the rows.
        x, y
            Futures of (n, features) float32 DataFrames and (n,) int32 Series, part by part alike.
        validation
            Not used: a forest has no rounds to choose from.
        seed
            Of the whole forest.
        progress
            Not called: cuML does not tell.

        Raises
        ------
        TipcastError
            K003 when a worker was lost.

        """
        params = settings(self.params, self.training)
        held = by_worker(client, x)
        features = client.submit(columns, x[0], pure=False).result()
        rows = {address: ([x[i] for i in parts], [y[i] for i in parts]) for address, parts in held.items()}
        if len(rows) == 1:
            task = {
                address: client.submit(forest.grow, *own, params, seed, workers=[address], pure=False)
                for address, own in rows.items()
            }
            (grown,) = results(client, task).values()
        else:
            grown = self._together(client, rows, y, params, seed)
        return _fitted(grown, features, self.device, len(rows))

    def _together(
        self,
        client: Any,
        rows: Mapping[str, tuple[Any, Any]],
        y: Sequence[Future],
        params: Mapping[str, Any],
        seed: int,
    ) -> forest.Grown:
        counted = client.gather(client.map(_classes, y, pure=False))
        counts = [sum(rows) for rows in zip(*counted, strict=True)]
        with forest.together(client, list(rows)) as session:
            tasks = {
                address: client.submit(
                    forest.grow_share, session, *own, params, seed, counts, workers=[address], pure=False
                )
                for address, own in rows.items()
            }
            grown: forest.Grown = next(iter(results(client, tasks).values()))
        return grown


@final
@dataclass(frozen=True)
class LocalCumlForest:
    """One forest grown inside one process."""

    params: Mapping[str, Any]
    training: Mapping[str, Any]
    device: str
    categorical: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse parameters that cuML would."""
        settings(self.params, self.training)

    def fit(self, x: Frame, y: Frame, validation: tuple[Frame, Frame] | None, seed: int, threads: int = 1) -> Fitted:
        """Grow the trees from frames in device memory."""
        grown = forest.grow([x], [y], settings(self.params, self.training), seed)
        return _fitted(grown, columns(x), self.device, 1)


def _classes(y: Frame) -> tuple[int, int]:
    """Return how many labels are 0 and 1."""
    ones = int(y.sum())
    return len(y) - ones, ones


def _fitted(grown: forest.Grown, features: Sequence[str], device: str, workers: int) -> Fitted:
    """Make sure that it was grown on the device, and say so.

    Raises
    ------
    TipcastError
        C010 otherwise.

    """
    if grown.device.partition(":")[0] != device:
        raise TipcastError(
            "C010", "backend", f"cuML computed on {grown.device} and not on {device}", "run where cuML finds a GPU"
        )
    importance = np.maximum(np.nan_to_num(grown.importance), 0)
    return Fitted(
        scorer=native.NvForestScorer(grown.checkpoint),
        history={},
        importance=shares(features, importance),
        importance_kind="decrease of impurity",
        info={"device": grown.device, "workers": workers},
        model=grown.checkpoint,
        file="model.tl",
        format="treelite",
        write=_write,
    )


def _write(checkpoint: bytes, path: Path) -> None:
    path.write_bytes(checkpoint)
