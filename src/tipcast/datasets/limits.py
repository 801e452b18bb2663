"""What of rows that were read is too little: the limits of ``data.limits``, and warnings."""

import logging
from collections.abc import Mapping

from tipcast.config.data_schema import Limits
from tipcast.config.errors import TipcastError
from tipcast.datasets import address
from tipcast.datasets.base import Published
from tipcast.datasets.counts import Counts, total
from tipcast.datasets.listing import Listing
from tipcast.datasets.periods import OTHER_SIDE
from tipcast.datasets.prepare import Recipe
from tipcast.tasks.base import Task

LOG = logging.getLogger("tipcast")

MUCH = 0.05
"""A share of the rows that are dropped for one reason that a user should hear of."""


def check_counts(
    listing: Listing, per_file: Mapping[str, Counts], recipe: Recipe, limits: Limits
) -> None:
    """Refuse a file whose rows cannot be used, and a period that too few rows are left of.

    Raises D009, D014, D015, and what ``Published.check_files`` raises.
    """
    for uri, counts in per_file.items():
        if counts.rows_read == 0:
            raise TipcastError("D009", uri, "has no rows", "remove it")

    if isinstance(recipe.dataset, Published):
        recipe.dataset.check_files(listing, per_file, limits)

    every = total(list(per_file.values()))
    dropped = sum(every.dropped.values())
    where = address.shown(next(iter(per_file))) + (
        f" and {len(per_file) - 1} more" if len(per_file) > 1 else ""
    )
    why = f" ({dropped:,} rows dropped: {', '.join(sorted(every.dropped))})" if dropped else ""
    check_split(where + why, every, recipe.task, limits)

    for reason, rows in every.dropped.items():
        if reason != OTHER_SIDE and rows > MUCH * every.rows_read:
            LOG.warning(
                "%s of %s rows of %s are not used: %s",
                f"{rows:,}",
                f"{every.rows_read:,}",
                where,
                reason,
            )


def check_split(where: str, counts: Counts, task: Task, limits: Limits) -> None:
    """Refuse rows that nothing can be learnt from or measured on; ``where`` says in the message
    which they are.

    Raises D014 for too few rows, D015 for one class only, and for a class that the task has no name
    of, D032 for rows whose weights are all 0. A class whose weights are all 0 has no rows.
    """
    if counts.rows < limits.min_rows:
        what = f"{counts.rows} usable rows, but at least {limits.min_rows} are needed"
        raise TipcastError("D014", where, what, "use more data, or lower data.limits.min_rows")
    if len(counts.classes) > len(task.classes):
        what = (
            f"the target has {len(counts.classes)} classes, but the task names {len(task.classes)}"
        )
        raise TipcastError("D015", where, what, "list them all in task.classes")

    if task.weight is not None and not counts.weight:
        what = f"column {task.weight!r}: all {counts.rows:,} weights are 0"
        raise TipcastError("D032", where, what, "give some rows a weight above 0")

    present = [name for name, rows in zip(task.classes, counts.class_sums, strict=False) if rows]
    if counts.classes and len(present) < 2:
        columns = " or ".join(repr(name) for name in task.columns)
        fix = f"check column {columns}" + (
            ", or set task.threshold" if "threshold" in task.params else ""
        )
        raise TipcastError(
            "D015", where, f"all {counts.rows} rows have the same label ({present[0]})", fix
        )
