"""Rows on the workers: what each makes of a fragment, futures of that, and the sums the driver
knows of it.
"""

import functools
import itertools
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from distributed import wait

from tipcast.compute.base import Array, Frames, Session, module_of
from tipcast.config.errors import TipcastError, travelling
from tipcast.config.schema import Limits
from tipcast.datasets import address
from tipcast.datasets.base import Counts, Dataset, Listing, Part, raw_frame
from tipcast.datasets.parts import Fragment, merged
from tipcast.datasets.split import OTHER_SIDE, SIDES, Draw, ends_of, rows_by_class
from tipcast.tasks.base import Task

if TYPE_CHECKING:
    import pandas as pd

LOG = logging.getLogger("tipcast")

TASKS_PER_WORKER = 6
"""Fragments that each of several workers should get at least, so that all hold about as many rows
and end together.
"""
NO_TARGET = "no_target"
"""Why a row is dropped that has no answer to the task's question."""
MUCH = 0.05
"""A share of the rows that are dropped for one reason that a user should hear of."""


@dataclass(frozen=True)
class Recipe:
    """What is made of raw rows."""

    dataset: Dataset
    task: Task
    cutoff: int | None = None
    """Microseconds since 1970: rows of a time from here on go into the second part. None: one
    part.
    """
    draw: Draw | None = None
    """Rows go into its parts at random, see ``draw_parts``. None: by ``cutoff``."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Canonical names of the raw columns that every file must have."""
        time = () if self.dataset.time is None else (self.dataset.time,)
        needed = self.dataset.needed_columns(self.task.features)
        columns = dict.fromkeys((*time, *self.task.columns, *needed))
        return tuple(name for name in columns if name not in self.dataset.sparse)

    @property
    def optional(self) -> tuple[str, ...]:
        """Those that are read where a file has them."""
        needed = self.dataset.needed_columns(self.task.features)
        return tuple(name for name in needed if name in self.dataset.sparse)

    def scan(self, which: str) -> Listing:
        """List the rows of a period, see ``Dataset.scan``."""
        return self.dataset.scan(which, self.columns, self.optional)

    def wanted(self, fragment: Fragment) -> tuple[str, ...]:
        """Return the canonical columns to read of a fragment."""
        return (*self.columns, *(name for name in self.optional if name in fragment.columns))


@travelling
def prepare_fragment(fragment: Fragment, frames: Frames, recipe: Recipe) -> tuple[Part, ...]:
    """Read the recipe's columns of one fragment, and make features and target on the frames'
    device.

    Returns one part, or the rows before and from ``recipe.cutoff``; rows that are to be drawn from
    are one part till all fragments are read, see ``draw_parts``.
    """
    xp = frames.xp
    dataset = recipe.dataset
    task = recipe.task
    columns = dataset.read(fragment, frames, recipe.wanted(fragment))
    rows = len(next(iter(columns.values())))
    raw_bytes = sum(int(values.nbytes) for values in columns.values())
    keep, dropped = dataset.clean(columns, fragment.period, xp)
    with np.errstate(all="ignore"):
        target = task.target(columns, xp)

    answered = None
    if target is not None and target.dtype.kind not in "bu":
        answered = target == target if target.dtype.kind == "f" else target >= 0
        answered = None if answered.all() else answered

    place = None
    strata = ()
    if recipe.draw is not None:  # before rows are dropped: which these are is the features' affair
        place, strata = recipe.draw.places(target if task.classes else None, answered, rows, xp)

    if answered is not None:
        lost = int((~answered if keep is None else keep & ~answered).sum())
        dropped = {**dropped, **({NO_TARGET: lost} if lost else {})}
        keep = answered if keep is None else keep & answered

    if keep is not None:
        columns = {name: values[keep] for name, values in columns.items()}
        target, place = (None if values is None else values[keep] for values in (target, place))

    matrix = dataset.compute(columns, task.features, xp)
    y = None
    size = int(matrix.nbytes)

    if target is not None:
        target = target.astype(task.kind.target_dtype(frames.real))
        y = frames.series(target, "target")
        size = size + int(target.nbytes)

    counts = Counts(len(matrix), rows, dropped, raw_bytes, size, **_target_counts(target, task))
    whole = Part(frames.frame(matrix, task.features), y, counts, place, strata)
    if recipe.cutoff is None:
        return (whole,)

    before = columns[str(dataset.time)] < recipe.cutoff
    return _divided(whole, (before, ~before), task)


