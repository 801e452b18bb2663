"""A split of groups: none on two sides, the same whatever parts hold the rows."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tipcast.config.errors import TipcastError
from tipcast.datasets.group_split import GroupDraw

SPLITS = ("train", "validation", "test")


def draw_of(test: float = 0.2, validation: float = 0.0, folds: int = 0) -> GroupDraw:
    return GroupDraw(3, test, validation, folds, SPLITS, column="owner")


def codes_of(draw: GroupDraw, groups: NDArray[np.int64], *cuts: int) -> Any:
    """Return the code of each row, whose parts end at the cuts."""
    parts = [draw.ranks({"owner": part}) for part in np.split(groups, cuts)]
    drawn = draw.joined([sizes for _, sizes in parts])
    return np.concatenate([draw.codes(ranks, (), drawn, at) for at, (ranks, _) in enumerate(parts)])


@pytest.fixture(scope="module")
def groups() -> NDArray[np.int64]:
    """Rows of 200 groups, some of which have many."""
    draw = np.random.default_rng(0)
    return draw.choice(200, 5000, p=draw.dirichlet(np.ones(200))).astype(np.int64) - 100


def test_groups_stay_together_wherever_parts_are_cut(groups: NDArray[np.int64]) -> None:
    draw = draw_of(validation=0.25)
    codes = codes_of(draw, groups)
    for group in np.unique(groups):
        assert len(set(codes[groups == group])) == 1
    np.testing.assert_array_equal(codes_of(draw, groups, 1, 700, 701, 4000), codes)

    shares = [draw.chosen(codes, split).mean() for split in SPLITS]
    assert shares == pytest.approx([0.6, 0.2, 0.2], abs=0.03)
    assert sum(shares) == 1


def test_folds_have_about_as_many_rows(groups: NDArray[np.int64]) -> None:
    draw = draw_of(folds=5)
    codes = codes_of(draw, groups)
    np.testing.assert_array_equal(codes == 0, codes_of(draw_of(), groups) == 0)
    rows = np.bincount(codes)[1:]
    assert len(rows) == 5
    assert rows.max() - rows.min() < 30
    np.testing.assert_array_equal(draw.chosen(codes, "train"), codes > 0)


def test_another_seed_draws_other_groups(groups: NDArray[np.int64]) -> None:
    other = GroupDraw(4, 0.2, 0.0, 0, SPLITS, column="owner")
    assert (codes_of(other, groups) != codes_of(draw_of(), groups)).any()


@pytest.mark.parametrize(
    ("draw", "groups"),
    [
        (draw_of(), [1, 1]),
        (draw_of(folds=3), [1, 2, 3]),
        (draw_of(test=0.5, folds=4), [1, 2, 3, 4, 5, 6]),
        (draw_of(test=0.0, folds=3), [1, 2]),
        (draw_of(validation=0.2), [1, 2]),
    ],
)
def test_too_few_groups_are_refused(draw: GroupDraw, groups: list[int]) -> None:
    with pytest.raises(TipcastError, match="groups leave"):
        codes_of(draw, np.array(groups, np.int64))


@pytest.mark.parametrize(
    ("draw", "groups"),
    [
        (draw_of(), [1, 2]),
        (draw_of(folds=2), [1, 2, 3]),
        (draw_of(test=0.0, folds=2), [1, 2]),
        (draw_of(validation=0.2), [1, 2, 3]),
    ],
)
def test_just_enough_groups_are_drawn(draw: GroupDraw, groups: list[int]) -> None:
    codes = codes_of(draw, np.array(groups, np.int64))
    assert draw.chosen(codes, "train").any()
    assert (draw.test == 0) == (not draw.chosen(codes, "test").any())
