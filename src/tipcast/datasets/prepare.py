"""From one fragment of raw rows to features and a target: the task that every worker runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from tipcast.compute.base import Array, Frames
from tipcast.config.errors import travelling
from tipcast.datasets.base import Counts, Dataset, Fragment, Part
from tipcast.datasets.split import Draw
from tipcast.tasks.base import Task

if TYPE_CHECKING:
    import pandas as pd

NO_TARGET = "no_target"
"""Why a row is dropped that has no answer to the task's question."""


@dataclass(frozen=True)
class Recipe:
    """What is made of raw rows."""

    dataset: Dataset
    task: Task
    cutoff: int | None = None
    """Microseconds since 1970: rows of a time from here on go into the second part. None: one part."""
    draw: Draw | None = None
    """Rows go into parts at random, and some into none. None: by ``cutoff``."""
    subsets: bool = False
    """Whether to keep the dataset's subsets, and to count what is its own of clean rows."""

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features, in order."""
        return self.task.features

    @property
    def columns(self) -> tuple[str, ...]:
        """Canonical names of the raw columns this needs."""
        time = () if self.dataset.time is None else (self.dataset.time,)
        needed = self.dataset.code.needed_columns(self.task.features)
        return tuple(dict.fromkeys((*time, *self.task.columns, *needed)))

    @property
    def optional(self) -> tuple[str, ...]:
        """Those that are read where a file has them."""
        return tuple(name for name in self.dataset.optional if name not in self.columns) if self.subsets else ()


@travelling
def prepare_fragment(fragment: Fragment, frames: Frames, recipe: Recipe) -> tuple[Part, ...]:
    """Read the recipe's columns of one fragment, and make features and target on the frames' device.

    Returns
    -------
    tuple of Part
        One part, the rows before and from ``recipe.cutoff``, or as many as ``recipe.draw`` has shares.

    Raises
    ------
    TipcastError
        D-errors naming the file, for bytes that cannot be read.

    """
    xp, dataset = frames.xp, recipe.dataset
    optional = (name for name in recipe.optional if name in fragment.columns)
    columns = dataset.read(fragment, frames, (*recipe.columns, *optional))
    rows = len(next(iter(columns.values())))
    size = sum(int(values.nbytes) for values in columns.values())
    extra = dataset.own_counts(columns, cleaned=False)
    keep, dropped = dataset.clean(columns, fragment.period, xp)
    side = None if recipe.draw is None else recipe.draw.sides(fragment, rows, xp)
    if keep is not None:
        columns = {name: values[keep] for name, values in columns.items()}
        side = None if side is None else side[keep]
    with np.errstate(all="ignore"):
        target = recipe.task.target(columns, xp)
    known = _known(target)
    if known is not None and not known.all():
        dropped = {**dropped, NO_TARGET: int(known.size - known.sum())}
        columns = {name: values[known] for name, values in columns.items()}
        side = None if side is None else side[known]
        target = None if target is None else target[known]
    read = Counts(0, rows, dropped, size, extra)
    parts = []
    for at, chosen in enumerate(_sides(columns, fragment, recipe, side)):
        own = columns if chosen is None else {name: values[chosen] for name, values in columns.items()}
        of_side = target if target is None or chosen is None else target[chosen]
        parts.append(_part(own, of_side, frames, recipe, read if at == 0 else Counts(0, 0, {})))
    return tuple(parts)


def _known(target: Array | None) -> Array | None:
    """Return which rows have an answer; None where all have."""
    if target is None or target.dtype.kind in "bu":
        return None
    return target == target if target.dtype.kind == "f" else target >= 0


def _sides(
    columns: Mapping[str, Array], fragment: Fragment, recipe: Recipe, side: Array | None
) -> list[Array | slice | None]:
    """Return the rows of each part as a mask or a slice, None for all."""
    if recipe.draw is not None:
        return [side == number for number in range(len(recipe.draw.shares))]
    if recipe.cutoff is None:
        return [None]
    start, stop = fragment.period or (recipe.cutoff, recipe.cutoff)
    if stop <= recipe.cutoff:
        return [None, slice(0)]
    if start >= recipe.cutoff:
        return [slice(0), None]
    before = columns[str(recipe.dataset.time)] < recipe.cutoff
    return [before, ~before]


def _part(columns: Mapping[str, Array], target: Array | None, frames: Frames, recipe: Recipe, read: Counts) -> Part:
    xp: ModuleType = frames.xp
    dataset, task = recipe.dataset, recipe.task
    matrix = dataset.compute(columns, task.features, xp)
    classes: tuple[int, ...] = ()
    if target is not None and task.kind == "regression":
        target = target.astype(xp.float32)
    elif target is not None:
        target = target.astype(xp.int32)
        if len(task.classes) == 2:
            positives = int(target.sum())
            classes = len(target) - positives, positives
        else:
            classes = tuple(int(rows) for rows in xp.bincount(target, minlength=len(task.classes)))
    counted = dataset.own_counts(columns, cleaned=True) if recipe.subsets else {}
    return Part(
        x=frames.frame(matrix, task.features),
        y=None if target is None else frames.series(target, "target"),
        subsets=dataset.subsets(columns, xp) if recipe.subsets else {},
        counts=replace(
            read,
            rows=len(matrix),
            classes=classes,
            bytes=int(matrix.nbytes + (0 if target is None else target.nbytes)),
            extra={**read.extra, **counted},
        ),
    )


@travelling
def held_out_rows(
    fragment: Fragment, recipe: Recipe, facts: Mapping[str, object], rows: int
) -> tuple[dict[str, Array], pd.DataFrame]:
    """Read the first clean ``rows`` of a fragment, on the host.

    Returns
    -------
    tuple
        The canonical columns, and the same rows as a pandas DataFrame under their raw names, which the ``facts`` of the
        listing decide that the model is trained on.

    """
    from tipcast.compute.cpu import CpuFrames  # imports pandas

    dataset, columns = recipe.dataset, recipe.columns
    read = dataset.read(fragment, CpuFrames(), columns)
    keep, _ = dataset.clean(read, fragment.period, np)
    good = np.ones(len(next(iter(read.values()))), dtype=bool) if keep is None else keep
    needed = dataset.code.needed_columns(recipe.task.features)
    bad, _ = dataset.code.impossible(read, needed)  # a distance, which is no reason to drop a row
    if bad is not None:
        good &= ~bad
    read = {name: values[good][:rows] for name, values in read.items()}
    return read, dataset.raw_frame(read, facts)
