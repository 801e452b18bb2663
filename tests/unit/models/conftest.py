"""Rows with a signal, as the workers hold them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client
from tests.conftest import shipped_model

from tipcast.config.schema import ModelSpec

NAMES = ["pickup_weekday", "pickup_hour", "pickup_week_hour", "pickup_minute"]
NAMES += ["passenger_count", "PULocationID", "DOLocationID"]
Rows = tuple[pd.DataFrame, pd.Series]


@pytest.fixture(scope="session")
def rows() -> Callable[[int, int], Rows]:
    """Trips whose label depends on weekday, hour and zones; one in twenty lacks its passengers."""

    def make(n: int, seed: int) -> Rows:  # nested, so that it travels to worker processes by value
        rng = np.random.default_rng(seed)
        high = np.array([7, 24, 168, 60, 7, 266, 266])
        x = (rng.random((n, 7)) * high).astype(np.int64).astype(np.float32)
        x[rng.random(n) < 0.05, 4] = -1
        margin = 0.3 * x[:, 0] - 1 + np.sin(x[:, 1] / 4) + (x[:, 5] * 7 % 13) / 6 - 1
        y = (rng.random(n) < 1 / (1 + np.exp(-margin))).astype(np.int32)
        return pd.DataFrame(x, columns=NAMES), pd.Series(y, name="high_tip")

    return make


@pytest.fixture(scope="session")
def joined() -> Callable[[Sequence[Rows]], Rows]:
    """All rows of some parts, in order."""

    def join(parts: Sequence[Rows]) -> Rows:
        features, labels = zip(*parts, strict=True)
        return pd.concat(features, ignore_index=True), pd.concat(labels, ignore_index=True)

    return join


@pytest.fixture(scope="session")
def scattered(client: Client) -> Callable[..., tuple[Any, Any]]:
    """Futures of the features and of the labels of each part, on workers of one's choice or on
    any.
    """

    def scatter(
        parts: Sequence[Rows], on: Client = client, homes: Sequence[str] = ()
    ) -> tuple[Any, Any]:
        where = [[home] for home in homes] or [None] * len(parts)
        pairs = list(zip(parts, where, strict=True))
        x, y = (
            [on.scatter(part[side], workers=home, hash=False) for part, home in pairs]
            for side in (0, 1)
        )
        return x, y

    return scatter


@pytest.fixture(scope="session")
def parts(rows) -> list[Rows]:
    """Three parts of unlike size to fit on, one to validate on."""
    return [rows(n, seed) for seed, n in enumerate((3000, 1500, 2500, 2000))]


@pytest.fixture
def spec() -> Callable[..., ModelSpec]:
    """A shipped model with some parameters changed."""

    return shipped_model
