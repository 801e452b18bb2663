"""The target of a table: what a column holds that is to be predicted, or why it cannot be and what
helps then.
"""

from collections.abc import Callable

from tipcast.config.errors import TipcastError
from tipcast.datasets.base import RawColumn
from tipcast.datasets.table.column_types import READ_COMMAS, WITH_COMMA
from tipcast.tasks.base import TargetColumn
from tipcast.tasks.kinds import BINARY, MULTICLASS, REGRESSION, Kind

FEW_VALUES = 20
"""Whole numbers with at most so many different values are classes, unless ``task.kind`` says
otherwise.
"""
MOST_CLASSES = 1_000
FEWER = (
    "use a column with fewer values as task.target (an identifier names rows, not classes), "
    "or for regression"
)
"""What helps where a column has too many values to be classes; what a regression needs follows."""


def target_of(
    column: RawColumn,
    kind: Kind | None,
    note: str,
    read_values: Callable[[str], tuple[float, ...]],
) -> TargetColumn:
    """Return what a column holds; ``kind`` where it is given, otherwise as the values say.

    ``note`` says why the column is taken as it is. ``read_values`` reads the different values of a
    column of numbers, and is called only where these decide.

    Raises C003 for a date and for a kind that the column is not of, D015 for one value alone.
    """
    if column.type == "date":
        what = f"column {column.name!r} is a date, which cannot be predicted"
        fix = f"use another column, or leave {column.name} out of data.types"
        raise TipcastError("C003", "task.target", what, fix)
    if column.type == "category":
        return _target_of_classes(column, column.categories, (), kind, note)
    if kind is not None and kind.has_target and not kind.has_classes:
        return TargetColumn(column.name, kind)

    values = read_values(column.name)
    whole = all(value.is_integer() for value in values)
    if kind is None and (len(values) > FEW_VALUES or not whole):
        return TargetColumn(column.name, REGRESSION)
    return _target_of_classes(column, _class_names(column, values), values, kind, note)


def _class_names(column: RawColumn, values: tuple[float, ...]) -> tuple[str, ...]:
    """Return what the values of a column of numbers are called as classes."""
    if column.booleans:
        return tuple(str(bool(value)) for value in values)
    return tuple(str(int(value)) if value.is_integer() else repr(value) for value in values)


def _target_of_classes(
    column: RawColumn,
    classes: tuple[str, ...],
    values: tuple[float, ...],
    kind: Kind | None,
    note: str,
) -> TargetColumn:
    """Return a target of these classes, whose ``values`` are empty where the column has texts."""
    if len(classes) == 1:
        what = f"all rows of column {column.name!r} have the same value ({classes[0]})"
        fix = note or "use another column as task.target"
        raise TipcastError("D015", "data.train", what, fix)

    target_kind = kind or (BINARY if len(classes) == 2 else MULTICLASS)
    if not target_kind.takes_classes(len(classes)) or len(classes) > MOST_CLASSES:
        raise unfit(column, len(classes), kind)

    return TargetColumn(column.name, target_kind, classes, values)


def left_out(name: str, note: str, *, many: bool) -> TipcastError:
    """Return the error (C003) of a target that is no feature either; ``note`` says why.

    ``many``: it has more texts than can be classes, whatever ``data.types`` says.
    """
    what = f"column {name!r} is left out: {note}"
    fix = "use another column, or see data.types"
    if many:
        fix = f"{FEWER} one of numbers"
    return TipcastError("C003", "task.target", what, fix)


def unfit(column: RawColumn, values: int, kind: Kind | None) -> TipcastError:
    """Return the error (C003) of a column whose different values are not for a kind; None:
    classes.
    """
    where = "task.kind" if kind else "task.target"
    number = f"{values:,}"
    if column.type == "number" and values > MOST_CLASSES:  # no more values were counted
        number = f"more than {MOST_CLASSES:,}"
    what = (
        f"column {column.name!r} has {number} distinct values, unsuitable for {kind or 'classes'}"
    )
    return TipcastError("C003", where, what, _fix(column, values, kind))


def _fix(column: RawColumn, values: int, kind: Kind | None) -> str:
    is_text = column.type == "category"
    if kind is not None and not kind.has_classes:
        numbers = f"data.types={{{column.name}: number}} reads texts that are numbers"
        return f"leave task.kind out, or use a column of numbers: {numbers}"
    if any(WITH_COMMA.fullmatch(text) for text in column.categories):
        return READ_COMMAS
    if values > MOST_CLASSES and is_text:
        return f"{FEWER} one of numbers"
    if values > MOST_CLASSES:
        return f"{FEWER} leave task.kind out"
    return "leave task.kind out" if is_text else "leave task.kind out, or use regression"
