"""Rows on the workers: futures of prepared parts and the sums the driver knows of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tipcast.backends.base import Session
from tipcast.data.fragments import Fragment, Listing, Part, merged
from tipcast.data.prepare import Recipe, prepare_fragment


@dataclass(frozen=True)
class Counts:
    """What the driver needs to know of a part, without its rows."""

    rows: int
    positives: int
    cash: int
    bytes: int
    rows_read: int
    raw_bytes: int
    missing_passengers: int
    dropped: Mapping[str, int]


TASKS_PER_WORKER = 6
"""Fragments that each of several workers should get at least, so that all hold about as many rows and end together."""
SUMS = ("rows", "positives", "cash", "bytes", "rows_read", "raw_bytes", "missing_passengers")
"""Fields of Counts and of Part that add up."""


@dataclass(frozen=True)
class Rows:
    """One split of the data, living on the workers; empty parts are left out."""

    x: list[Any]
    """Futures of (rows, features) float32 DataFrames."""
    y: list[Any]
    """Futures of (rows,) int32 Series."""
    subsets: Mapping[str, list[Any]]
    """Name -> futures of (rows,) bool arrays; empty where the recipe did not ask."""
    counts: Counts
    """Sums over the parts."""
    parts: tuple[int, ...]
    """Rows of each part."""

    @property
    def positive_rate(self) -> float:
        """Share of rows labelled 1."""
        return self.counts.positives / self.counts.rows if self.counts.rows else float("nan")

    def summary(self) -> dict[str, float]:
        """Return what is logged: rows, class balance, partitions, bytes before and after, rows dropped by reason."""
        counts = self.counts
        summary: dict[str, float] = {
            "rows": counts.rows,
            "positive_rate": self.positive_rate,
            "partitions": len(self.parts),
            "bytes": counts.bytes,
        }
        if counts.rows_read:
            summary |= {"rows_read": counts.rows_read, "raw_bytes": counts.raw_bytes}
            summary |= {f"dropped/{reason}": rows for reason, rows in counts.dropped.items()}
        return summary


@dataclass(frozen=True)
class Loaded:
    """The splits of one listing, and what was read and dropped in each of its files."""

    splits: tuple[Rows, ...]
    per_file: Mapping[str, Counts]


def start(session: Session, listing: Listing, recipe: Recipe) -> list[Any]:
    """Start one task per fragment and return their futures, of tuples of Part."""
    client, fragments = session.client, _fragments(session, listing)
    return list(
        client.map(prepare_fragment, fragments, frames=session.frames, recipe=recipe, pure=False, key="prepare")
    )


def collect(session: Session, listing: Listing, prepared: Sequence[Any]) -> Loaded:
    """Wait for prepared fragments and gather their counts, never their rows.

    Parameters
    ----------
    session
        The workers.
    listing
        What was prepared.
    prepared
        Futures of ``start``.

    Returns
    -------
    Loaded
        As many splits as the recipe made parts.

    Raises
    ------
    TipcastError
        D-errors of the first fragment that could not be read.

    """
    client = session.client
    counts: list[tuple[Counts, ...]] = client.gather(client.map(counted, prepared, pure=False, key="count"))
    splits = tuple(_split(client, prepared, [each[side] for each in counts], side) for side in range(len(counts[0])))
    return Loaded(splits, per_file(_fragments(session, listing), counts))


def _fragments(session: Session, listing: Listing) -> tuple[Fragment, ...]:
    """Return what each task reads: the listing's fragments, joined where the device's frames want many rows at once."""
    rows = sum(fragment.rows or 0 for fragment in listing.fragments)
    tasks = session.n_workers * TASKS_PER_WORKER if session.n_workers > 1 else 1
    return merged(listing.fragments, min(session.frames.batch_rows, rows // tasks + 1))


def counted(parts: Sequence[Part]) -> tuple[Counts, ...]:
    """Return what the driver needs to know of a fragment's parts."""
    return tuple(Counts(**{name: getattr(part, name) for name in (*SUMS, "dropped")}) for part in parts)


def _split(client: Any, prepared: Sequence[Any], counts: Sequence[Counts], side: int) -> Rows:
    filled = [future for future, count in zip(prepared, counts, strict=True) if count.rows]
    x, y, card = (client.map(_field, filled, side=side, name=name, pure=False, key=name) for name in ("x", "y", "card"))
    return Rows(
        x=x,
        y=y,
        subsets={"card": card},
        counts=total(counts),
        parts=tuple(count.rows for count in counts if count.rows),
    )


def _field(parts: Sequence[Part], side: int, name: str) -> Any:
    return getattr(parts[side], name)


def total(counts: Sequence[Counts]) -> Counts:
    """Return the sums of counts."""
    dropped: Counter[str] = Counter()
    for count in counts:
        dropped.update(count.dropped)
    return Counts(**{name: sum(getattr(count, name) for count in counts) for name in SUMS}, dropped=dict(dropped))


def per_file(fragments: Sequence[Fragment], counts: Sequence[tuple[Counts, ...]]) -> dict[str, Counts]:
    """Return address -> sums over its fragments and their parts."""
    by_file: dict[str, list[Counts]] = {}
    for fragment, parts in zip(fragments, counts, strict=True):
        by_file.setdefault(fragment.uri, []).extend(parts)
    return {uri: total(parts) for uri, parts in by_file.items()}
