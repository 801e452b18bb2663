"""Splitting by time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

from tipcast.config.errors import TipcastError
from tipcast.datasets import split
from tipcast.datasets.base import Fragment
from tipcast.datasets.split import MINUTE, cutoff, describe, uneven


def _period(start: str, stop: str) -> tuple[int, int]:
    return tuple(int(pd.Timestamp(day).value // 1000) for day in (start, stop))  # type: ignore[return-value]


JANUARY, FEBRUARY = _period("2019-01-01", "2019-02-01"), _period("2019-02-01", "2019-03-01")


def test_validation_is_the_end_of_training() -> None:
    assert cutoff([JANUARY], FEBRUARY, 0) is None
    start = cutoff([JANUARY], FEBRUARY, 0.15)
    assert start is not None
    assert start % MINUTE == 0
    assert (JANUARY[1] - start) / (JANUARY[1] - JANUARY[0]) == pytest.approx(0.15, abs=1e-4)
    assert cutoff([JANUARY], FEBRUARY, 0.5) == _period("2019-01-16T12:00", "2019-02-01")[0]


def test_gaps_between_files_are_no_time_to_hold_out() -> None:
    december, later = _period("2019-12-01", "2020-01-01"), _period("2020-01-01", "2020-02-01")
    files = [december, FEBRUARY, JANUARY, JANUARY]
    assert cutoff(files, later, 0.1) == _period("2019-12-23", "2020-01-01")[0]
    assert cutoff(files, later, 40 / 90) == _period("2019-02-20", "2020-01-01")[0]
    assert cutoff(files, later, 31 / 90) == december[0]
    year = [_period("2019-01-01", "2019-12-01"), december]
    assert cutoff(year, later, 0.15) == cutoff([(JANUARY[0], december[1])], later, 0.15)


def test_a_share_of_the_rows_far_from_that_of_the_time_is_said() -> None:
    assert uneven(480, 520, 0.1) == (
        "validation is 52% of the training rows: task.validation=0.1 is a share of their time"
    )
    assert uneven(99, 1, 0.1)
    assert [uneven(90, 10, 0.1), uneven(85, 15, 0.1), uneven(100, 0, 0)] == [None] * 3


@pytest.mark.parametrize(
    ("train", "test", "share", "code"),
    [
        (FEBRUARY, JANUARY, 0.15, "D019"),
        (JANUARY, JANUARY, 0.15, "D018"),
        (JANUARY, (JANUARY[1] - 1, FEBRUARY[1]), 0.15, "D018"),
        ((JANUARY[0] + 1, FEBRUARY[1]), (JANUARY[0], JANUARY[0] + 2), 0.15, "D018"),
    ],
)
def test_periods_that_do_not_fit(train: tuple[int, int], test: tuple[int, int], share: float, code: str) -> None:
    with pytest.raises(TipcastError) as caught:
        cutoff([train], test, share)
    assert caught.value.code == code


def test_describe_includes_both_days() -> None:
    assert describe(JANUARY) == "2019-01-01..2019-01-31"
    assert describe((JANUARY[0], JANUARY[0] + 1)) == "2019-01-01..2019-01-01"
    assert describe((JANUARY[0], JANUARY[1] + 1)) == "2019-01-01..2019-02-01"


def test_a_draw_is_by_a_rows_place_in_its_file() -> None:
    draw = split.Draw(3, ((0.0, 0.7), (0.7, 0.9)))
    whole = Fragment("a.parquet", "parquet", (0, 1), {}, None, "d", 1001, {"first": 0})
    every = draw.sides(whole, 1001, np)
    for first in (1, 4, 501, 998):
        rest = dataclasses.replace(whole, part=(1,), options={"first": first})
        np.testing.assert_array_equal(draw.sides(rest, 1001 - first, np), every[first:])
    shares = [float((every == side).mean()) for side in (0, 1, -1)]
    assert shares == pytest.approx([0.7, 0.2, 0.1], abs=0.05)
    assert not np.array_equal(draw.sides(dataclasses.replace(whole, digest="e"), 1001, np), every)
