"""cuML's random forest, as tasks on GPU workers: one worker alone, or several that grow the same trees together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tipcast.backends.base import Frame


@dataclass(frozen=True)
class Grown:
    """A forest, without the library that grew it."""

    checkpoint: bytes
    """Of treelite."""
    importance: tuple[float, ...]
    """Decrease of impurity by feature."""
    device: str


def grow(x: Sequence[Frame], y: Sequence[Frame], params: Mapping[str, Any], seed: int) -> Grown:
    """Grow a forest from rows that this worker holds.

    Parameters
    ----------
    x, y
        Parts: (n, features) float32 cuDF DataFrames and (n,) int32 Series, part by part alike.
    params
        Of ``cuml.ensemble.RandomForestClassifier``.
    seed
        Of the whole forest.

    """
    from cuml.ensemble import RandomForestClassifier

    return _grown(RandomForestClassifier(**params, random_state=seed).fit(*_joined(x, y)))


@contextlib.contextmanager
def together(client: Any, workers: Sequence[str]) -> Iterator[bytes]:
    """Join workers by NCCL for the block; yields the session that ``grow_share`` takes part in.

    After an error the session is left to end with the workers: one that waits for a lost peer cannot leave it.
    """
    from raft_dask.common.comms import Comms

    comms = Comms(comms_p2p=False, client=client, streams_per_handle=1, nccl_root_location="worker")
    comms.init(workers=list(workers))
    try:
        yield comms.sessionId
    except BaseException:
        comms.nccl_initialized = False  # or its finalizer would wait for them
        raise
    comms.destroy()


def grow_share(
    session: bytes, x: Sequence[Frame], y: Sequence[Frame], params: Mapping[str, Any], seed: int, counts: Sequence[int]
) -> Grown:
    """Take part in growing one forest from the rows of all workers of a session; each ends up with all of it.

    Parameters
    ----------
    session
        See ``together``.
    x, y, params, seed
        See ``grow``.
    counts
        Rows of each class on all workers.

    """
    from cuml.dask.ensemble.base import _func_fit  # the public class counts classes on a GPU of the driver
    from cuml.ensemble import RandomForestClassifier

    model = RandomForestClassifier(**params, random_state=seed)
    classes = np.arange(len(counts), dtype=np.int32)
    return _grown(_func_fit(session, model, [_joined(x, y)], sum(counts), classes, np.asarray(counts)))


def _joined(x: Sequence[Frame], y: Sequence[Frame]) -> tuple[Any, Any]:
    """Return all rows as one array, column by column, so that nothing is copied once more, and the labels."""
    import cupy

    if len(x) == 1:
        return x[0].values, y[0].values
    values = cupy.empty((sum(map(len, x)), x[0].shape[1]), dtype=cupy.float32, order="F")
    start = 0
    for part in x:
        values[start : start + len(part)] = part.values
        start += len(part)
    return values, cupy.concatenate([part.values for part in y])


def _grown(model: Any) -> Grown:
    import cupy

    importance = cupy.asnumpy(model.feature_importances_)
    device = f"cuda:{cupy.cuda.Device().id}"
    return Grown(model.as_treelite().serialize_bytes(), tuple(float(share) for share in importance), device)
