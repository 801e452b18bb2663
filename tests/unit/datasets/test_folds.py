"""What of a fold is too little, and what its error says."""

from dataclasses import replace

import pytest
from tests.conftest import high_tip_task

from tipcast.config.data_schema import Limits
from tipcast.config.errors import TipcastError
from tipcast.datasets.counts import Counts
from tipcast.datasets.folds import Folds

LIMITS = Limits(min_rows=10)


def counts(*classes: int, weights: tuple[float, ...] = ()) -> Counts:
    """Return the counts of rows with so many of each class, and with these weights of each."""
    rows = sum(classes)
    return Counts(rows, rows, {}, classes=classes, weight=sum(weights), class_weights=weights)


def folds_of(*classes: str, key: str = "", weight: str | None = None) -> Folds:
    task = replace(high_tip_task(["trip_distance"]), classes=classes, folds=5, weight=weight)
    return Folds(task, forward=False, key=key)


@pytest.mark.parametrize(
    ("train", "test", "error"),
    [
        (
            counts(9, 0),
            counts(9, 9),
            "error[D014] fold 2 of 5: 9 training rows, but at least 10 are needed. "
            "Fix: use fewer folds, or lower data.limits.min_rows",
        ),
        (
            counts(9, 9),
            counts(20, 0),
            "error[D015] fold 2 of 5: no test row has class yes. Fix: use fewer folds",
        ),
        (
            counts(0, 20),
            counts(9, 9),
            "error[D015] fold 2 of 5: no training row has class no. Fix: use fewer folds",
        ),
    ],
)
def test_a_fold_of_two_classes_needs_rows_of_both(train: Counts, test: Counts, error: str) -> None:
    with pytest.raises(TipcastError) as caught:
        folds_of("no", "yes").check(1, train, test, LIMITS)
    assert str(caught.value) == error


def test_test_rows_may_lack_one_of_several_classes() -> None:
    folds = folds_of("ash", "elm", "oak")
    folds.check(1, counts(9, 9, 9), counts(9, 9, 0), LIMITS)
    with pytest.raises(TipcastError, match="no training row has class oak"):
        folds.check(1, counts(9, 9, 0), counts(9, 9, 9), LIMITS)


def test_the_key_that_divides_the_rows_is_named() -> None:
    folds = folds_of("no", "yes", key="data.group")
    with pytest.raises(TipcastError, match="Fix: use fewer folds, or another data.group$"):
        folds.check(1, counts(19, 0), counts(9, 9), LIMITS)


def test_a_class_whose_weights_are_all_0_has_no_rows() -> None:
    folds = folds_of("no", "yes", weight="count")
    one_class = counts(9, 9, weights=(9.0, 0.0))
    with pytest.raises(TipcastError, match="D015.*no training row has class yes"):
        folds.check(0, one_class, one_class, LIMITS)

    nothing = counts(9, 9, weights=(0.0, 0.0))
    with pytest.raises(TipcastError, match="D032.*fold 1 of 5: all weights of its 18 training"):
        folds.check(0, nothing, nothing, LIMITS)
