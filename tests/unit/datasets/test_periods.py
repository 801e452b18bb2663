"""Periods, and a split by time."""

import pandas as pd
import pytest

from tipcast.config.errors import TipcastError
from tipcast.datasets.periods import MINUTE, cutoff


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
