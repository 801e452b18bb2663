"""Folds of rows on the workers: the rows that a fold's model learns from, and those that it is
tested on.

Each row has the number of the fold that tests it. Without a time the other folds' rows train that
fold's model. With a time folds are chained forward: rows of earlier folds train it, and those that
no fold tests, whose number is -1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tipcast.compute.base import Array, Frame
from tipcast.config.errors import travelling
from tipcast.datasets.counts import Counts
from tipcast.datasets.prepare import PreparedRows, PreparedSplits, Recipe, divided
from tipcast.datasets.rows import Rows, rows_of_splits
from tipcast.tasks.base import Task

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class Folds:
    """How the training rows are divided into folds."""

    task: Task
    forward: bool
    """Whether a fold's model learns from earlier rows alone."""

    @classmethod
    def of(cls, recipe: Recipe) -> "Folds":
        """Return the folds that a recipe marks rows with."""
        return cls(recipe.task, forward=bool(recipe.cuts))

    @property
    def number(self) -> int:
        """Number of folds."""
        return self.task.folds

    def sides(self, fold_of_row: Array, fold: int) -> tuple[Array, Array]:
        """Return which rows a fold's model learns from, and which it is tested on, (rows,) bool."""
        tested = fold_of_row == fold
        if self.forward:
            return fold_of_row < fold, tested
        return ~tested, tested

    def divide(self, whole: PreparedRows, fold: int) -> PreparedSplits:
        """Return the rows that a fold's model learns from, and those that it is tested on."""
        assert whole.fold is not None  # noqa: S101 - the recipe has folds
        return divided(whole, self.sides(whole.fold["fold"].values, fold), self.task)

    def sides_of(
        self, parts: Sequence[PreparedRows], fold: int
    ) -> tuple[list[PreparedRows], list[PreparedRows]]:
        """Return both sides of a fold, part by part."""
        divided_parts = [self.divide(part, fold) for part in parts]
        return [train for train, _ in divided_parts], [test for _, test in divided_parts]

    def split(
        self, client: "Client", rows: Rows, fold: int, home: str | None = None
    ) -> tuple[Rows, Rows]:
        """Return the rows that a fold's model learns from, and those that it is tested on.

        They are copies: on the worker of the address ``home``, or where the rows are.
        """
        where: dict[str, Any] = {}
        if home:
            where = {"workers": [home], "allow_other_workers": True}

        sides = client.map(
            _sides_of_part,
            rows.x,
            rows.fold,
            rows.y,
            rows.weight or [None] * len(rows.x),
            folds=self,
            fold=fold,
            key="fold",
            pure=False,
            **where,
        )
        train, test = rows_of_splits(client, list(sides), self.task, folds=True)[0]
        return train, test


@travelling
def _sides_of_part(
    x: Frame, fold_of_row: Frame, y: Frame, weight: Frame | None, folds: Folds, fold: int
) -> PreparedSplits:
    """Return the rows of a part that a fold's model learns from, and those it is tested on."""
    size = sum(int(part.values.nbytes) for part in (x, y, weight) if part is not None)
    whole = PreparedRows(x, y, Counts(len(x), 0, {}, bytes=size), weight, fold_of_row)
    return folds.divide(whole, fold)
