"""Passthrough columns: those of an input file that its scores have too."""

from collections.abc import Sequence

import pyarrow as pa

from tipcast.config.errors import TipcastError
from tipcast.datasets import address
from tipcast.datasets.parts import FilePart
from tipcast.scoring.plan import added_columns
from tipcast.scoring.predictions import ScoringContext


def read_passthrough(part: FilePart, context: ScoringContext) -> pa.Table:
    """Read the passthrough columns of a part, on the host, in row order, without the file's
    metadata.

    Parquet columns keep their types; CSV columns get those of ``Scorable.csv_types``. Raises D001
    if the file is gone, D005 if it is damaged or a cell does not parse, D007 if it lacks a column,
    D022 if it cannot be reached.
    """
    return part.read_as_stored(
        lambda names: kept_names(names, part, context), context.dataset.csv_types
    )


def kept_names(names: Sequence[str], part: FilePart, context: ScoringContext) -> list[str]:
    """Return the passthrough columns by the file's own names, in the file's order; by default all
    columns that scoring does not add.
    """
    if context.keep is None:
        return [name for name in names if name not in added_columns(context.task)]

    where = address.shown(part.uri)
    own_names = {**context.dataset.own_names(names, where), **part.columns, **part.column_names}
    own_names |= {name: name for name in names}
    missing = [name for name in context.keep if name not in own_names]
    if missing:
        columns = "columns"
        if len(missing) == 1:
            columns = "column"
        what = f"missing {columns} {', '.join(map(repr, missing))}, which keep lists"
        fix = "remove it from keep, or use a file that has it"
        raise TipcastError("D007", where, what, fix)

    kept = {own_names[name] for name in context.keep}
    for name in kept & set(added_columns(context.task)):
        fix = "remove it from keep, or rename the column in the file"
        raise TipcastError("D007", where, f"keep lists {name!r}, which scoring adds", fix)

    return [name for name in names if name in kept]
