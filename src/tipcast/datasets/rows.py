"""Rows on the workers: futures of the prepared parts, and the totals that the driver keeps."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from distributed import wait

from tipcast.compute.base import Session, module_of
from tipcast.compute.cluster import at_home, successors, worker_names
from tipcast.datasets.counts import Counts, per_file, total
from tipcast.datasets.homes import holders_of, map_at_home, plan_homes
from tipcast.datasets.listing import Listing
from tipcast.datasets.parts import Part, merged
from tipcast.datasets.prepare import (
    PreparedSplits,
    Recipe,
    counted,
    draw_splits,
    join_parts_drawn,
    prepare_part,
)
from tipcast.tasks.base import Task

if TYPE_CHECKING:
    from distributed import Client, Future

T = TypeVar("T")

TASKS_PER_WORKER = 6
"""Each of several workers should get at least this many parts, so that all hold about the same
number of rows and finish together.
"""
ROWS_OF_FILE = 1 << 40
"""More rows than any file has. A row's number across all files is its file's index times this, plus
its number in the file; both start at 0.
"""


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
    part_rows: tuple[int, ...]
    """Rows of each part."""
    weight: list[Any] = field(default_factory=list)
    """Futures of (rows,) Series of ``Frames.real``; empty where all rows count the same."""
    fold: list[Any] = field(default_factory=list)
    """Futures of (rows, 2) DataFrames, see ``PreparedRows.fold``; empty without folds. Their
    ``row`` is the row's number in all files, see ``ROWS_OF_FILE``.
    """

    @property
    def parts(self) -> list[Any]:
        """All futures: those of the features first, then of target, weight and fold."""
        return [*self.x, *self.y, *self.weight, *self.fold]

    @property
    def sides(self) -> int:
        """How many of features, target, weight and fold have parts."""
        return sum(bool(side) for side in (self.x, self.y, self.weight, self.fold))

    def with_sides(
        self, change: Callable[[list[Any]], list[Any]], part_rows: Sequence[int]
    ) -> "Rows":
        """Return rows whose sides are what ``change`` makes of them; an empty side stays empty.

        ``part_rows`` are the rows of each part then.
        """
        x, y, weight, fold = (
            change(side) if side else [] for side in (self.x, self.y, self.weight, self.fold)
        )
        return replace(self, x=x, y=y, weight=weight, fold=fold, part_rows=tuple(part_rows))

    def moved(self, client: "Client", homes: Sequence[str]) -> "Rows":
        """Return the same rows, each part on the worker of its address in ``homes``.

        ``homes`` has an address for each of ``parts``; a part whose address is empty stays where it
        is.
        """
        moved = iter(_moved(client, self.parts, homes))
        return replace(
            self,
            x=list(itertools.islice(moved, len(self.x))),
            y=list(itertools.islice(moved, len(self.y))),
            weight=list(itertools.islice(moved, len(self.weight))),
            fold=list(moved),
        )

    def summary(self) -> dict[str, float]:
        """Return what is logged: rows, class balance by weight, partitions, bytes, and rows dropped
        by reason.
        """
        counts = self.counts
        summary: dict[str, float] = {
            "rows": counts.rows,
            "partitions": len(self.part_rows),
            "bytes": counts.bytes,
        }
        if len(counts.classes) == 2:
            summary["positive_rate"] = counts.class_shares[1] if counts.rows else float("nan")

        if counts.rows_read:
            summary |= {"rows_read": counts.rows_read, "raw_bytes": counts.raw_bytes}
            summary |= {f"dropped/{reason}": rows for reason, rows in counts.dropped.items()}

        return summary


@dataclass(frozen=True)
class Reading:
    """Rows that workers are reading."""

    tasks: list[Any]
    """Futures of ``PreparedSplits``, one for each part."""
    homes: Sequence[str | None]
    """Address of the worker that is to read and hold each part; None: any worker may."""
    workers: Mapping[str, str]
    """Address -> name of all workers when the reading began."""

    def homes_now(self, client: "Client") -> list[str]:
        """Return the home of each part, or its successor; empty for a part that has none now."""
        places = successors(self.workers, worker_names(client))
        return [places.get(home or "", "") for home in self.homes]


def start(session: Session, listing: Listing, recipe: Recipe) -> Reading:
    """Start one task per part."""
    client = session.client
    parts = _parts_of_tasks(session, listing, recipe)
    workers = worker_names(client)
    homes = plan_homes(session, parts)
    prepared = map_at_home(
        client, homes, prepare_part, parts, key="prepare", frames=session.frames, recipe=recipe
    )
    if recipe.draw is None:
        return Reading(prepared, homes, workers)

    drawn_from = list(client.map(_drawn_from, prepared, pure=False, key="drawn_from"))
    drawn = client.submit(join_parts_drawn, recipe.draw, drawn_from, pure=False)
    places = range(len(prepared))
    drawn_splits = map_at_home(
        client, homes, draw_splits, prepared, places, key="draw", drawn=drawn, recipe=recipe
    )
    return Reading(drawn_splits, homes, workers)


def collect(
    session: Session, listing: Listing, recipe: Recipe, reading: Reading
) -> tuple[tuple[Rows, ...], dict[str, Counts]]:
    """Wait for what ``start`` began, and gather its counts, never its rows.

    If a worker stalls or is lost while it reads, other workers read its parts. The parts then move
    to that worker, or to its successor if there is one.

    Returns as many ``Rows`` as the recipe has splits, and address of a file -> its ``Counts``.
    Raises D-errors of the first part that could not be read.
    """
    client = session.client
    parts = _parts_of_tasks(session, listing, recipe)
    splits, counts = rows_of_splits(client, reading.tasks, recipe.task, folds=recipe.has_folds)
    if recipe.has_folds:
        splits = tuple(_numbered(client, rows, parts, counts, at) for at, rows in enumerate(splits))

    if any(reading.homes):
        splits = _moved_home(client, splits, reading, counts)

    most = session.frames.batch_rows(len(recipe.task.features))
    return tuple(joined_if_few(client, rows, most) for rows in splits), per_file(parts, counts)


def rows_of_splits(
    client: "Client", prepared: Sequence[Any], task: Task, *, folds: bool = False
) -> tuple[tuple[Rows, ...], list[tuple[Counts, ...]]]:
    """Wait for ``PreparedSplits`` on the workers; return the rows of each split, and the counts of
    each part's splits. With ``folds`` rows know the fold that tests them.
    """
    splits = []
    counts: list[tuple[Counts, ...]] = client.gather(
        client.map(counted, prepared, pure=False, key="count")
    )

    for split_index in range(len(counts[0])):
        of_parts = [of_splits[split_index] for of_splits in counts]
        filled = [part for part, count in zip(prepared, of_parts, strict=True) if count.rows]
        columns_of = functools.partial(_columns_of, client, filled, split_index)
        splits.append(
            Rows(
                x=columns_of("x"),
                y=columns_of("y") if task.has_target else [],
                weight=columns_of("weight") if task.weight else [],
                fold=columns_of("fold") if folds else [],
                counts=total(of_parts),
                part_rows=tuple(count.rows for count in of_parts if count.rows),
            )
        )

    return tuple(splits), counts


def _numbered(
    client: "Client",
    rows: Rows,
    parts: Sequence[Part],
    counts: Sequence[tuple[Counts, ...]],
    split_index: int,
) -> Rows:
    """Return the rows of a split with their numbers in all files in place of those in their
    parts, see ``ROWS_OF_FILE``.
    """
    firsts = first_rows(parts, [of_splits[0].rows_read for of_splits in counts])
    filled = _of_filled(firsts, counts, split_index)
    fold = client.map(_from_first, rows.fold, filled, pure=False, key="number")
    return replace(rows, fold=list(fold))


def _of_filled(
    values: Sequence[T], counts: Sequence[tuple[Counts, ...]], split_index: int
) -> list[T]:
    """Return the values of the parts that have rows in a split."""
    return [
        value
        for value, of_splits in zip(values, counts, strict=True)
        if of_splits[split_index].rows
    ]


def _moved_home(
    client: "Client",
    splits: Sequence[Rows],
    reading: Reading,
    counts: Sequence[tuple[Counts, ...]],
) -> tuple[Rows, ...]:
    """Return the splits with each part moved to its home or that worker's successor."""
    with client.as_current():  # Dask's wait takes no client
        wait([part for rows in splits for part in rows.parts])

    homes = reading.homes_now(client)
    moved = []
    for split_index, rows in enumerate(splits):
        homes_of_x = _of_filled(homes, counts, split_index)
        moved.append(rows.moved(client, homes_of_x * rows.sides))

    return tuple(moved)


