"""Scoring rows where they lie, and the same rows by every way there is to score a saved model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dask

from tipcast.compute.base import Array, Frame, to_host
from tipcast.models import native
from tipcast.models.base import NativeFile, Scorer

LARGE = "distributed.admin.large-graph-warning-threshold"


def predict(client: Any, scorer: Scorer, x: Sequence[Any]) -> list[Any]:
    """Start scoring parts, futures of (rows, features) float32 DataFrames, on the workers that hold them.

    Returns
    -------
    list
        Futures of what ``Scorer.score`` returns, in the same order.

    """
    return _scores(client, _sent(client, _held, scorer), x)


def predict_saved(client: Any, saved: NativeFile, device: str, x: Sequence[Any]) -> list[Any]:
    """Start scoring parts by a saved model, which a worker loads: the driver may lack its device; see ``predict``."""
    return _scores(client, hold_saved(client, saved, device), x)


def hold_saved(client: Any, saved: NativeFile, device: str) -> Any:
    """Return a future of a saved model's scorer, which each worker then has once."""
    return _sent(client, native.load, saved.path.read_bytes(), saved.format, device)


def every_way(client: Any, scorer: Scorer, saved: NativeFile, x: Array) -> dict[str, Array]:
    """Score the same (rows, features) float32 host rows by every way that a worker has to score a saved model.

    Returns
    -------
    dict
        ``estimator``, by the scorer of the fit, and names of ``native.available`` -> predictions, on the host.

    """
    found: dict[str, Array] = _sent(client, _every_way, scorer, saved.path.read_bytes(), saved.format, x).result()
    return found


def _every_way(scorer: Scorer, content: bytes, format: str, x: Array) -> dict[str, Array]:
    ways = {way: native.load(content, format, through=way) for way in native.available(format)}
    return {name: to_host(each.score(x)) for name, each in {"estimator": scorer, **ways}.items()}


def _sent(client: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Start a task with arguments that may be large; the scheduler keeps them, so that they outlive a worker."""
    with dask.config.set({LARGE: "1 TiB"}):
        return client.submit(function, *arguments, pure=False)


def _scores(client: Any, held: Any, x: Sequence[Any]) -> list[Any]:
    return list(client.map(_score, x, scorer=held, pure=False, key="score"))


def _held(scorer: Scorer) -> Scorer:
    return scorer


def _score(x: Frame, scorer: Scorer) -> Array:
    return scorer.score(x)
