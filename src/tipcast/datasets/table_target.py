"""Columns of a table that cannot be what a task asks for, and what helps then."""

from tipcast.config.errors import TipcastError
from tipcast.datasets.base import RawColumn
from tipcast.tasks.kinds import Kind

MOST_CLASSES = 1_000
FEWER = (
    "name a column of fewer values as task.target (an identifier names rows, not classes), "
    "or for a regression"
)
"""What helps where a column has too many values to be classes; what a regression needs follows."""


def left_out(name: str, note: str, *, many: bool) -> TipcastError:
    """Return the error (C003) of a target that is no feature either; ``note`` says why.

    ``many``: it has more texts than can be classes, whatever ``data.types`` says.
    """
    what = f"column {name!r} is left out: {note}"
    fix = "name another column, or see data.types"
    if many:
        fix = f"{FEWER} one of numbers"
    return TipcastError("C003", "task.target", what, fix)


def unfit(column: RawColumn, values: int, kind: Kind | None) -> TipcastError:
    """Return the error (C003) of a column whose different values are not for a kind; None:
    classes.
    """
    where = "task.kind" if kind else "task.target"
    number = f"{values:,}"
    if column.type == "number" and values > MOST_CLASSES:  # of which no more were counted
        number = f"more than {MOST_CLASSES:,}"
    what = f"column {column.name!r} has {number} different values: not for {kind or 'classes'}"
    return TipcastError("C003", where, what, _fix(column, values, kind))


def _fix(column: RawColumn, values: int, kind: Kind | None) -> str:
    is_text = column.type == "category"
    if kind is not None and not kind.has_classes:
        numbers = f"data.types={{{column.name}: number}} reads texts that are numbers"
        return f"leave task.kind out, or name a column of numbers: {numbers}"
    if values > MOST_CLASSES and is_text:
        return f"{FEWER} one of numbers"
    if values > MOST_CLASSES:
        return f"{FEWER} leave task.kind out"
    return "leave task.kind out" if is_text else "leave task.kind out, or use regression"
