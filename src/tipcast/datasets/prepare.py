"""What a worker makes of a part of the data: features and target, divided between splits."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from tipcast.compute.base import Array, Frame, Frames, module_of, to_host
from tipcast.config.errors import TipcastError, travelling
from tipcast.datasets import address
from tipcast.datasets.base import Dataset, Published, raw_frame
from tipcast.datasets.counts import Counts
from tipcast.datasets.group_split import GroupDraw
from tipcast.datasets.listing import FileInfo
from tipcast.datasets.parts import FilePart, Part
from tipcast.datasets.random_split import Draw, rows_by_class
from tipcast.tasks.base import Task, is_weight

if TYPE_CHECKING:
    import pandas as pd

NO_TARGET = "no_target"
"""Why a row is dropped that has no answer to the task's question."""
NO_WEIGHT = "no_weight"
"""Why a row is dropped whose weight is missing."""


@dataclass(frozen=True)
class Recipe:
    """What is made of raw rows."""

    dataset: Dataset
    task: Task
    cutoff: int | None = None
    """Microseconds since 1970: rows of a time from here on are validated on. None: one split."""
    cuts: tuple[int, ...] = ()
    """Microseconds since 1970: where the time of each fold's test rows begins, ascending."""
    draw: Draw | GroupDraw | None = None
    """Rows go into its splits at random, see ``draw_splits``. None: by ``cutoff``."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Canonical names of the raw columns that every file must have."""
        time = () if self.dataset.time is None else (self.dataset.time,)
        weight = () if self.task.weight is None else (self.task.weight,)
        group = (self.draw.column,) if isinstance(self.draw, GroupDraw) else ()
        needed = self.dataset.needed_columns(self.task.features)
        columns = dict.fromkeys((*time, *self.task.columns, *weight, *group, *needed))
        return tuple(name for name in columns if name not in self._sparse)

    @property
    def optional(self) -> tuple[str, ...]:
        """Those that are read where a file has them."""
        needed = self.dataset.needed_columns(self.task.features)
        return tuple(name for name in needed if name in self._sparse)

    @property
    def _sparse(self) -> tuple[str, ...]:
        return self.dataset.sparse if isinstance(self.dataset, Published) else ()

    @property
    def has_folds(self) -> bool:
        """Whether rows know the fold that tests them."""
        return bool(self.cuts or (self.draw and self.draw.folds))

    def wanted(self, part: Part) -> tuple[str, ...]:
        """Return the canonical columns to read of a part."""
        return (*self.columns, *(name for name in self.optional if name in part.columns))


@dataclass(frozen=True)
class PreparedRows:
    """Features and target of the rows that a part of the data has for one split, on a worker."""

    x: Frame
    """(rows, features) float32 DataFrame."""
    y: Frame | None
    """(rows,) Series: int32 classes or values of ``Frames.real``; None where nothing is
    predicted.
    """
    counts: Counts
    weight: Frame | None = None
    """(rows,) Series of ``Frames.real``; None where all rows count the same."""
    fold: Frame | None = None
    """(rows, 2) DataFrame of integers: ``row``, the row's number in the part, and ``fold``, the
    number of the fold that tests the row, -1 for none, once that is known; None without folds.
    """
    ranks: Array | None = None
    """(rows,) of rows that are still to be drawn from, see ``Draw.ranks``, as the next."""
    drawn_from: Any = ()
    """What all parts must know of the part's rows before any is drawn, dropped ones too; see
    ``Draw.ranks``.
    """

    def on_host(self) -> "PreparedRows":
        """Return the same rows in the host's memory."""
        from tipcast.compute.frames import CpuFrames  # imports pandas

        return replace(
            self,
            x=CpuFrames().frame(to_host(self.x.values), list(self.x.columns)),
            y=to_host(self.y),
            weight=to_host(self.weight),
            fold=to_host(self.fold),
            ranks=to_host(self.ranks),
        )


PreparedSplits = tuple[PreparedRows, ...]
"""What a part of the data has for each split that is read."""


