"""How a model gets the columns of a table: what stands for a missing value, and which columns are
categories.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tipcast.datasets.base import RawColumn
from tipcast.datasets.table import features as table_features
from tipcast.datasets.table.dates import features_of
from tipcast.tasks.base import Task


@dataclass(frozen=True)
class Encoding:
    """A table's columns and a task's features as a model wants them."""

    columns: tuple[RawColumn, ...]
    task: Task
    one_hot: bool
    """Whether the model gets a column of 0 and 1 for each value of a category."""

    def in_words(self, columns: Sequence[RawColumn]) -> dict[str, str]:
        """Say of each feature's column, as it is by now, how the model gets it."""
        categorical = set(self.task.categorical)
        return {
            column.name: in_words(
                column, categorical=column.name in categorical, one_hot=self.one_hot
            )
            for column in columns
            if not set(features_of(column)).isdisjoint(self.task.features)
        }


def encode(
    columns: Sequence[RawColumn],
    task: Task,
    medians: Mapping[str, float],
    lacking: Collection[str],
    *,
    takes_missing: bool,
    one_hot: bool,
) -> Encoding:
    """Return the columns with fillings and indicators, and the task with these features and its
    categories.

    What is missing stays NaN where the model learns from it. Elsewhere a missing number or date
    gets the median, and the model a further feature that says where, if rows of the training files
    lack it (``lacking``); a missing category gets the code -1, or 0 in each of its columns where
    the model is ``one_hot``.
    """
    chosen = set(task.features)
    categorical = set(task.categorical)
    if one_hot:
        categorical.update(
            column.name for column in columns if column.name in chosen and column.type == "category"
        )

    names = {column.name for column in columns}
    encoded = []
    for column in columns:
        is_chosen = not chosen.isdisjoint(features_of(column))
        if takes_missing or column.name in categorical or not is_chosen:
            encoded.append(replace(column, fill=None, indicator=""))
        elif column.type == "category":
            encoded.append(replace(column, fill=table_features.UNKNOWN_CODE, indicator=""))
        else:
            indicator = indicator_of(column.name, names) if column.name in lacking else ""
            encoded.append(replace(column, fill=medians.get(column.name, 0.0), indicator=indicator))

    indicators = [column.indicator for column in encoded if column.indicator]
    task_of_model = replace(
        task,
        features=(*task.features, *indicators),
        categorical=tuple(name for name in task.features if name in categorical),
        missing=math.nan,
    )
    return Encoding(tuple(encoded), task_of_model, one_hot)


def indicator_of(name: str, columns: Collection[str]) -> str:
    """Return a name for the feature that says where a column's value is missing, which no column
    has.
    """
    indicator = f"{name} is missing"
    while indicator in columns:
        indicator += "_"
    return indicator


def in_words(column: RawColumn, *, categorical: bool, one_hot: bool) -> str:
    """Say how the model gets a column: whether it is a category to it, and then each value a column
    of 0 and 1.
    """
    if categorical and one_hot:
        values = f"each of {len(column.categories):,} texts" if column.categories else "each value"
        return f"a 0/1 column for {values}; all 0 for a missing or new one"
    if categorical:
        return "a category; missing values stay missing"
    if column.type == "category":
        last = len(column.categories) - 1
        code = "missing" if column.fill is None else f"{column.fill:g}"
        return f"codes 0 to {last:,} in the order of its texts; {code} for a missing or new one"
    if column.type == "date":
        return _date_in_words(column)
    if column.fill is None:
        return "as it is; missing values stay missing"
    if column.indicator:
        marked = f"feature {column.indicator!r} marks these rows"
        return f"{column.fill:g}, the median, where missing; {marked}"

    return f"as it is; {column.fill:g}, the median, if missing in a new row"


def _date_in_words(column: RawColumn) -> str:
    """Say how the model gets a date."""
    named = f"features {', '.join(features_of(column))}"
    if column.fill is None:
        return f"{named}; missing dates stay missing"

    median = np.datetime64(int(column.fill), "D")
    if column.indicator:
        where = f"feature {column.indicator!r} marks these rows"
        return f"{named}; those of {median}, the median, where missing; {where}"
    return f"{named}; those of {median}, the median, if missing in a new row"
