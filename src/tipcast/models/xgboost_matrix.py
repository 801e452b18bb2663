"""Binned rows for XGBoost, made part by part."""

from collections.abc import Mapping, Sequence
from typing import Any

import xgboost

from tipcast.compute.base import to_gpu
from tipcast.models import base
from tipcast.models.base import Split

NAMES = {"x": "data", "y": "label", "weight": "weight"}
"""Side of the rows -> XGBoost's name of it."""


def binned(
    rows: Split, threads: int, device: str, options: Mapping[str, object]
) -> xgboost.QuantileDMatrix:
    """Bin a frame, or parts one by one, so that they are never joined.

    Parts that wait on the host are on the GPU one at a time.
    """
    # XGBoost wants these options with each part.
    part_options = {name: options.get(name) for name in ("feature_names", "feature_types")}
    matrix_options = {name: value for name, value in options.items() if name not in part_options}

    sides = {NAMES[name]: base.parts(side) for name, side in base.sides_of(rows).items()}
    batches = [{**part, **part_options} for part in base.by_part(sides)]
    iterator = _Batches(batches, on_gpu=device == "cuda")
    return xgboost.QuantileDMatrix(iterator, nthread=threads, **matrix_options)


class _Batches(xgboost.DataIter):
    """Passes batches to a matrix one by one, as often as it asks."""

    def __init__(self, batches: Sequence[Mapping[str, Any]], *, on_gpu: bool) -> None:
        self._batches = batches
        self._on_gpu = on_gpu
        self.reset()
        super().__init__()

    def next(self, input_data: Any) -> bool:
        batch = next(self._left, None)
        if batch is None:
            return False

        if self._on_gpu:
            batch = {**batch, "data": to_gpu(batch["data"])}
        input_data(**batch)
        return True

    def reset(self) -> None:
        self._left = iter(self._batches)
