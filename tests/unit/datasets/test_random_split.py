"""A random split: exact shares of each class, whatever parts hold the rows."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from tipcast.datasets import random_split
from tipcast.datasets.random_split import Draw, class_offsets


def test_the_example_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_split, "BLOCK", 4)
    draw = Draw(seed=0, test=0.4)
    first = draw.ranks(np.array([0, 1, 0, 0]), None, 4, np)
    second = draw.ranks(np.array([1, 0, 0, 1]), None, 4, np)
    assert [(ranks.tolist(), counts) for ranks, counts in (first, second)] == [
        ([0, 3, 1, 2], (3, 1)),
        ([2, 0, 1, 3], (2, 2)),
    ]

    offsets = class_offsets([first[1], second[1]])
    assert offsets.tolist() == [[0, 0], [3, 1], [5, 3]]

    codes = [draw.split_codes(("a", "b"), offsets, at, np).tolist() for at in (0, 1)]
    assert codes == [[0, 2, 2, 2], [0, 2, 2, 0]]


def test_a_draw_has_exact_shares_of_each_class_wherever_parts_are_cut() -> None:
    draw = Draw(3, 0.2, 0.15)
    classes = ("a", "b", "c")
    answered = np.arange(9001) % 10 > 0
    target = np.random.default_rng(0).choice(3, 9001, p=[0.899, 0.1, 0.001]).astype(np.int8)
    target[~answered] = -1

    def drawn(draw: Draw, *cuts: int) -> Any:
        parts = [np.split(values, cuts) for values in (target, answered)]
        ranked = [draw.ranks(*each, len(each[0]), np) for each in zip(*parts, strict=True)]
        offsets = class_offsets([counts for _, counts in ranked])
        kept = [ranks[there] for (ranks, _), there in zip(ranked, parts[1], strict=True)]
        side = np.full(len(target), -1)
        side[answered] = np.concatenate(
            [draw.split_codes(classes, offsets, at, np)[ranks] for at, ranks in enumerate(kept)]
        )
        return side

    every = drawn(draw)
    for label in range(3):
        rows = int((target[answered] == label).sum())
        tested = round(rows * 0.2)
        held = [int((every[target == label] == side).sum()) for side in range(3)]
        assert held == [tested, round((rows - tested) * 0.15), rows - sum(held[:2])]
    for cuts in ((1,), (511, 512, 513), (4000, 4000, 8999), tuple(range(100, 9000, 100))):
        np.testing.assert_array_equal(drawn(draw, *cuts), every)
    np.testing.assert_array_equal(drawn(dataclasses.replace(draw, validation=0.0)) == 0, every == 0)
    other = drawn(dataclasses.replace(draw, seed=4))
    assert 0.15 < (every == 0)[other == 0].mean() < 0.25, (
        "an independent draw has a fifth in common"
    )
    assert {(every[at : at + 500] == 0).mean().round(1) for at in range(0, 9000, 500)} == {0.2}, (
        "all over the rows"
    )
