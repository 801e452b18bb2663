"""Scoring rows where they lie: the scorer travels to each worker once, rows never move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask

from tipcast.backends.base import Array, Frame
from tipcast.estimators.base import Scorer

LARGE = "distributed.admin.large-graph-warning-threshold"


def predict(client: Any, scorer: Scorer, x: Sequence[Any]) -> list[Any]:
    """Start scoring parts on the workers that hold them.

    Parameters
    ----------
    client
        A ``distributed.Client``.
    scorer
        Of a fitted or a loaded model.
    x
        Futures of (rows, features) float32 DataFrames.

    Returns
    -------
    list
        Futures of (rows,) float arrays of P(1), in the same order.

    """
    with dask.config.set({LARGE: "1 TiB"}):  # the scheduler keeps the scorer, so that it outlives a worker
        held = client.submit(_held, scorer, pure=False)
    return list(client.map(_score, x, scorer=held, pure=False, key="score"))


def _held(scorer: Scorer) -> Scorer:
    return scorer


def _score(x: Frame, scorer: Scorer) -> Array:
    return scorer.score(x)
