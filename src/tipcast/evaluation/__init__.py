"""Evaluation: metrics at any number of rows, plots and the report made of them; here are the kinds
of tasks.
"""

import importlib
import re
from collections.abc import Callable

from tipcast.config.errors import TipcastError
from tipcast.evaluation.base import OWN, Evaluator, Metric, RowMetric, load_entry_points
from tipcast.tasks.kinds import Kind, named

__all__ = ["Evaluator", "evaluator", "metric", "ranking"]


def evaluator(kind: Kind) -> Evaluator:
    """Return the evaluator of a kind of task."""
    module, _, name = kind.evaluator.rpartition(".")
    judge: Evaluator = getattr(importlib.import_module(module), name)()
    return judge


def ranking(kind: Kind, name: str | None, where: str) -> Metric:
    """Return what models of a kind are ranked by: the headline, or a metric of that name, also a
    user's; else C003.
    """
    judge = evaluator(kind)
    load_entry_points()
    metrics = {choice.name: choice for choice in (*judge.metrics, *OWN[kind.name]) if choice.ranks}
    if name is not None and name not in metrics:
        raise TipcastError(
            "C003", where, f"no metric to rank a {kind} by: {name}", f"use {', '.join(metrics)}"
        )
    return metrics[name or judge.headline.name]


def metric(
    kind: str, *, maximize: bool, name: str | None = None
) -> Callable[[RowMetric], RowMetric]:
    """Make a function a metric of all tasks of a kind: it is logged, and stands in every table.

    The function gets a part's target and predictions as arrays of its device and returns one value
    for each row; the metric is their mean over all rows, exact for any number of parts. ``name`` is
    its key, the function's name where None. Workers must be able to import the function's module,
    which an installed package makes known by an entry point of the group ``tipcast.metrics``. C003
    where the name is reserved, or not possible in MLflow.

    Examples
    --------
    >>> @metric("regression", maximize=True)
    ... def within_one(target, prediction):
    ...     return abs(prediction - target) <= 1

    """

    def register(function: RowMetric) -> RowMetric:
        added = Metric(name or function.__name__, maximize)
        # `rows` is taken too: jobs log the number of rows under it.
        if added.name in {ours.name for ours in evaluator(named(kind)).metrics} | {"rows"}:
            raise TipcastError(
                "C003", f"metric {added.name}", "is one of ours", "give it another name"
            )
        # Stores would log it under another name.
        if not re.fullmatch(r"\w[\w.\- ]*", added.name):
            raise TipcastError(
                "C003", f"metric {added.name}", "is no name to MLflow", "use letters, digits and _"
            )
        OWN[kind][added] = function
        return function

    return register
