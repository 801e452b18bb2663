"""Equal shares: every worker holds the same number of rows per thread."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tipcast.compute.base import Frame, Session
from tipcast.compute.cluster import at_home
from tipcast.datasets.homes import holders_of, threads_of_homes
from tipcast.datasets.rows import Rows

if TYPE_CHECKING:
    from distributed import Client, Future

TOLERANCE = 0.03
"""A worker may hold at most this fraction more than its share, because the others wait for it in
each round.
"""
LEAST_ROWS = 100_000
"""With fewer rows per worker than this, no worker waits long for another."""


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a part, and the worker that they go to."""

    part: int
    """Number of the part."""
    start: int
    stop: int
    home: str
    """Address of the worker."""
    is_whole: bool
    """Whether it is the whole part."""

    @property
    def rows(self) -> int:
        """How many they are."""
        return self.stop - self.start


def in_equal_shares(session: Session, rows: Rows) -> Rows:
    """Return the same rows in the same order, with equal shares on the workers that are to hold
    rows.

    Parts are cut where a worker has more than its share, and what is cut off moves. Rows stay as
    they are if no worker has much more than its share, if they are few, or if some are lost.
    """
    homes = holders_of(session.client, rows.parts)[: len(rows.x)]
    threads = threads_of_homes(session)
    if len(threads) < 2 or not set(homes) <= set(threads):
        return rows

    shares = _shares(sum(rows.part_rows), threads)
    if _are_equal(rows.part_rows, homes, shares):
        return rows
    return _divided(session.client, rows, homes, list(cut(rows.part_rows, homes, shares)))


def _divided(client: "Client", rows: Rows, homes: Sequence[str], pieces: Sequence[Piece]) -> Rows:
    """Return the rows cut into pieces, each on its worker; ``homes`` are those of the parts."""

    def cut_up(parts: list[Any]) -> list[Any]:
        return [_cut_off(client, parts[piece.part], piece, homes[piece.part]) for piece in pieces]

    divided = rows.with_sides(cut_up, [piece.rows for piece in pieces])
    new_homes = ["" if piece.home == homes[piece.part] else piece.home for piece in pieces]
    return divided.moved(client, new_homes * divided.sides)


def _shares(rows: int, threads: Mapping[str, int]) -> dict[str, int]:
    """Return the rows that each worker should hold: whole numbers whose sum is ``rows``."""
    ends = np.cumsum([0, *threads.values()]) * rows // sum(threads.values())
    return dict(zip(threads, np.diff(ends).tolist(), strict=True))


def _are_equal(part_rows: Sequence[int], homes: Sequence[str], shares: Mapping[str, int]) -> bool:
    """Tell whether no worker has much more than its share, or rows are too few to matter."""
    held = dict.fromkeys(shares, 0)
    for rows, home in zip(part_rows, homes, strict=True):
        held[home] += rows

    few = sum(part_rows) < LEAST_ROWS * len(shares)
    return few or all(held[home] <= (1 + TOLERANCE) * share for home, share in shares.items())


def cut(
    part_rows: Sequence[int], homes: Sequence[str], shares: Mapping[str, int]
) -> Iterator[Piece]:
    """Yield the pieces of all parts in order: what fits into the share of a part's worker stays,
    the rest goes to the workers with the most room.
    """
    room = dict(shares)
    staying = []
    for rows, home in zip(part_rows, homes, strict=True):
        stays = min(rows, room[home])
        room[home] -= stays
        staying.append(stays)

    for part, (rows, home, stop) in enumerate(zip(part_rows, homes, staying, strict=True)):
        if stop:
            yield Piece(part, 0, stop, home, is_whole=stop == rows)
        while stop < rows:
            start = stop
            receiver = max(room, key=room.__getitem__)  # the first of equals
            stop = min(rows, start + room[receiver])
            room[receiver] -= stop - start
            yield Piece(part, start, stop, receiver, is_whole=stop - start == rows)


def _cut_off(client: "Client", part: "Future[Any]", piece: Piece, source: str) -> "Future[Any]":
    """Return a future of a piece, cut off on the worker that holds the part; the part itself if it
    is whole.
    """
    if piece.is_whole:
        return part
    bounds = (piece.start, piece.stop)
    return client.submit(_rows_between, part, *bounds, pure=False, **at_home(source))


def _rows_between(part: Frame, start: int, stop: int) -> Frame:
    # A slice of pandas is a view, which would keep the whole part in memory.
    return part.iloc[start:stop].reset_index(drop=True).copy()
