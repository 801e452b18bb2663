"""Per-process cache of a sweep: its rows, read once and shared by all trials, and trees that may be grown on."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tipcast.datasets.base import Counts, Fragment, Part
from tipcast.datasets.prepare import prepare_fragment
from tipcast.datasets.rows import counted
from tipcast.models.base import Grown, Split
from tipcast.search.trial import Study

MOST_PREPARED = 4
"""Ways in which rows are held prepared at once."""
MOST_GROWN = 256
"""Trials whose trees are kept at once, to be grown on; those of others are grown again."""


@dataclass
class WorkerCache:
    """What one process keeps of one sweep; threads that come while it is made wait for it."""

    study: Study
    lock: threading.Lock = field(default_factory=threading.Lock)
    rows: Split | None = None
    validation: tuple[Any, Any] | None = None
    counts: tuple[tuple[Counts, ...], ...] = ()
    """What was read of each fragment, before and from the cutoff."""
    prepared: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict)
    grown: dict[int, tuple[float, int, Any]] = field(default_factory=dict)
    """Trial -> its score, its trees so far and their state."""

    def ready(self, estimator: Any, threads: int) -> tuple[Any, tuple[Any, Any]]:
        """Return what fits with these parameters share, and the validation rows."""
        key = estimator.sharing
        with self.lock:
            if key not in self.prepared:
                rows = self.rows or self._read(threads)
                self.prepared[key] = estimator.prepared(rows, threads)
                self.rows = rows if self.study.again else None
                while len(self.prepared) > MOST_PREPARED:
                    self.prepared.popitem(last=False)
            self.prepared.move_to_end(key)
            assert self.validation is not None  # noqa: S101 - read with the others
            return self.prepared[key], self.validation

    def keep(self, number: int, grown: Grown, score: float, most: int) -> None:
        """Keep trees that may be grown on, which are fewer than the most; of too many trials the better ones."""
        self.grown.pop(number, None)
        if grown.over or grown.trees >= most:
            return
        self.grown[number] = score, grown.trees, grown.state
        while len(self.grown) > MOST_GROWN:
            scores = {each: kept[0] for each, kept in list(self.grown.items())}
            worst = (min if self.study.objective.maximize else max)(scores, key=scores.__getitem__)
            self.grown.pop(worst, None)

    def _read(self, threads: int) -> Split:
        """Read all fragments, each copied into place and dropped, so that rows are in memory about once."""
        study = self.study

        def read(fragment: Fragment) -> tuple[Part, ...]:
            return prepare_fragment(fragment, study.frames, study.recipe)

        with ThreadPoolExecutor(threads) as pool:
            parts = list(pool.map(read, study.fragments))
        self.counts = tuple(map(counted, parts))
        sides = [[both[side] for both in parts] for side in (0, 1)]
        parts.clear()
        self.validation = _joined(sides.pop(), study)
        return Split(*_joined(sides.pop(), study), self.validation)


_CACHES: dict[str, WorkerCache] = {}


def put(study: Study) -> None:
    """Make room for a sweep in this process."""
    _CACHES.setdefault(study.sweep, WorkerCache(study))


def of_sweep(sweep: str) -> WorkerCache:
    """Return a sweep's cache."""
    return _CACHES[sweep]


def clear(sweep: str) -> None:
    """Give the memory of a sweep back."""
    _CACHES.pop(sweep, None)


def _joined(parts: list[Part], study: Study) -> tuple[Any, Any]:
    """Join parts into one frame and one series (None where nothing is predicted), emptying the list on the way."""
    xp = study.frames.xp
    names = list(study.recipe.features)
    rows = sum(part.counts.rows for part in parts)
    order = "C" if parts[0].x.values.flags.c_contiguous else "F"  # as a fit on the parts themselves would have it
    x, at = xp.empty((rows, len(names)), dtype=xp.float32, order=order), 0
    y = None if parts[0].y is None else xp.empty(rows, dtype=parts[0].y.dtype)
    parts.reverse()
    while parts:
        part = parts.pop()
        x[at : at + part.counts.rows] = part.x.values
        if y is not None and part.y is not None:
            y[at : at + part.counts.rows] = part.y.values
        at += part.counts.rows
    return study.frames.frame(x, names), None if y is None else study.frames.series(y, "target")
