"""Sort keys."""

from __future__ import annotations

import numpy as np
import pytest

from tipcast.evaluation import keys


@pytest.mark.parametrize(("real", "whole"), [(np.float32, np.uint32), (np.float64, np.uint64)])
def test_keys_sort_like_scores_and_hold_labels(real: type, whole: type) -> None:
    r = np.random.default_rng(0)
    scores = np.r_[r.random(500), 0, -0.0, 1, np.finfo(real).tiny].astype(real)
    labels = r.integers(0, 2, len(scores))
    found = keys.sort_keys(scores, labels)
    assert found.dtype == whole
    order = np.lexsort((labels, scores))
    assert (found & 1).tolist() == labels[order].tolist()
    assert [keys.score_of(int(key), whole) for key in found] == scores[order].tolist()


@pytest.mark.parametrize(("real", "whole"), [(np.float32, np.uint32), (np.float64, np.uint64)])
@pytest.mark.parametrize("threshold", [0.0, -1.0, 0.1, 0.3, 0.5, 0.7, 1.0, 1.5])
def test_threshold_key_parts_scores_exactly(real: type, whole: type, threshold: float) -> None:
    close = np.float64(threshold)
    scores = np.asarray(
        [0, 0.1, 0.3, 0.5, 0.7, 1, *np.clip([np.nextafter(real(close), real(2)), real(close)], 0, 1)], dtype=real
    )
    found = keys.sort_keys(scores, np.ones(len(scores), dtype=int))
    below = int(np.searchsorted(found, np.asarray(keys.key_of(threshold, whole), dtype=whole)))
    assert below == (scores.astype(np.float64) < threshold).sum()


def test_cut_and_merge_are_inverse() -> None:
    r = np.random.default_rng(0)
    parts = [keys.sort_keys(np.round(r.random(n), 2), r.integers(0, 2, n)) for n in (300, 0, 77)]
    borders = [None, keys.key_of(0.25, "uint64"), keys.key_of(0.5, "uint64"), None]
    merged = [
        keys.merge([keys.cut(part, low, high) for part in parts])
        for low, high in zip(borders[:-1], borders[1:], strict=True)
    ]
    assert np.concatenate(merged).tolist() == sorted(np.concatenate(parts).tolist())