def first_rows(parts: Sequence[Part], rows_read: Sequence[int]) -> list[int]:
    """Return the number of each part's first row, see ``ROWS_OF_FILE``."""
    files = list(dict.fromkeys(part.uri for part in parts))
    next_rows = dict.fromkeys(files, 0)
    firsts = []
    for part, rows in zip(parts, rows_read, strict=True):
        first = next_rows[part.uri] if part.first_row is None else part.first_row
        firsts.append(files.index(part.uri) * ROWS_OF_FILE + first)
        next_rows[part.uri] = first + rows
    return firsts


def _from_first(fold: Any, first: int) -> Any:
    return fold.assign(row=fold["row"] + first)


def _parts_of_tasks(session: Session, listing: Listing, recipe: Recipe) -> tuple[Part, ...]:
    """Return what each task reads: the listing's parts, joined where the device's frames want
    many rows at once.
    """
    tasks = session.n_workers * TASKS_PER_WORKER if session.n_workers > 1 else 1
    most = session.frames.batch_rows(len(recipe.columns))
    return merged(listing.parts, min(most, listing.known_rows // tasks + 1))


def joined_if_few(client: "Client", rows: Rows, most: int) -> Rows:
    """Join all parts into one if a single worker holds them and they have at most ``most`` rows;
    otherwise return the rows unchanged.

    A GPU takes milliseconds for a task, however few rows the task is given.
    """
    if len(rows.x) < 2 or sum(rows.part_rows) > most:
        return rows

    home, *others = set(holders_of(client, rows.parts))
    if others or not home:
        return rows

    def joined(parts: list[Any]) -> list[Any]:
        return [client.submit(_one_part, parts, pure=False, **at_home(home))]

    return rows.with_sides(joined, [sum(rows.part_rows)])


def _one_part(parts: Sequence[Any]) -> Any:
    return module_of(parts[0]).concat(parts, ignore_index=True)


def on_each_worker(client: Any, rows: Rows) -> Rows:
    """Return the same rows as one partition on each worker, all about the same size. Most rows are
    joined on the worker that already holds them.
    """
    wait(rows.x)
    client.wait_for_workers(1)
    workers = list(client.nthreads())
    order = _by_worker(client, rows.x, workers)
    ends = np.cumsum([0, *(rows.part_rows[at] for at in order)])
    borders = np.linspace(0, ends[-1], min(len(workers), ends[-1]) + 1).astype(int)

    def joined(parts: Sequence[Any]) -> list[Any]:
        submit = functools.partial(client.submit, _joined, allow_other_workers=True, pure=False)
        first = np.searchsorted(ends, borders[:-1], "right") - 1
        stop = np.searchsorted(ends, borders[1:])
        parts_of_workers = [
            [parts[at] for at in order[begin:end]] for begin, end in zip(first, stop, strict=True)
        ]
        cuts = zip(
            parts_of_workers,
            (borders[:-1] - ends[first]).tolist(),
            (borders[1:] - ends[first]).tolist(),
            strict=True,
        )
        return [submit(*cut, workers=[worker]) for worker, cut in zip(workers, cuts, strict=False)]

    return rows.with_sides(joined, np.diff(borders).tolist())


def _by_worker(client: Any, parts: Sequence[Any], workers: Sequence[str]) -> list[int]:
    """Return the places of parts, ordered by the worker that holds each; lost parts come last."""
    holders = client.who_has(parts)

    def worker_of(at: int) -> int:
        present = [address for address in holders[parts[at].key] if address in workers]
        if not present:
            return len(workers)
        return workers.index(present[0])

    return sorted(range(len(parts)), key=worker_of)


def _moved(
    client: "Client", parts: Sequence["Future[Any]"], homes: Sequence[str]
) -> list["Future[Any]"]:
    """Return futures of parts on the workers of ``homes``.

    Dask cannot move a result, so a task on the other worker returns a copy. Dask frees the
    original once no future refers to it.
    """
    holding = client.who_has(list(parts))
    moved = []
    for part, home in zip(parts, homes, strict=True):
        if home and home not in holding[part.key]:
            moved.append(client.submit(_itself, part, pure=False, **at_home(home)))
        else:
            moved.append(part)
    return moved


def _itself(part: Any) -> Any:
    return part


def _joined(parts: Sequence[Any], start: int, stop: int) -> Any:
    first, *rest = [*parts[:-1], parts[-1].iloc[: stop - sum(map(len, parts[:-1]))]]
    return module_of(first).concat([first.iloc[start:], *rest], ignore_index=True)


def _columns_of(
    client: "Client", prepared: Sequence[Any], split_index: int, name: str
) -> list[Any]:
    """Return futures of a field of ``PreparedRows``, of one split of each part."""
    given: dict[str, Any] = {"split_index": split_index, "name": name}
    return list(client.map(_field, prepared, pure=False, key=name, **given))


def _field(splits: PreparedSplits, split_index: int, name: str) -> Any:
    return getattr(splits[split_index], name)


def _drawn_from(splits: PreparedSplits) -> Any:
    """Return what all parts must know of a part that is not yet split by the draw."""
    (whole,) = splits
    return whole.drawn_from
