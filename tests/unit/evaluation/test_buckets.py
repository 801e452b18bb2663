"""Score ranges of about even size."""

from __future__ import annotations

import numpy as np
import pytest
from distributed import Client

from tipcast.evaluation import buckets, keys


def test_split_points_part_rows_evenly() -> None:
    r = np.random.default_rng(0)
    parts = [keys.sort_keys(r.beta(a, 3, n), r.integers(0, 2, n)) for a, n in ((1, 90_000), (9, 10_000))]
    points = buckets.split_points([len(p) for p in parts], [keys.sample(p, 512) for p in parts], 4)
    assert len(points) == 3
    assert all(point % 2 == 0 for point in points)
    sizes = np.diff([0, *np.searchsorted(np.sort(np.concatenate(parts)), np.asarray(points, dtype=np.uint64)), 100_000])
    assert sizes.min() > 23_000
    assert sizes.max() < 27_000


def test_ties_leave_fewer_buckets() -> None:
    part = keys.sort_keys(np.full(1000, 0.5), np.arange(1000) % 2)
    assert len(buckets.split_points([1000], [keys.sample(part, 512)], 8)) <= 1


def test_many_buckets_of_many_rows(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "MOST_ROWS", 1000)
    r = np.random.default_rng(0)
    scores = [client.submit(np.array, r.random(2500), pure=False) for _ in range(4)]
    labels = [client.submit(np.array, r.integers(0, 2, 2500), pure=False) for _ in range(4)]
    found = buckets.fill(client, scores, labels, None, "here")
    sizes = client.gather([client.submit(len, future) for future in found.futures])
    assert len(sizes) == 10
    assert sum(sizes) == 10_000
    assert max(sizes) < 1300
    assert found.wholes[0].positives + found.wholes[0].negatives == 10_000
    assert found.wholes[0].positives_below == 0