@travelling
def draw_parts(
    prepared: Sequence[Part], number: int, ends: Array, recipe: Recipe
) -> tuple[Part, ...]:
    """Divide the one part of the fragment of a number into those of ``recipe.draw``, see
    ``ends_of``.
    """
    (whole,), draw = prepared, recipe.draw
    assert draw is not None  # noqa: S101 - nothing else is divided
    side = draw.sides(recipe.task.classes, ends, number, module_of(whole.place))[whole.place]
    return _divided(whole, (side == SIDES.index(name) for name in draw.parts), recipe.task)


def draw_all(prepared: list[tuple[Part, ...]], recipe: Recipe) -> list[tuple[Part, ...]]:
    """Divide all fragments within their list, where one process has them and the recipe has a
    draw.
    """
    ends = ends_of([parts[0].strata for parts in prepared])
    for at in range(len(prepared) if recipe.draw else 0):
        prepared[at] = draw_parts(prepared[at], at, ends, recipe)
    return prepared


def _divided(whole: Part, sides: Iterable[Array], task: Task) -> tuple[Part, ...]:
    """Return the rows that each mask chooses, without a copy where these are all."""
    parts = []
    read = whole.counts
    for chosen in sides:
        x = whole.x
        y = whole.y
        if not chosen.all():
            # Of row numbers cuDF makes an index of the whole, 8 bytes a row, and keeps it: no rows
            # need none.
            rows = module_of(chosen).flatnonzero(chosen) if chosen.any() else slice(0)
            x, y = (
                None if each is None else each.iloc[rows].reset_index(drop=True) for each in (x, y)
            )
        size = whole.counts.bytes * len(x) // max(whole.counts.rows, 1)
        parts.append(Part(x, y, replace(read, rows=len(x), bytes=size, **_target_counts(y, task))))
        read = Counts(0, 0, {})  # what was read is counted with the first part

    return tuple(parts)


def _target_counts(target: Any, task: Task) -> dict[str, Any]:
    """Return the fields of ``Counts`` that the target decides."""
    values = getattr(target, "values", target)
    if values is None:
        return {}
    if task.classes:
        return {"classes": rows_by_class(values, len(task.classes))}
    return {"target_sum": float(values.sum(dtype=np.float64))}


@travelling
def held_out_rows(
    fragment: Fragment, recipe: Recipe, facts: Mapping[str, object], rows: int
) -> tuple[dict[str, Array], "pd.DataFrame"]:
    """Read the first clean ``rows`` of a fragment on the host: canonical columns, and a DataFrame
    under raw names.

    The ``facts`` of the listing that the model is trained on decide these names.
    """
    from tipcast.compute.frames import CpuFrames  # imports pandas

    dataset = recipe.dataset
    read = dataset.read(fragment, CpuFrames(), recipe.wanted(fragment))
    keep, _ = dataset.clean(read, fragment.period, np)
    needed = dataset.needed_columns(recipe.task.features)
    bad, _ = dataset.code.impossible(read, needed)  # a distance, which is no reason to drop a row
    good = [mask for mask in (keep, bad if bad is None else ~bad) if mask is not None]
    chosen = np.logical_and.reduce(good) if good else slice(None)
    read = {name: values[chosen][:rows] for name, values in read.items()}
    return read, raw_frame(dataset, read, recipe.task.features, facts)


@dataclass(frozen=True)
class Rows:
    """One split of the data, living on the workers; empty parts are left out."""

    x: list[Any]
    """Futures of (rows, features) float32 DataFrames."""
    y: list[Any]
    """Futures of (rows,) Series: int32 classes or values of ``Frames.real``; empty where nothing is
    predicted.
    """
    counts: Counts
    """Sums over the parts."""
    parts: tuple[int, ...]
    """Rows of each part."""

    @property
    def features(self) -> Any:
        """The features as a Dask DataFrame of the same parts."""
        return collection(self.x)

    @property
    def target(self) -> Any:
        """The target as a Dask Series of the same parts; None where nothing is predicted."""
        return collection(self.y) if self.y else None

    def summary(self) -> dict[str, float]:
        """Return what is logged: rows, class balance, partitions, bytes, and rows dropped by
        reason.
        """
        counts = self.counts
        summary: dict[str, float] = {
            "rows": counts.rows,
            "partitions": len(self.parts),
            "bytes": counts.bytes,
        }
        if len(counts.classes) == 2:
            summary["positive_rate"] = (
                counts.classes[1] / counts.rows if counts.rows else float("nan")
            )

        if counts.rows_read:
            summary |= {"rows_read": counts.rows_read, "raw_bytes": counts.raw_bytes}
            summary |= {f"dropped/{reason}": rows for reason, rows in counts.dropped.items()}

        return summary


