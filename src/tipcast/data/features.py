"""Features of raw trips; this file travels inside saved models and imports nothing but NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

BASE_FEATURES = (
    "pickup_weekday",
    "pickup_hour",
    "pickup_week_hour",
    "pickup_minute",
    "passenger_count",
    "PULocationID",
    "DOLocationID",
)
MISSING = -1.0
AIRPORTS = (1, 132, 138)


def needed_columns(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys("pickup" if n.startswith("pickup_") else n for n in names))


def compute(columns: Mapping[str, Any], names: Sequence[str], xp: ModuleType = np) -> Any:
    pickup = columns["pickup"]
    minutes = (pickup // 60_000_000).astype(np.int32)
    hours = minutes // 60
    week = (hours + 72) % 168
    made = {"pickup_minute": minutes - hours * 60, "pickup_week_hour": week, "pickup_hour": week % 24, "pickup_weekday": week // 24}
    out = xp.empty((len(pickup), len(names)), dtype=np.float32, order="F")
    for i, n in enumerate(names):
        v = made[n] if n in made else columns[n]
        out[:, i] = v
        if n not in made and v.dtype.kind == "f":
            out[:, i][xp.isnan(v)] = MISSING
    return out