@travelling
def prepare_part(part: Part, frames: Frames, recipe: Recipe) -> PreparedSplits:
    """Read the recipe's columns of one part, and make features and target on the frames' device.

    Returns all rows, or those before and from ``recipe.cutoff``; rows that are to be drawn from
    stay together till all parts are read, see ``draw_splits``.
    """
    splits = _splits_by_time(part, frames, recipe)
    if frames.rows_on_host:
        return tuple(rows.on_host() for rows in splits)
    return splits


def _splits_by_time(part: Part, frames: Frames, recipe: Recipe) -> PreparedSplits:
    """Return what ``prepare_part`` does, on the frames' device."""
    usable = _read_usable(part, frames, recipe)
    whole = _make_rows(usable, frames, recipe)
    if recipe.cuts:
        fold = _fold_by_time(usable.columns[str(recipe.dataset.time)], recipe.cuts, frames.xp)
        return (_with_fold(whole, fold),)
    if recipe.cutoff is None:
        return (whole,)

    before = usable.columns[str(recipe.dataset.time)] < recipe.cutoff
    return divided(whole, (before, ~before), recipe.task)


def _fold_by_time(time: Array, cuts: Sequence[int], xp: ModuleType) -> Array:
    """Return the fold that tests each row: the last one whose test rows begin before it."""
    return xp.searchsorted(xp.asarray(cuts, xp.int64), time, side="right") - 1


def _with_fold(whole: PreparedRows, fold: Array) -> PreparedRows:
    """Return rows that know the fold which tests them."""
    assert whole.fold is not None  # noqa: S101 - the recipe has folds
    return replace(whole, fold=whole.fold.assign(fold=fold))


@dataclass(frozen=True)
class _UsableRows:
    """Rows of a part that can be learnt from, before features are made of them."""

    columns: Mapping[str, Array]
    """Canonical name -> (rows,) raw values."""
    target: Array | None
    """(rows,) as ``PreparedRows.y``."""
    weight: Array | None
    """(rows,) as ``PreparedRows.weight``."""
    row: Array | None
    """(rows,) int64 numbers of the rows in the part; None without folds."""
    ranks: Array | None
    """See ``PreparedRows.ranks``."""
    drawn_from: Any
    """See ``PreparedRows.drawn_from``."""
    read: Counts
    """Counts of the rows that were read, before features are made."""

    def kept(self, keep: Array | None) -> "_UsableRows":
        """Return the rows that a (rows,) bool mask keeps; None: all."""
        if keep is None:
            return self

        def some(values: Array | None) -> Array | None:
            return None if values is None else values[keep]

        return replace(
            self,
            columns={name: values[keep] for name, values in self.columns.items()},
            target=some(self.target),
            weight=some(self.weight),
            row=some(self.row),
            ranks=some(self.ranks),
        )


def _read_usable(part: Part, frames: Frames, recipe: Recipe) -> _UsableRows:
    """Read the raw rows of a part, and drop those that are not clean or have no target or weight.

    Rows are ranked before some are dropped: features decide which, and must not change the draw.
    """
    columns = recipe.dataset.read(part, frames, recipe.wanted(part))
    every = _with_answers(part, columns, frames, recipe)
    keep, dropped = recipe.dataset.clean(columns, part.period, frames.xp)

    for reason, values in ((NO_TARGET, every.target), (NO_WEIGHT, every.weight)):
        usable = _answered(values)
        if usable is not None:
            keep, lost = _keep_usable(keep, usable)
            dropped = {**dropped, reason: lost} if lost else dropped

    rows = _typed(every.kept(keep), frames, recipe.task)
    return replace(rows, read=replace(rows.read, dropped=dropped))


def _with_answers(
    part: Part, columns: Mapping[str, Array], frames: Frames, recipe: Recipe
) -> _UsableRows:
    """Return all rows of a part with their targets, weights and ranks."""
    xp = frames.xp
    with np.errstate(all="ignore"):
        target = recipe.task.target(columns, xp)

    ranks, drawn_from = _ranks(columns, target, recipe)
    rows = len(next(iter(columns.values())))
    raw_bytes = sum(int(values.nbytes) for values in columns.values())
    return _UsableRows(
        columns=columns,
        target=target,
        weight=_weights(part, columns, recipe.task),
        row=xp.arange(rows) if recipe.has_folds else None,
        ranks=ranks,
        drawn_from=drawn_from,
        read=Counts(0, rows, {}, raw_bytes),
    )