def collection(parts: Sequence[Any]) -> Any:
    """Return frames or series that are futures as one Dask DataFrame or Series, which copies none
    of them.
    """
    import dask.dataframe as dd  # half a second that a fit on one worker does without

    first = parts[0]
    meta = first.client.submit(lambda part: part.iloc[:0], first, pure=False).result()
    return dd.from_delayed(list(parts), meta=meta, verify_meta=False)


def start(session: Session, listing: Listing, recipe: Recipe) -> list[Any]:
    """Start one task per fragment and return their futures, of tuples of Part."""
    client = session.client
    given = dict[str, Any](frames=session.frames, recipe=recipe, pure=False)
    prepared = list(
        client.map(prepare_fragment, _fragments(session, listing), **given, key="prepare")
    )
    if recipe.draw is None:
        return prepared
    strata = client.map(_field, prepared, side=0, name="strata", pure=False, key="strata")
    given = {"ends": client.submit(ends_of, strata, pure=False), "recipe": recipe}
    return list(
        client.map(draw_parts, prepared, range(len(prepared)), **given, pure=False, key="draw")
    )


def collect(session: Session, listing: Listing, recipe: Recipe, prepared: Sequence[Any]) -> Any:
    """Wait for what ``start`` began, and gather its counts, never its rows.

    Returns as many ``Rows`` as the recipe has parts, and each file's ``Counts``; D-errors of the
    first fragment that could not be read.
    """
    client = session.client
    splits = []
    counts: list[tuple[Counts, ...]] = client.gather(
        client.map(counted, prepared, pure=False, key="count")
    )

    for side in range(len(counts[0])):
        every = [each[side] for each in counts]
        filled = [future for future, count in zip(prepared, every, strict=True) if count.rows]
        x, *y = (
            list(client.map(_field, filled, side=side, name=name, pure=False, key=name))
            for name in ("xy" if recipe.task.has_target else "x")
        )
        rows = tuple(count.rows for count in every if count.rows)
        splits.append(Rows(x, y[0] if y else [], total(every), rows))

    return tuple(splits), per_file(_fragments(session, listing), counts)


