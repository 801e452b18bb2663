"""What OpenMP is told of waiting: ours in every worker, or what the user says."""

from __future__ import annotations

import os

import pytest

from tipcast.backends.cluster import connect
from tipcast.backends.waiting import ENVIRONMENT, waiting
from tipcast.config.schema import LocalCluster


@pytest.mark.parametrize(
    "given",
    [{}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "", "GOMP_SPINCOUNT": "7"}],
)
def test_what_the_user_says_counts(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert waiting() == (given or ENVIRONMENT)


def test_workers_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    with connect(LocalCluster(kind="local", n_workers=1), "pandas") as client:
        (found,) = client.run(lambda: dict(os.environ)).values()
    assert ENVIRONMENT.items() <= found.items()
