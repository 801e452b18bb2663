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

    number: int
    forward: bool
    """Whether a fold's model learns from earlier rows alone."""

    @classmethod
    def of(cls, recipe: Recipe) -> "Folds":
        """Return the folds that a recipe marks rows with."""
        return cls(recipe.task.folds, forward=bool(recipe.cuts))

    def sides(self, fold_of_row: Array, fold: int) -> tuple[Array, Array]:
        """Return which rows a fold's model learns from, and which it is tested on, (rows,) bool."""
        tested = fold_of_row == fold
        if self.forward:
            return fold_of_row < fold, tested
        return ~tested, tested

    def split(
        self, client: "Client", rows: Rows, fold: int, recipe: Recipe, home: str | None = None
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
            task=recipe.task,
            key="fold",
            pure=False,
            **where,
        )
        train, test = rows_of_splits(client, list(sides), recipe.task, folds=True)[0]
        return train, test


@travelling
def _sides_of_part(
    x: Frame,
    fold_of_row: Frame,
    y: Frame,
    weight: Frame | None,
    folds: Folds,
    fold: int,
    task: Task,
) -> PreparedSplits:
    """Return the rows of a part that a fold's model learns from, and those it is tested on."""
    size = sum(int(part.values.nbytes) for part in (x, y, weight) if part is not None)
    whole = PreparedRows(x, y, Counts(len(x), 0, {}, bytes=size), weight, fold_of_row)
    return divided(whole, folds.sides(fold_of_row["fold"].values, fold), task)


def fold_parts(whole: PreparedRows, folds: Folds, task: Task) -> Sequence[PreparedSplits]:
    """Return both sides of each fold, of rows in this process."""
    assert whole.fold is not None  # noqa: S101 - the recipe has folds
    return [
        divided(whole, folds.sides(whole.fold["fold"].values, fold), task)
        for fold in range(folds.number)
    ]
