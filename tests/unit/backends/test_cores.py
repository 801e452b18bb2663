"""Cores and how workers share them."""

from __future__ import annotations

import os

import pytest

from tipcast.backends import cores
from tipcast.backends.cores import shared_out
from tipcast.config.schema import LocalCluster


def test_cores_are_those_of_this_process() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cores.cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert cores.cores() == len(before)


@pytest.mark.parametrize(
    ("there", "n_workers", "threads", "expected"),
    [
        (2, None, None, (1, 2)),
        (16, None, None, (1, 16)),
        (17, None, None, (2, 8)),
        (64, None, None, (4, 16)),
        (2, 4, None, (4, 1)),
        (8, 2, None, (2, 4)),
        (8, None, 3, (1, 3)),
        (8, 2, 16, (2, 16)),
    ],
)
def test_cores_are_shared_out(
    monkeypatch: pytest.MonkeyPatch,
    there: int,
    n_workers: int | None,
    threads: int | None,
    expected: tuple[int, int],
) -> None:
    monkeypatch.setattr(cores, "cores", lambda: there)
    assert shared_out(LocalCluster("local", n_workers=n_workers, threads_per_worker=threads)) == expected
