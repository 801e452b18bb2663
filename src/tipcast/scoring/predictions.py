"""Predict the rows of one part, and count the sums that metrics need of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tipcast.compute.base import Array, Frames, to_host
from tipcast.datasets.base import Scorable
from tipcast.datasets.parts import Part
from tipcast.evaluation import evaluator_of
from tipcast.evaluation.sums import Sums
from tipcast.models.native import Scorer
from tipcast.scoring.plan import MODEL_COLUMNS
from tipcast.tasks.base import Task, is_weight

REPLACES_INFINITE = -1.0
"""Value of a feature in place of an infinite one."""


@dataclass(frozen=True)
class ScoringContext:
    """What all tasks of a scoring share."""

    frames: Frames
    dataset: Scorable
    task: Task
    threshold: float | None
    """With two classes, scores at or above it are predicted 1."""
    keep: Sequence[str] | None
    """Columns of the input that scored files have; None: all."""
    model_name: str
    model_version: str | None
    """Version of the model; None if it is not registered."""
    folder: str
    """Folder that gets the scores."""
    storage: Mapping[str, Any]
    """fsspec's options for the folder, as ``address.storage`` returns them."""
    weight: str | None = None
    """Column of the weights by which metrics count rows; None: all rows count the same."""


@dataclass(frozen=True)
class Predictions:
    """A model's predictions of a part's rows, on the host."""

    values: Array
    """Predictions as ``Scorer.score`` returns them."""
    invalid: Array | None
    """(rows,) bool: rows whose prediction means nothing; None if there are no such rows."""
    unscored: Mapping[str, int]
    """Reason -> rows that are invalid."""
    sums: Sums


def predict_part(part: Part, scorer: Scorer, context: ScoringContext) -> Predictions:
    """Compute features of a part's rows and predict; count the sums that metrics need."""
    features = context.task.features
    needed = context.dataset.needed_columns(features)
    columns = read_columns(part, context)
    target = target_of(columns, part, context)
    weights = weights_of(columns, context)
    invalid, unscored = context.dataset.code.impossible(columns, needed, context.frames.xp)

    matrix = compute_features(columns, context)
    values = scorer.score(context.frames.frame(matrix, features))

    sums = count_predictions(values, target, weights, invalid, context)
    return Predictions(to_host(values), to_host(invalid), unscored, sums)


def count_predictions(
    values: Array,
    target: Array | None,
    weights: Array | None,
    invalid: Array | None,
    context: ScoringContext,
) -> Sums:
    """Count the evaluator's sums over the rows with a valid prediction."""
    if invalid is not None:
        values = values[~invalid]
        target = None if target is None else target[~invalid]
        weights = None if weights is None else weights[~invalid]

    columns = [values, target] if weights is None else [values, target, weights]
    sums: Sums = evaluator_of(context.task.kind).count(*columns, threshold=context.threshold)
    return sums


def read_columns(part: Part, context: ScoringContext) -> dict[str, Array]:
    """Read the canonical columns that features, target and weights need, if the file has them."""
    dataset = context.dataset
    needed = [*dataset.needed_columns(context.task.features), *context.task.columns]
    if context.weight is not None:
        needed.append(context.weight)
    if dataset.time:
        needed.insert(0, dataset.time)
    names = [name for name in dict.fromkeys(needed) if name in part.columns]
    return dataset.read(part, context.frames, names)


def target_of(columns: Mapping[str, Array], part: Part, context: ScoringContext) -> Array | None:
    """Return the (rows,) target; -1 (classes) or NaN (values) for rows that training would drop, or
    whose weight is impossible.

    None if the file lacks the target's columns.
    """
    task = context.task
    xp = context.frames.xp
    if not task.has_target or not set(task.columns) <= set(columns):
        return None

    # Rows without a target, as those with fares of 0, are dropped.
    with np.errstate(all="ignore"):
        target: Any = task.target(columns, xp)
        usable, _ = context.dataset.clean(columns, part.period, xp)

    values: Array = target.astype(task.kind.target_dtype(xp.float64))
    if usable is not None:
        values[~usable] = task.kind.missing_target
    if context.weight is not None:
        weight = columns[context.weight]
        values[~is_weight(weight, xp)] = task.kind.missing_target

    return values


def weights_of(columns: Mapping[str, Array], context: ScoringContext) -> Array | None:
    """Return the (rows,) weights, 0 for rows that have none; None if all rows count the same, or
    the file has no weights.
    """
    if context.weight is None or context.weight not in columns:
        return None

    xp = context.frames.xp
    weight = columns[context.weight]
    return xp.where(is_weight(weight, xp), weight, 0.0)


def compute_features(columns: Mapping[str, Array], context: ScoringContext) -> Array:
    """Return (rows, features) float32, with ``REPLACES_INFINITE`` for infinite values."""
    xp = context.frames.xp
    features = context.task.features
    rows = len(next(iter(columns.values())))
    absent = [name for name in context.dataset.needed_columns(features) if name not in columns]
    nothing = {name: xp.full(rows, np.nan) for name in absent}

    with np.errstate(all="ignore"):  # ``impossible`` finds values that are out of range
        matrix = context.dataset.compute({**columns, **nothing}, features, xp)

    matrix[xp.isinf(matrix)] = REPLACES_INFINITE  # some libraries would refuse all rows
    return matrix


def columns_of_predictions(predictions: Predictions, context: ScoringContext) -> pa.Table:
    """Return the columns of a model's predictions; they are null in rows that are ``invalid``."""
    task = context.task
    columns = task.kind.scored_values(predictions.values, task.classes, context.threshold)
    arrays = [pa.array(column, mask=predictions.invalid) for column in columns]
    return pa.Table.from_arrays(arrays, names=task.kind.scored_columns(task.classes))


def columns_of_model(context: ScoringContext) -> dict[str, str | None]:
    """Return the columns that name the model: name -> the text in every row."""
    return dict(zip(MODEL_COLUMNS, (context.model_name, context.model_version), strict=True))
