"""The values that a training run passes from step to step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tipcast.data.fragments import Listing
from tipcast.data.prepare import Recipe
from tipcast.data.rows import Rows
from tipcast.evaluation.base import Estimate, Evaluation


@dataclass(frozen=True)
class Plan:
    """What will be read, known before any worker starts."""

    train: Listing
    test: Listing
    recipe: Recipe
    test_recipe: Recipe


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
