"""Splitting groups of rows at random: all rows of a group, as those of one customer, go to the same
side, and to the same fold.

Each part counts the rows of its groups. Once the rows of all groups are known, each group gets the
code of a split; rows find the code of their group by a search.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tipcast.compute.base import Array, module_of, to_host
from tipcast.config.errors import TipcastError
from tipcast.datasets.random_split import SPLITS, SeededSplit

Sizes = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Groups (groups,) in ascending order, and the rows of each."""


@dataclass(frozen=True)
class GroupDraw(SeededSplit):
    """A seeded split of groups, the same whatever files hold the rows.

    Shuffled groups are tested on until they have about the share ``test`` of all rows, and the next
    ones validated on. Folds are filled as by scikit-learn's ``GroupKFold``: each group, the largest
    first, goes to the fold that has the fewest rows. Shares are as near as whole groups come to
    them.
    """

    column: str = field(kw_only=True)
    """The column of the groups: int64 numbers that stand for them."""

    def ranks(self, columns: Mapping[str, Array]) -> tuple[Array, Sizes]:
        """Return the group of each row (rows,), and the sizes of the groups."""
        groups = columns[self.column]
        return groups, _sizes(to_host(groups))

    def joined(self, sizes: Sequence[Sizes]) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
        """Return all groups in ascending order, and the code of each, see ``Draw.split_codes``.

        Raises D033 for fewer groups than sides and folds.
        """
        of_parts = np.concatenate([rows for _, rows in sizes])
        groups, at = np.unique(np.concatenate([names for names, _ in sizes]), return_inverse=True)
        rows = np.bincount(at, of_parts, len(groups)).astype(np.int64)

        order = np.random.default_rng(self.seed).permutation(len(groups))
        codes = np.full(len(groups), SPLITS.index("train"), np.int8)
        left = order[_beyond(rows[order], self.test)]
        codes[np.setdiff1d(order, left)] = SPLITS.index("test")
        self._check(len(groups), len(left))
        if self.folds:
            codes[left] = 1 + _balanced(rows[left], self.folds)
        else:
            trained = left[_beyond(rows[left], self.validation)]
            codes[np.setdiff1d(left, trained)] = SPLITS.index("validation")
        return groups, codes

    def codes(
        self,
        ranks: Array,
        classes: Sequence[str],
        drawn: tuple[NDArray[np.int64], NDArray[np.int8]],
        part_index: int,
    ) -> Array:
        """Return (rows,) int8 codes for the rows of a part, as ``Draw.split_codes`` has them."""
        xp = module_of(ranks)
        groups, codes = drawn
        return xp.asarray(codes)[xp.searchsorted(xp.asarray(groups), ranks)]

    def _check(self, groups: int, left: int) -> None:
        """Refuse (D033) fewer groups than the test, and what is ``left``, need."""
        needed = self.folds or 1 + bool(self.validation)
        nothing_tested = self.test > 0 and left == groups
        if left >= needed and not nothing_tested:
            return

        what = f"{groups} groups leave {left} to train on: at least {needed} are needed"
        fix = "use another column, or use fewer folds or a smaller data.test_share"
        raise TipcastError("D033", f"data.group={self.column}", what, fix)


def _sizes(groups: NDArray[np.int64]) -> Sizes:
    names, rows = np.unique(groups, return_counts=True)
    return names, rows


def _beyond(rows: NDArray[np.int64], share: float) -> NDArray[np.intp]:
    """Return the places of the groups after those that have a share of all rows.

    A group whose middle row is within the share is within it; a share above 0 has at least one.
    """
    middle = np.cumsum(rows) - rows / 2
    within = int(np.count_nonzero(middle <= share * rows.sum()))
    if share:
        within = min(max(within, 1), len(rows) - 1)
    return np.arange(within, len(rows))


def _balanced(rows: NDArray[np.int64], folds: int) -> NDArray[np.int8]:
    """Return a fold for each group: the largest first, each to the fold with the fewest rows."""
    fold_of = np.empty(len(rows), np.int8)
    fullness = [(0, fold) for fold in range(folds)]
    for group in np.argsort(-rows, kind="stable").tolist():
        filled, fold = heapq.heappop(fullness)
        fold_of[group] = fold
        heapq.heappush(fullness, (filled + int(rows[group]), fold))
    return fold_of
