"""Evaluation: metrics at any number of rows, plots, and the report made of them.

This module finds the evaluator of a kind of task, and registers metrics of users.
"""

import importlib
import re
from collections.abc import Callable

from tipcast.config.errors import TipcastError
from tipcast.evaluation.base import OWN, Evaluator, Metric, RowMetric, load_entry_points
from tipcast.tasks.kinds import Kind, named

__all__ = ["Evaluator", "evaluator_of", "metric", "ranking"]


def evaluator_of(kind: Kind) -> Evaluator:
    """Return the evaluator of a kind of task."""
    module, _, name = kind.evaluator.rpartition(".")
    evaluator: Evaluator = getattr(importlib.import_module(module), name)()
    return evaluator


def ranking(kind: Kind, name: str | None, where: str) -> Metric:
    """Return the metric that models of a kind are ranked by: the headline, or the one with that
    name, which may be a user's. Raises C003 for an unknown name.
    """
    evaluator = evaluator_of(kind)
    load_entry_points()
    candidates = (*evaluator.metrics, *OWN[kind.name])
    metrics = {metric.name: metric for metric in candidates if metric.ranks}
    if name is not None and name not in metrics:
        what = f"cannot rank a {kind} by {name}"
        raise TipcastError("C003", where, what, f"use {', '.join(metrics)}")
    return metrics[name or evaluator.headline_metric.name]


def metric(
    kind: str, *, maximize: bool, name: str | None = None
) -> Callable[[RowMetric], RowMetric]:
    """Make a function a metric of all tasks of a kind: it is logged, and stands in every table.

    The function gets a part's target and predictions as arrays of its device and returns one value
    for each row; the metric is their mean over all rows, exact for any number of parts. ``name`` is
    its key, by default the function's name. Workers must be able to import the function's module.
    An installed package makes it known by an entry point of the group ``tipcast.metrics``. Raises
    C003 if the name is reserved, or not possible in MLflow.

    Examples
    --------
    >>> @metric("regression", maximize=True)
    ... def within_one(target, prediction):
    ...     return abs(prediction - target) <= 1

    """

    def register(function: RowMetric) -> RowMetric:
        added = Metric(name or function.__name__, maximize)
        where = f"metric {added.name}"
        reserved = {metric.name for metric in evaluator_of(named(kind)).metrics}
        reserved.add("rows")  # jobs log the number of rows under it
        if added.name in reserved:
            raise TipcastError("C003", where, "is reserved", "give it another name")

        # Stores would log it under another name.
        if not re.fullmatch(r"\w[\w.\- ]*", added.name):
            fix = "use letters, digits and _"
            raise TipcastError("C003", where, "is not a valid metric name in MLflow", fix)

        OWN[kind][added] = function
        return function

    return register
