"""Fixtures that every room's tests share: the real trips, a Dask client, the frames of each backend."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

from tipcast.backends.base import Frames
from tipcast.backends.cpu import CpuFrames

ROOT = Path(__file__).resolve().parent.parent
TAXI = Path(os.environ.get("TIPCAST_TAXI", ROOT.parent / "shared" / "taxi"))


@pytest.fixture(autouse=True)
def _own_registry() -> Iterator[None]:
    """MLflow keeps a store in the environment of the process; the next test has another one."""
    yield
    os.environ.pop("MLFLOW_REGISTRY_URI", None)


@pytest.fixture(scope="session")
def taxi() -> Path:
    """Real TLC trip files, which the project does not contain."""
    if not (TAXI / "yellow").is_dir():
        pytest.skip("real taxi trips are not here: set TIPCAST_TAXI to their folder")
    return TAXI


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    """Two threads of one in-process worker."""
    with (
        LocalCluster(processes=False, n_workers=1, threads_per_worker=2, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as connected,
    ):
        yield connected


@pytest.fixture(scope="session")
def frames() -> Frames:
    """The frame library of the CPU."""
    return CpuFrames()
