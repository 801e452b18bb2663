"""Splitting rows at random: a seeded draw with exact shares of each class, the same whatever parts
hold the rows.

Each part ranks its rows by class, without any of another part. Once the rows of each class are
counted in all parts, a row has a number among all rows of its class, and numbers alone decide its
split. Two parts, classes a and b, blocks of ``BLOCK`` = 4 rows, ``Draw(seed=0, test=0.4)``::

    classes of the rows   a b a a              b a a b
    Draw.ranks            0 3 1 2              2 0 1 3           a part's rows, those of a first
    rows_per_class        a: 3, b: 1           a: 2, b: 2
    class_offsets         a: 0, b: 0           a: 3, b: 1        rows of the class in earlier parts
    numbers in the class  a: 0 1 2, b: 0       a: 3 4, b: 1 2
    Draw.split_codes      0 2 2, 2             0 2, 2 0          by rank: 0 is test, 2 is train
    splits of the rows    0 2 2 2              2 0 2 0           split_codes[ranks]

Of the five rows of a, numbers 0 to 3 are in the first block. It tests round(4 * 0.4) = 2 of them:
those with the smallest random numbers, here 0 and 3. Number 4 is in the next block, which tests
round(5 * 0.4) - 2 = 0 rows. Of the three rows of b it is round(3 * 0.4) = 1, here number 2.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from tipcast.compute.base import Array, module_of

SPLITS = ("test", "validation", "train")
"""Names of the splits; the code of a split is its index."""
BLOCK = 512
"""Rows of a class that are drawn together: a part draws at most two such beyond its own rows."""
LARGEST = np.uint64(2**64 - 1)


def random_bits(xp: ModuleType, key: int, first: int, stop: int) -> Array:
    """Return (stop - first,) uint64 by SplitMix64 (Steele, Lea and Flood, 2014), of integers: the
    same everywhere.
    """
    z = xp.arange(first, stop, dtype=xp.uint64)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    z ^= z >> np.uint64(31)
    return z


def rows_by_class(target: Array, classes: int = 0) -> tuple[int, ...]:
    """Return how many rows there are of each class, of at least so many; ``target`` is (rows,)
    integers.
    """
    return (
        tuple(module_of(target).bincount(target, minlength=classes).tolist())
        if len(target)
        else (0,) * classes
    )


def class_offsets(rows_per_class: Sequence[Sequence[int]]) -> Array:
    """Return (1 + parts, classes) rows of each class before each part, and in all parts last.

    ``rows_per_class`` has those in each part; later classes may be left out where there are none.
    """
    by_class = np.array([*zip_longest(*rows_per_class, fillvalue=0)], np.int64)
    by_class = by_class.reshape(-1, len(rows_per_class))
    return np.pad(np.cumsum(by_class, axis=1), ((0, 0), (1, 0))).T


@dataclass(frozen=True)
class SeededSplit:
    """The shares of a split at random, and what the codes of its rows say."""

    seed: int
    test: float
    """Share of the rows that is tested on."""
    validation: float = 0.0
    """Share of what remains of them; with ``folds`` none is validated on."""
    folds: int = 0
    """Number of folds that what remains is divided into, each row tested in one; 0: none."""
    splits: tuple[str, ...] = SPLITS
    """Those of ``SPLITS`` that are wanted."""

    def chosen(self, codes: Array, split: str) -> Array:
        """Return which rows are of a split, (rows,) bool, by the codes of ``Draw.split_codes``."""
        if self.folds and split == "train":
            return codes > SPLITS.index("test")
        return codes == SPLITS.index(split)


@dataclass(frozen=True)
class Draw(SeededSplit):
    """A seeded split with exact shares of each class, the same whatever files hold the rows, on
    every device.

    A row is drawn by its number among the rows of its class: of each ``BLOCK`` of them those with
    the smallest random numbers are tested on, and the next ones validated on. How many these are is
    rounded of all rows up to there. The module has an example.
    """

    def ranks(
        self, target: Array | None, answered: Array | None, rows: int, xp: ModuleType
    ) -> tuple[Array, tuple[int, ...]]:
        """Return each row's rank (rows,) among a part's rows sorted by class, and how many rows
        each class has.

        ``target`` None: there is one class. Rows that are not ``answered`` are of none, their
        ranks below 0.
        """
        # no int8 of a task's function is too narrow for it
        most = np.int32(np.iinfo(np.int16).max - 1)
        label = xp.zeros(rows, xp.int8) if target is None else xp.minimum(target, most)
        label = (label if answered is None else xp.where(answered, label, -1)).astype(xp.int16)
        ranks = xp.empty(rows, xp.int32)
        ranks[xp.argsort(label, kind="stable")] = (
            xp.arange(rows, dtype=xp.int32) - (label < 0).sum()
        )

        return ranks, rows_by_class(label + 1)[1:]

    def joined(self, rows_per_class: Sequence[Sequence[int]]) -> Array:
        """Return what ``codes`` must know of all parts: the offsets of ``class_offsets``."""
        return class_offsets(rows_per_class)

    def codes(self, ranks: Array, classes: Sequence[str], offsets: Array, part_index: int) -> Array:
        """Return (rows,) int8 codes for the rows of a part, as ``split_codes`` has them."""
        return self.split_codes(classes, offsets, part_index, module_of(ranks))[ranks]

    def split_codes(
        self, classes: Sequence[str], offsets: Array, part_index: int, xp: ModuleType
    ) -> Array:
        """Return (ranks,) int8 indices of ``SPLITS`` for the rows of a part, by their rank; with
        folds 0 for a test row, and 1 and more for the folds in order.

        ``offsets`` are those of ``class_offsets``.
        """
        codes = [xp.empty(0, xp.int8)]
        of_part = offsets[[part_index, part_index + 1, -1]].T.tolist()
        for name, rows in zip_longest(classes, of_part):
            if rows and rows[0] < rows[1]:
                codes.append(self._codes_of_class(name, rows[0], rows[1], rows[2], xp))

        return xp.concatenate(codes)

    def _codes_of_class(
        self, name: object, start: int, stop: int, total: int, xp: ModuleType
    ) -> Array:
        """Return (stop - start,) codes of rows by their numbers among the ``total`` of a class."""
        key = hashlib.sha256(f"{self.seed} {name}".encode()).digest()[:8]
        edges = np.arange(start // BLOCK, -(-stop // BLOCK) + 1) * BLOCK
        first = int(edges[0])
        last = int(edges[-1])
        drawn = random_bits(xp, int.from_bytes(key, "little"), first, last)
        drawn[total - first :] = LARGEST  # there are no such rows
        drawn = drawn.reshape(-1, BLOCK)
        ordered = xp.concatenate(
            [xp.sort(drawn, axis=1), xp.full((len(drawn), 1), LARGEST)], axis=1
        )

        edges = edges.clip(max=total)
        codes = xp.zeros(drawn.shape, xp.int8)
        for up_to_edges in self._borders(edges):
            in_block = xp.asarray(np.diff(up_to_edges).astype(np.int64))
            codes += drawn >= xp.take_along_axis(ordered, in_block[:, None], 1)

        return codes.ravel()[start - first : stop - first]

    def _borders(self, edges: NDArray[np.int64]) -> list[NDArray[np.float64]]:
        """Return how many of the rows up to each edge have a code below 1, below 2, and so on."""
        tested = np.rint(edges * self.test)
        left = edges - tested
        shares = [self.validation]
        if self.folds:
            shares = [fold / self.folds for fold in range(1, self.folds)]
        return [tested, *(tested + np.rint(left * share) for share in shares)]