def _typed(usable: _UsableRows, frames: Frames, task: Task) -> _UsableRows:
    """Return the rows with target and weight in the types that models get."""
    target = usable.target
    if target is not None:
        target = target.astype(task.kind.target_dtype(frames.real))

    weight = usable.weight
    if weight is not None:
        weight = weight.astype(frames.real)
    return replace(usable, target=target, weight=weight)


def _ranks(
    columns: Mapping[str, Array], target: Array | None, recipe: Recipe
) -> tuple[Array | None, Any]:
    """Return ``PreparedRows.ranks`` and ``PreparedRows.drawn_from`` of all rows of a part."""
    if recipe.draw is None:
        return None, ()
    if isinstance(recipe.draw, GroupDraw):
        return recipe.draw.ranks(columns)

    first = next(iter(columns.values()))
    label = target if recipe.task.classes else None
    return recipe.draw.ranks(label, _answered(target), len(first), module_of(first))


def _answered(values: Array | None) -> Array | None:
    """Return which rows have a value of target or weight, (rows,) bool; None: all have."""
    if values is None or values.dtype.kind in "bu":
        return None

    answered = values == values if values.dtype.kind == "f" else values >= 0
    return None if answered.all() else answered


def _weights(part: Part, columns: Mapping[str, Array], task: Task) -> Array | None:
    """Return the weight of each row, NaN where it is missing; None if all rows count the same.

    Raises D032 for a weight that is below 0 or infinite.
    """
    if task.weight is None:
        return None

    weight = columns[task.weight]
    missing = weight != weight
    odd = ~(is_weight(weight, module_of(weight)) | missing)
    if not odd.any():
        return weight

    first = int(odd.argmax())
    what = f"column {task.weight!r}: {float(weight[first]):g} cannot be a weight"
    line = part.place(first) if isinstance(part, FilePart) else ""
    if line:
        what = f"{line}: {what}"
    fix = "weights must be 0 or more: correct it, or leave it empty to drop the row"
    raise TipcastError("D032", address.shown(part.uri), what, fix)


def _keep_usable(keep: Array | None, usable: Array) -> tuple[Array, int]:
    """Return which rows to keep are usable, and how many are not; ``keep`` None: all rows."""
    if keep is None:
        return usable, int((~usable).sum())
    return keep & usable, int((keep & ~usable).sum())


def _make_rows(usable: _UsableRows, frames: Frames, recipe: Recipe) -> PreparedRows:
    """Make features and target of all usable rows."""
    task = recipe.task
    target = usable.target
    matrix = recipe.dataset.compute(usable.columns, task.features, frames.xp)
    y = None
    size = int(matrix.nbytes)

    if target is not None:
        y = frames.series(target, "target")
        size = size + int(target.nbytes)
    weight = None
    if usable.weight is not None:
        weight = frames.series(usable.weight, "weight")
        size = size + int(usable.weight.nbytes)

    fold = None
    if usable.row is not None:
        fold = frames.frame(usable.row[:, None], ["row"])
        size = size + 2 * int(usable.row.nbytes)

    of_target = _target_counts(target, usable.weight, task)
    counts = replace(usable.read, rows=len(matrix), bytes=size, **of_target)
    x = frames.frame(matrix, task.features)
    return PreparedRows(x, y, counts, weight, fold, usable.ranks, usable.drawn_from)


@travelling
def join_parts_drawn(draw: Draw | GroupDraw, drawn_from: Sequence[Any]) -> Any:
    """Return what ``draw_splits`` must know of all parts, from ``PreparedRows.drawn_from`` of each.

    Raises D033 for too few groups.
    """
    return draw.joined(drawn_from)


@travelling
def draw_splits(
    prepared: Sequence[PreparedRows], part_index: int, drawn: Any, recipe: Recipe
) -> PreparedSplits:
    """Divide the rows of a part into the splits of ``recipe.draw``.

    ``part_index`` is the part's index among all, ``drawn`` what ``Draw.joined`` returned.
    """
    (whole,) = prepared
    draw = recipe.draw
    assert draw is not None  # noqa: S101 - nothing else is divided
    codes = draw.codes(whole.ranks, recipe.task.classes, drawn, part_index)
    if draw.folds:
        whole = _with_fold(whole, codes - 1)
    return divided(whole, (draw.chosen(codes, name) for name in draw.splits), recipe.task)


