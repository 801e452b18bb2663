"""`tipcast inspect`: show in one table how each column of a table is interpreted, before anything
is trained on it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tipcast.compute.frames import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.config.schema import InspectConfig, Output
from tipcast.config.streams import show
from tipcast.datasets.registry import open_dataset
from tipcast.datasets.table.dataset import Table
from tipcast.jobs import aligned, end_job
from tipcast.tasks.kinds import named_by

CONSTANT = "the same value in all rows: a model learns nothing from it"
SHOWN_CLASSES = 10


def run(config: InspectConfig, command: str) -> Mapping[str, Any]:
    """Print the table of columns and return it.

    Raises C003 for data whose columns do not depend on files, and D-errors.
    """
    dataset = open_dataset(config.data)
    report: list[dict[str, Any]] = []
    if isinstance(dataset, Table):
        report = _with_constants(dataset)
    if not isinstance(dataset, Table) or not report:
        what = f"docs/data.md lists the columns of data={config.data.source}"
        raise TipcastError("C003", "data.source", what, "use data=table")

    result: dict[str, Any] = {"columns": report, "command": command}
    if config.task.target is not None:
        target = dataset.target_column(config.task.target, named_by(config.task.kind))
        result["target"] = {
            "column": target.name,
            "kind": target.kind.name,
            "classes": list(target.classes),
        }

    if config.print is not Output.text:
        return end_job(result, config.print)

    show_columns(report)
    if "target" in result:
        show_target(result["target"])
    return result


def show_columns(report: Sequence[Mapping[str, Any]]) -> None:
    """Print the table of columns, each cell as wide as the widest of its column."""
    lines = [[*report[0]]]
    for row in report:
        lines.append([_text(cell) for cell in row.values()])

    for line in aligned(lines):
        show(line)


def _text(cell: object) -> str:
    if isinstance(cell, int):
        return f"{cell:,}"
    return str(cell)


def show_target(target: Mapping[str, Any]) -> None:
    """Print the target's column, its kind and its first classes."""
    names = target["classes"][:SHOWN_CLASSES]
    if len(target["classes"]) > SHOWN_CLASSES:
        names.append("...")

    entries = {**target, "classes": ", ".join(names)}
    facts = [f"{name} {value}" for name, value in entries.items() if value]
    show("  ".join(["target", *facts]))


def _with_constants(dataset: Table) -> list[dict[str, Any]]:
    """Return the dataset's report on its columns, with a note on each column that has the same
    value in all rows.
    """
    constant = constant_columns(dataset)
    rows = [dict(row) for row in dataset.report]
    for row in rows:
        if row["column"] in constant:
            row["note"] = "; ".join(filter(None, [row["note"], CONSTANT]))
    return rows


def constant_columns(table: Table) -> set[str]:
    """Return the columns that have the same value in all rows of the training side: no model learns
    from them.
    """
    full = [column for column in table.columns if not table.decisions[column.name].lacks_values]
    constant = {column.name for column in full if len(column.categories) == 1}
    numbers = [column.name for column in full if column.type in ("number", "date")]
    return constant | constant_numbers(table, numbers)


def constant_numbers(table: Table, names: Sequence[str]) -> set[str]:
    """Return the columns of numbers or dates that have the same value in all rows of the training
    side.
    """
    values_of = {name: set[float]() for name in names}
    if not names:
        return set()

    for part in table.scan("train", tuple(values_of)).parts:
        columns = table.read(part, CpuFrames(), tuple(values_of))
        for name, values in columns.items():
            values_of[name].update(np.unique(values)[:2].tolist())

        values_of = {name: values for name, values in values_of.items() if len(values) == 1}
        if not values_of:  # the other parts need not be read
            break
    return set(values_of)
