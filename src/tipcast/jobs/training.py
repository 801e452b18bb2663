"""The values that a training run passes from step to step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tipcast.datasets import split
from tipcast.datasets.base import Dataset, Listing
from tipcast.datasets.prepare import Recipe
from tipcast.datasets.rows import Rows
from tipcast.evaluation.base import Estimate, Evaluation
from tipcast.tasks.base import Task


@dataclass(frozen=True)
class Plan:
    """What will be read, known before any worker starts."""

    train: Listing
    test: Listing
    recipe: Recipe
    test_recipe: Recipe

    @property
    def task(self) -> Task:
        """What is predicted."""
        return self.recipe.task

    @property
    def dataset(self) -> Dataset:
        """What the columns mean."""
        return self.recipe.dataset

    @property
    def periods(self) -> dict[str, str]:
        """Split -> its period in words, or its share where rows have no time."""
        train, test, cutoff, draw = self.train.period, self.test.period, self.recipe.cutoff, self.recipe.draw
        if train is not None and test is not None and draw is None:
            spans = {"train": train if cutoff is None else (train[0], cutoff)}
            if cutoff is not None:
                spans["validation"] = (cutoff, train[1])
            return {name: split.describe(span) for name, span in (spans | {"test": test}).items()}
        shares = {} if draw is None else dict(zip(("train", "validation"), draw.shares, strict=False))
        if self.test_recipe.draw is not None:
            (shares["test"],) = self.test_recipe.draw.shares
        return {
            name: f"{high - low:.0%} at random" if name in shares else "all rows"
            for name, (low, high) in ({"train": (0.0, 1.0), "test": (0.0, 1.0)} | shares).items()
        }


@dataclass(frozen=True)
class Data:
    """The splits, on the workers."""

    train: Rows
    validation: Rows | None
    test: Rows

    @property
    def splits(self) -> dict[str, Rows]:
        """The splits there are, in order of time."""
        found = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: rows for name, rows in found.items() if rows is not None}


@dataclass(frozen=True)
class Outcome:
    """How well the model does."""

    validation: Evaluation | None
    test: Evaluation
    subsets: Mapping[str, Estimate]
    """Name -> the headline of a part of the test rows."""
    profile: Mapping[str, Any]
    """What trained-on rows and scores of others look like, see ``evaluation.drift``."""


def held_out_draw(dataset: Dataset, seed: int) -> split.Draw | None:
    """Return the draw of the test rows where they are a share of the training rows; None where they are their own."""
    share = dataset.test_share
    return split.Draw(seed, ((1 - share, 1.0),)) if share else None
