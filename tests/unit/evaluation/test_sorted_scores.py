"""Keys of scores and labels, and score ranges of about even size."""

from __future__ import annotations

import numpy as np
import pytest
from distributed import Client

from tipcast.evaluation import sorted_scores
from tipcast.evaluation.sums import Parts


@pytest.mark.parametrize(("real", "whole"), [(np.float32, np.uint32), (np.float64, np.uint64)])
def test_keys_sort_like_scores_and_hold_labels(real: type, whole: type) -> None:
    r = np.random.default_rng(0)
    scores = np.r_[r.random(500), 0, -0.0, 1, np.finfo(real).tiny].astype(real)
    labels = r.integers(0, 2, len(scores))
    found = sorted_scores.sort_keys(scores, labels)
    assert found.dtype == whole
    order = np.lexsort((labels, scores))
    assert (found & 1).tolist() == labels[order].tolist()
    assert [sorted_scores.score_of(int(key), whole) for key in found] == scores[order].tolist()


@pytest.mark.parametrize(("real", "whole"), [(np.float32, np.uint32), (np.float64, np.uint64)])
@pytest.mark.parametrize("threshold", [0.0, -1.0, 0.1, 0.3, 0.5, 0.7, 1.0, 1.5])
def test_threshold_key_parts_scores_exactly(real: type, whole: type, threshold: float) -> None:
    close = np.float64(threshold)
    scores = np.asarray(
        [0, 0.1, 0.3, 0.5, 0.7, 1, *np.clip([np.nextafter(real(close), real(2)), real(close)], 0, 1)], dtype=real
    )
    found = sorted_scores.sort_keys(scores, np.ones(len(scores), dtype=int))
    below = int(np.searchsorted(found, np.asarray(sorted_scores.key_of(threshold, whole), dtype=whole)))
    assert below == (scores.astype(np.float64) < threshold).sum()


def test_cut_and_merge_are_inverse() -> None:
    r = np.random.default_rng(0)
    parts = [sorted_scores.sort_keys(np.round(r.random(n), 2), r.integers(0, 2, n)) for n in (300, 0, 77)]
    borders = [None, sorted_scores.key_of(0.25, "uint64"), sorted_scores.key_of(0.5, "uint64"), None]
    merged = [
        sorted_scores.join([sorted_scores.cut(part, low, high) for part in parts])
        for low, high in zip(borders[:-1], borders[1:], strict=True)
    ]
    assert np.concatenate(merged).tolist() == sorted(np.concatenate(parts).tolist())


def test_split_points_part_rows_evenly() -> None:
    r = np.random.default_rng(0)
    parts = [sorted_scores.sort_keys(r.beta(a, 3, n), r.integers(0, 2, n)) for a, n in ((1, 90_000), (9, 10_000))]
    points = sorted_scores.split_points([len(p) for p in parts], [sorted_scores.sample(p, 512) for p in parts], 4)
    assert len(points) == 3
    assert all(point % 2 == 0 for point in points)
    sizes = np.diff([0, *np.searchsorted(np.sort(np.concatenate(parts)), np.asarray(points, dtype=np.uint64)), 100_000])
    assert sizes.min() > 23_000
    assert sizes.max() < 27_000


def test_ties_leave_fewer_buckets() -> None:
    part = sorted_scores.sort_keys(np.full(1000, 0.5), np.arange(1000) % 2)
    assert len(sorted_scores.split_points([1000], [sorted_scores.sample(part, 512)], 8)) <= 1


def test_many_buckets_of_many_rows(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_scores, "MOST_ROWS", 1000)
    r = np.random.default_rng(0)
    scores = [client.submit(np.array, r.random(2500), pure=False) for _ in range(4)]
    labels = [client.submit(np.array, r.integers(0, 2, 2500), pure=False) for _ in range(4)]
    found = sorted_scores.fill(Parts((scores, labels), client, "here"))
    sizes = client.gather([client.submit(len, future) for future in found.futures])
    assert len(sizes) == 10
    assert sum(sizes) == 10_000
    assert max(sizes) < 1300
    assert found.wholes[0].positives + found.wholes[0].negatives == 10_000
    assert found.wholes[0].positives_below == 0
