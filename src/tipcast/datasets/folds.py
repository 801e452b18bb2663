"""Folds of rows on the workers: the rows that a fold's model learns from, and those that it is
tested on.

Each row has the number of the fold that tests it. Without a time the other folds' rows train that
fold's model. With a time folds are chained forward: rows of earlier folds train it, and those that
no fold tests, whose number is -1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tipcast.compute.base import Array, Frame
from tipcast.compute.cluster import at_home
from tipcast.config.data_schema import Limits
from tipcast.config.errors import TipcastError, travelling
from tipcast.datasets.base import Tabular
from tipcast.datasets.counts import Counts
from tipcast.datasets.group_split import GroupDraw
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
    key: str = ""
    """Key of the configuration whose column divides the rows; empty without one."""

    @classmethod
    def of(cls, recipe: Recipe) -> "Folds":
        """Return the folds that a recipe marks rows with."""
        key = ""
        if isinstance(recipe.draw, GroupDraw):
            key = "data.group"
        elif recipe.cuts and isinstance(recipe.dataset, Tabular):
            key = "data.time"
        return cls(recipe.task, forward=bool(recipe.cuts), key=key)

    @property
    def number(self) -> int:
        """Number of folds."""
        return self.task.folds

    def name(self, fold: int) -> str:
        """Return what messages call a fold."""
        return f"fold {fold + 1} of {self.number}"

    def check(self, fold: int, train: Counts, test: Counts, limits: Limits) -> None:
        """Refuse a fold from whose rows nothing can be learned, or nothing be measured on.

        Of two classes both sides need both; of several classes the test rows may lack some. Raises
        D014 for too few rows, D015 for a class without rows, D032 for rows whose weights are all 0.
        A class whose weights are all 0 has no rows.
        """
        for side, counts in (("training", train), ("test", test)):
            problem = self._problem(side, counts, limits)
            if problem is not None:
                code, what = problem
                raise TipcastError(code, self.name(fold), what, self._fix(code))

    def _problem(self, side: str, counts: Counts, limits: Limits) -> tuple[str, str] | None:
        """Return the code of the error about one side of a fold, and what is wrong there; None if
        nothing is.
        """
        if counts.rows < limits.min_rows:
            return "D014", f"{counts.rows} {side} rows, but at least {limits.min_rows} are needed"
        if self.task.weight is not None and not counts.weight:
            return "D032", f"all weights of its {counts.rows:,} {side} rows are 0"
        if side == "test" and len(self.task.classes) > 2:
            return None

        of_class = counts.class_weights if counts.weight else counts.classes
        for name, rows in zip(self.task.classes, of_class, strict=False):
            if not rows:
                return "D015", f"no {side} row has class {name}"
        return None

    def _fix(self, code: str) -> str:
        """Return what a user can do about an error of a fold."""
        fix = "use fewer folds"
        if self.key:
            fix = f"{fix}, or another {self.key}"
        if code == "D014":
            fix = f"{fix}, or lower data.limits.min_rows"
        return fix

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
        where = at_home(home) if home else {}
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
