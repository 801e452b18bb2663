"""Scoring rows where they lie: the scorer travels to the workers once, rows never move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tipcast.backends.base import Array, Frame
from tipcast.estimators.base import Scorer


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
    everywhere = client.scatter(scorer, broadcast=True, hash=False)
    return list(client.map(_score, x, scorer=everywhere, pure=False, key="score"))


def _score(x: Frame, scorer: Scorer) -> Array:
    return scorer.score(x)
