"""Splitting by time."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tipcast.config.errors import TipcastError
from tipcast.datasets import split
from tipcast.datasets.split import MINUTE, cutoff


def _period(start: str, stop: str) -> tuple[int, int]:
    return tuple(int(pd.Timestamp(day).value // 1000) for day in (start, stop))  # type: ignore[return-value]


JANUARY, FEBRUARY = _period("2019-01-01", "2019-02-01"), _period("2019-02-01", "2019-03-01")


def test_validation_is_the_end_of_training_where_gaps_between_files_do_not_count() -> None:
    assert cutoff([JANUARY], FEBRUARY, 0) is None
    assert cutoff([JANUARY], FEBRUARY, 0.5) == _period("2019-01-16T12:00", "2019-02-01")[0]
    assert (cutoff([JANUARY], FEBRUARY, 0.15) or 1) % MINUTE == 0
    december = _period("2019-12-01", "2020-01-01")
    later = _period("2020-01-01", "2020-02-01")
    files = [december, FEBRUARY, JANUARY, JANUARY]
    assert cutoff(files, later, 0.1) == _period("2019-12-23", "2020-01-01")[0]
    assert cutoff(files, later, 40 / 90) == _period("2019-02-20", "2020-01-01")[0]
    assert cutoff(files, later, 31 / 90) == december[0]
    year = [_period("2019-01-01", "2019-12-01"), december]
    assert cutoff(year, later, 0.15) == cutoff([(JANUARY[0], december[1])], later, 0.15)


def test_periods_that_do_not_fit() -> None:
    for train, test, code in [
        (FEBRUARY, JANUARY, "D019"),
        (JANUARY, JANUARY, "D018"),
        (JANUARY, (JANUARY[1] - 1, FEBRUARY[1]), "D018"),
        ((JANUARY[0] + 1, FEBRUARY[1]), (JANUARY[0], JANUARY[0] + 2), "D018"),
    ]:
        with pytest.raises(TipcastError, match=code):
            cutoff([train], test, 0.15)


def test_a_draw_has_exact_shares_of_each_class_wherever_parts_are_cut() -> None:
    draw = split.Draw(3, 0.2, 0.15)
    classes = ("a", "b", "c")
    answered = np.arange(9001) % 10 > 0
    target = np.random.default_rng(0).choice(3, 9001, p=[0.899, 0.1, 0.001]).astype(np.int8)
    target[~answered] = -1

    def drawn(draw: split.Draw, *cuts: int) -> Any:
        parts = [np.split(values, cuts) for values in (target, answered)]
        placed = [draw.places(*each, len(each[0]), np) for each in zip(*parts, strict=True)]
        ends = split.ends_of([counts for _, counts in placed])
        kept = [place[there] for (place, _), there in zip(placed, parts[1], strict=True)]
        side = np.full(len(target), -1)
        side[answered] = np.concatenate(
            [draw.sides(classes, ends, at, np)[place] for at, place in enumerate(kept)]
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