def draw_all(prepared: list[PreparedSplits], recipe: Recipe) -> list[PreparedSplits]:
    """Divide the rows of all parts within their list, where one process has them and the recipe
    has a draw.
    """
    if recipe.draw is None:
        return prepared

    drawn = join_parts_drawn(recipe.draw, [whole.drawn_from for (whole,) in prepared])
    for part_index, rows in enumerate(prepared):
        prepared[part_index] = draw_splits(rows, part_index, drawn, recipe)
    return prepared


def divided(whole: PreparedRows, masks: Iterable[Array], task: Task) -> PreparedSplits:
    """Return the rows that each mask chooses, without a copy where these are all."""
    splits = []
    read = whole.counts
    for mask in masks:
        chosen = replace(whole, ranks=None, drawn_from=())
        if not mask.all():
            # Of row numbers cuDF makes an index of the whole, 8 bytes a row, and keeps it: no rows
            # need none.
            rows = module_of(mask).flatnonzero(mask) if mask.any() else slice(0)
            chosen = chosen_rows(chosen, rows)

        size = whole.counts.bytes * len(chosen.x) // max(whole.counts.rows, 1)
        of_target = _target_counts(chosen.y, chosen.weight, task)
        counts = replace(read, rows=len(chosen.x), bytes=size, **of_target)
        splits.append(replace(chosen, counts=counts))
        read = Counts(0, 0, {})  # what was read is counted with the first split

    return tuple(splits)


def chosen_rows(whole: PreparedRows, rows: Any) -> PreparedRows:
    """Return some rows, by their numbers or as a slice; the counts are left as they are."""

    def some(values: Frame | None) -> Frame | None:
        return None if values is None else values.iloc[rows].reset_index(drop=True)

    return replace(
        whole,
        x=whole.x.iloc[rows].reset_index(drop=True),
        y=some(whole.y),
        weight=some(whole.weight),
        fold=some(whole.fold),
    )


def _target_counts(target: Any, weight: Any, task: Task) -> dict[str, Any]:
    """Return the fields of ``Counts`` that target and weights decide."""
    values = getattr(target, "values", target)
    if values is None:
        return {}

    counts: dict[str, Any] = {}
    if task.classes:
        counts["classes"] = rows_by_class(values, len(task.classes))
    else:
        counts["target_sum"] = float(values.sum(dtype=np.float64))

    weights = getattr(weight, "values", weight)
    if weights is None:
        return counts

    counts["weight"] = float(weights.sum(dtype=np.float64))
    if task.classes:
        sums = module_of(weights).bincount(values, weights, minlength=len(task.classes))
        counts["class_weights"] = tuple(sums.tolist())
    else:
        counts["weighted_target_sum"] = float((values * weights).sum(dtype=np.float64))
    return counts


@travelling
def held_out_rows(
    part: Part, recipe: Recipe, info: FileInfo, rows: int
) -> tuple[dict[str, Array], "pd.DataFrame"]:
    """Read the first clean ``rows`` of a part on the host: canonical columns, and a DataFrame
    under raw names.

    The ``info`` of the listing that the model is trained on decides these names.
    """
    from tipcast.compute.frames import CpuFrames  # imports pandas

    dataset = recipe.dataset
    read = dataset.read(part, CpuFrames(), recipe.wanted(part))
    keep, _ = dataset.clean(read, part.period, np)
    needed = dataset.needed_columns(recipe.task.features)
    bad, _ = dataset.code.impossible(read, needed)  # a distance, which is no reason to drop a row
    good = [mask for mask in (keep, bad if bad is None else ~bad) if mask is not None]
    chosen = np.logical_and.reduce(good) if good else slice(None)
    read = {name: values[chosen][:rows] for name, values in read.items()}
    return read, raw_frame(dataset, read, recipe.task.features, info)


def counted(splits: PreparedSplits) -> tuple[Counts, ...]:
    """Return what the driver needs to know of a part: the counts of each of its splits."""
    return tuple(rows.counts for rows in splits)