def _fragments(session: Session, listing: Listing) -> tuple[Fragment, ...]:
    """Return what each task reads: the listing's fragments, joined where the device's frames want
    many rows at once.
    """
    rows = sum(fragment.rows or 0 for fragment in listing.fragments)
    tasks = session.n_workers * TASKS_PER_WORKER if session.n_workers > 1 else 1
    return merged(listing.fragments, min(session.frames.batch_rows, rows // tasks + 1))


def on_each_worker(client: Any, rows: Rows) -> Rows:
    """Return the same rows as one partition on each worker, all of like size; most are joined where
    they lie.
    """
    wait(rows.x)
    workers, holders = list(client.nthreads()), client.who_has(rows.x)
    order = sorted(range(len(rows.x)), key=lambda at: workers.index(holders[rows.x[at].key][0]))
    ends = np.cumsum([0, *(rows.parts[at] for at in order)])
    borders = np.linspace(0, ends[-1], min(len(workers), ends[-1]) + 1).astype(int)

    def joined(parts: Sequence[Any]) -> list[Any]:
        submit = functools.partial(client.submit, _joined, allow_other_workers=True, pure=False)
        first = np.searchsorted(ends, borders[:-1], "right") - 1
        stop = np.searchsorted(ends, borders[1:])
        own = [[parts[at] for at in order[slice(*each)]] for each in zip(first, stop, strict=True)]
        cuts = zip(
            own,
            (borders[:-1] - ends[first]).tolist(),
            (borders[1:] - ends[first]).tolist(),
            strict=True,
        )
        return [submit(*cut, workers=[worker]) for worker, cut in zip(workers, cuts, strict=False)]

    return replace(
        rows,
        x=joined(rows.x),
        y=joined(rows.y) if rows.y else [],
        parts=tuple(np.diff(borders).tolist()),
    )


def _joined(parts: Sequence[Any], start: int, stop: int) -> Any:
    first, *rest = [*parts[:-1], parts[-1].iloc[: stop - sum(map(len, parts[:-1]))]]
    return module_of(first).concat([first.iloc[start:], *rest], ignore_index=True)


def counted(parts: Sequence[Part]) -> tuple[Counts, ...]:
    """Return what the driver needs to know of a fragment's parts."""
    return tuple(part.counts for part in parts)


def _field(parts: Sequence[Part], side: int, name: str) -> Any:
    return getattr(parts[side], name)


def total(counts: Sequence[Counts]) -> Counts:
    """Return the sums of counts."""
    dropped = sum((Counter(count.dropped) for count in counts), Counter[str]())
    classes = itertools.zip_longest(*(count.classes for count in counts), fillvalue=0)
    summed = ("rows", "bytes", "rows_read", "raw_bytes", "target_sum")
    sums = {name: sum(getattr(count, name) for count in counts) for name in summed}
    return Counts(**sums, classes=tuple(map(sum, classes)), dropped=dict(dropped))


def per_file(
    fragments: Sequence[Fragment], counts: Sequence[tuple[Counts, ...]]
) -> dict[str, Counts]:
    """Return address -> sums over its fragments and their parts."""
    by_file: dict[str, list[Counts]] = defaultdict(list)
    for fragment, parts in zip(fragments, counts, strict=True):
        by_file[fragment.uri] += parts
    return {uri: total(parts) for uri, parts in by_file.items()}


def check_counts(
    listing: Listing, per_file: Mapping[str, Counts], recipe: Recipe, limits: Limits
) -> None:
    """Refuse a file as the dataset's ``check_files`` does, and a period of which too little is
    left.
    """
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

    D014 too few rows, D015 one class only, or a class that the task has no name of.
    """
    if counts.rows < limits.min_rows:
        what = f"{counts.rows} usable rows, at least {limits.min_rows} are needed"
        raise TipcastError("D014", where, what, "use more data, or lower data.limits.min_rows")
    if len(counts.classes) > len(task.classes):
        what = f"the target has {len(counts.classes)} classes, the task names {len(task.classes)}"
        raise TipcastError("D015", where, what, "name them all in task.classes")

    there = [name for name, rows in zip(task.classes, counts.classes, strict=False) if rows]
    if counts.classes and len(there) < 2:
        columns = " or ".join(repr(name) for name in task.columns)
        fix = f"check column {columns}" + (
            ", or set task.threshold" if "threshold" in task.params else ""
        )
        raise TipcastError(
            "D015", where, f"all {counts.rows} rows have the same label ({there[0]})", fix
        )


def constant_features(client: Any, x: Sequence[Any]) -> list[str]:
    """Return the features that have one value, or none at all, in every row of ``x``, futures of
    (rows, features).

    A part is asked only for the features that are constant in the first one: of most tables there
    are none.
    """
    if not x:
        return []

    first: dict[str, float] = client.submit(_constants, x[0], pure=False).result()
    if not first:
        return []

    others = client.map(_constants, x[1:], names=[*first], pure=False, key="constants")
    parts: list[dict[str, float]] = client.gather(others)
    return [
        name for name, value in first.items() if all(_same(part.get(name), value) for part in parts)
    ]


def _constants(x: Any, names: Sequence[str] | None = None) -> dict[str, float]:
    """Return feature -> its one value in a part, NaN for a feature without any."""
    found = {}
    for name in x.columns if names is None else names:
        column = x[name]
        low = column.min()
        high = column.max()
        missing = int(column.isna().sum())
        if missing == len(column):
            found[str(name)] = math.nan
        elif missing == 0 and low == high:
            found[str(name)] = float(low)
    return found


def _same(one: float | None, other: float) -> bool:
    """Tell whether two parts have the same value, or both have none."""
    if one is None:
        return False
    return one == other or (math.isnan(one) and math.isnan(other))
