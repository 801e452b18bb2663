"""Scoring rows where they lie, and the same rows by every way there is to score a saved model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dask

from tipcast.compute.base import Array, Frame, to_host
from tipcast.config.disk import temporary_folder
from tipcast.models import native
from tipcast.models.base import NativeFile, Scorer

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
    return list(client.map(_score, x, scorer=hold(client, scorer), pure=False, key="score"))


def hold(client: Any, scorer: Scorer) -> Any:
    """Return a future of a scorer, which each worker then has once."""
    return _sent(client, _held, scorer)


def predict_saved(client: Any, saved: NativeFile, device: str, x: Sequence[Any]) -> list[Any]:
    """Start scoring parts by a saved model, which a worker loads: the driver may lack its device; see ``predict``."""
    return list(client.map(_score, x, scorer=hold_saved(client, saved, device), pure=False, key="score"))


def hold_saved(client: Any, saved: NativeFile, device: str) -> Any:
    """Return a future of a saved model's scorer, see ``hold`` and ``predict_saved``."""
    return _sent(client, _loaded, saved.path.read_bytes(), saved.format, device)


def _sent(client: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Start a task with arguments that may be large; the scheduler keeps them, so that they outlive a worker."""
    with dask.config.set({LARGE: "1 TiB"}):
        return client.submit(function, *arguments, pure=False)


def _loaded(content: bytes, format: str, device: str) -> Scorer:
    with temporary_folder() as folder:
        path = folder / "model"
        path.write_bytes(content)
        scorer: Scorer = native.load(path, format, device=device, threads=1)
        return scorer


def _held(scorer: Scorer) -> Scorer:
    return scorer


def _score(x: Frame, scorer: Scorer) -> Array:
    return scorer.score(x)


def every_way(client: Any, scorer: Scorer, saved: NativeFile, x: Array) -> dict[str, Array]:
    """Score the same rows by the estimator and by every way that a worker has to score the saved model.

    Parameters
    ----------
    client
        A ``distributed.Client``.
    scorer
        Of the fitted model.
    saved
        The file that was written of it.
    x
        (rows, features) float32, on the host.

    Returns
    -------
    dict
        ``estimator`` and names of ``native.available`` -> (rows,) P(1), on the host.

    """
    found: dict[str, Array] = _sent(client, _every_way, scorer, saved.path.read_bytes(), saved.format, x).result()
    return found


def _every_way(scorer: Scorer, content: bytes, format: str, x: Array) -> dict[str, Array]:
    found = {"estimator": to_host(scorer.score(x))}
    with temporary_folder() as folder:
        path = folder / "model"
        path.write_bytes(content)
        for way in native.available(format):
            found[way] = to_host(native.load(path, format, through=way).score(x))
    return found
