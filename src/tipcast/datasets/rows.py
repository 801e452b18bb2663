"""Rows on the workers: futures of what each makes of a part, and the sums the driver knows of
them.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from distributed import wait

from tipcast.compute.base import Session, module_of
from tipcast.compute.cluster import at_home, worker_info
from tipcast.datasets.counts import Counts, per_file, total
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
"""Parts that each of several workers should get at least, so that all hold about as many rows
and end together.
"""
ROWS_OF_FILE = 1 << 40
"""More rows than a file has. A row's number in all files is the place of its file among them times
this, plus its number in the file; both are from 0.
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
    def features(self) -> Any:
        """The features as a Dask DataFrame of the same parts."""
        return collection(self.x)

    @property
    def target(self) -> Any:
        """The target as a Dask Series of the same parts; None where nothing is predicted."""
        return collection(self.y) if self.y else None

    @property
    def weights(self) -> Any:
        """The weights as a Dask Series of the same parts; None where all rows count the same."""
        return collection(self.weight) if self.weight else None

    @property
    def parts(self) -> list[Any]:
        """All futures: those of the features first, then of target, weight and fold."""
        return [*self.x, *self.y, *self.weight, *self.fold]

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


def collection(parts: Sequence[Any]) -> Any:
    """Return frames or series that are futures as one Dask DataFrame or Series, which copies none
    of them.
    """
    import dask.dataframe as dd  # half a second that a fit on one worker does without

    first = parts[0]
    meta = first.client.submit(lambda part: part.iloc[:0], first, pure=False).result()
    return dd.from_delayed(list(parts), meta=meta, verify_meta=False)


def start(session: Session, listing: Listing, recipe: Recipe) -> list[Any]:
    """Start one task per part and return their futures, of ``PreparedSplits``."""
    client = session.client
    parts = _parts_of_tasks(session, listing, recipe)
    homes = _homes(session, parts)
    prepared = _map_at_home(
        client, homes, prepare_part, parts, key="prepare", frames=session.frames, recipe=recipe
    )
    if recipe.draw is None:
        return prepared

    drawn_from = list(client.map(_drawn_from, prepared, pure=False, key="drawn_from"))
    drawn = client.submit(join_parts_drawn, recipe.draw, drawn_from, pure=False)
    places = range(len(prepared))
    return _map_at_home(
        client, homes, draw_splits, prepared, places, key="draw", drawn=drawn, recipe=recipe
    )


def _homes(session: Session, parts: Sequence[Part]) -> list[str | None]:
    """Return the address of a worker for each part, so that the session's homes get about as many
    rows for each of their threads; None for each if the client has one worker alone.

    Dask would give a part to whichever worker is free. A training that draws rows by ``subsample``
    would then draw other ones in each process.
    """
    if len(worker_info(session.client)) < 2:
        return [None] * len(parts)

    threads = threads_of_homes(session)
    load = dict.fromkeys(threads, 0.0)
    homes: dict[int, str] = {}
    # The largest first: small ones even out what these leave.
    for place in sorted(range(len(parts)), key=lambda place: -(parts[place].rows or 1)):
        home = min(load, key=load.__getitem__)  # the first of equals
        load[home] += (parts[place].rows or 1) / threads[home]
        homes[place] = home
    return [homes[place] for place in range(len(parts))]


def threads_of_homes(session: Session) -> dict[str, int]:
    """Return the address of each worker that is to hold rows -> its threads, in the order of the
    workers' names.
    """
    workers = worker_info(session.client)
    names = sorted((str(worker["name"]), address) for address, worker in workers.items())
    return {address: int(workers[address]["nthreads"]) for _, address in names[: session.homes]}


def _map_at_home(
    client: "Client",
    homes: Sequence[str | None],
    function: Callable[..., Any],
    *of_parts: Sequence[Any],
    **given: Any,
) -> list[Any]:
    """Start a task for each part on its home, or elsewhere if that worker is gone or there is no
    home; return futures in the order of the parts.
    """
    futures: dict[int, Any] = {}
    for home in dict.fromkeys(homes):
        places = [at for at, address in enumerate(homes) if address == home]
        of_home = [[values[at] for at in places] for values in of_parts]
        where = at_home(home) if home else {}
        tasks = client.map(function, *of_home, pure=False, **where, **given)
        futures |= dict(zip(places, tasks, strict=True))
    return [futures[at] for at in range(len(homes))]


def collect(
    session: Session, listing: Listing, recipe: Recipe, prepared: Sequence[Any]
) -> tuple[tuple[Rows, ...], dict[str, Counts]]:
    """Wait for what ``start`` began, and gather its counts, never its rows.

    Returns as many ``Rows`` as the recipe has splits, and address of a file -> its ``Counts``.
    Raises D-errors of the first part that could not be read.
    """
    client = session.client
    parts = _parts_of_tasks(session, listing, recipe)
    splits, counts = rows_of_splits(client, prepared, recipe.task, folds=recipe.has_folds)
    if recipe.has_folds:
        splits = tuple(_numbered(client, rows, parts, counts, at) for at, rows in enumerate(splits))

    homes = _homes(session, parts)
    splits = tuple(
        _at_homes(client, rows, _of_filled(homes, counts, at)) for at, rows in enumerate(splits)
    )
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


def _at_homes(client: "Client", rows: Rows, homes: Sequence[str | None]) -> Rows:
    """Return rows with each part on its home, where it was to be read.

    If a worker stalls or is lost while it reads, Dask has its parts read by others.
    """
    if not any(homes):
        return rows

    with client.as_current():  # Dask's wait takes no client
        wait(rows.parts)
    sides = len(rows.parts) // len(rows.x)
    return rows.moved(client, [home or "" for home in homes] * sides)


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


def homes_of(client: "Client", parts: Sequence[Any]) -> list[str]:
    """Wait for parts; return the address of a worker that holds each, empty for a lost one."""
    with client.as_current():  # Dask's wait takes no client
        wait(parts)

    holders = client.who_has(parts)
    return [min(holders[part.key], default="") for part in parts]


def joined_if_few(client: "Client", rows: Rows, most: int) -> Rows:
    """Return at most ``most`` rows that one worker holds as one part; any others as they are.

    A GPU takes milliseconds for a task, however few rows the task is given.
    """
    if len(rows.x) < 2 or sum(rows.part_rows) > most:
        return rows

    home, *others = set(homes_of(client, rows.parts))
    if others or not home:
        return rows

    def joined(parts: Sequence[Any]) -> list[Any]:
        if not parts:
            return []
        return [client.submit(_one_part, list(parts), pure=False, **at_home(home))]

    return replace(
        rows,
        x=joined(rows.x),
        y=joined(rows.y),
        weight=joined(rows.weight),
        fold=joined(rows.fold),
        part_rows=(sum(rows.part_rows),),
    )


def _one_part(parts: Sequence[Any]) -> Any:
    return module_of(parts[0]).concat(parts, ignore_index=True)


def on_each_worker(client: Any, rows: Rows) -> Rows:
    """Return the same rows as one partition on each worker, all of like size; most are joined where
    they lie.
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

    return replace(
        rows,
        x=joined(rows.x),
        y=joined(rows.y) if rows.y else [],
        weight=joined(rows.weight) if rows.weight else [],
        fold=joined(rows.fold) if rows.fold else [],
        part_rows=tuple(np.diff(borders).tolist()),
    )


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

    Dask cannot move a result. A task that returns it stands in, on the other worker; the first one
    goes when no future has it any more.
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
    """Return what all parts must know of a part that is still to be divided by a draw."""
    (whole,) = splits
    return whole.drawn_from
