"""Counts of rows: what the driver knows of them without having them, and sums of these."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tipcast.datasets.parts import Part

OUTSIDE_PERIOD = "outside_period"
"""Why a row is dropped whose time is not in the period of its file."""


@dataclass(frozen=True)
class Counts:
    """What the driver knows of rows that were read, without having them."""

    rows: int
    """Rows kept."""
    rows_read: int
    """Rows of the part before any was dropped. Where a part is divided between splits, the first
    split alone has this count, ``dropped`` and ``raw_bytes``; they are 0 or empty in the others.
    """
    dropped: Mapping[str, int]
    """Reason -> rows."""
    raw_bytes: int = 0
    """Memory of the raw columns read."""
    bytes: int = 0
    """Memory of features and target."""
    classes: tuple[int, ...] = ()
    """Rows of each class; empty for values."""
    target_sum: float = 0.0
    """Sum of the target, if it is a value."""
    weight: float = 0.0
    """Sum of the rows' weights; 0 without weights."""
    class_weights: tuple[float, ...] = ()
    """Sum of the weights of each class's rows; empty for values and without weights."""
    weighted_target_sum: float = 0.0
    """Sum of the target times the weight, if it is a value; 0 without weights."""

    @property
    def class_sums(self) -> tuple[float, ...]:
        """Sum of the weights of each class's rows; their number without weights."""
        if self.weight:
            return self.class_weights
        return self.classes

    @property
    def class_shares(self) -> list[float]:
        """Share of each class in the rows, by their weights if they have some."""
        whole = self.weight or self.rows
        return [of_class / whole for of_class in self.class_sums]

    @property
    def target_mean(self) -> float:
        """Mean of the target, by the rows' weights if they have some."""
        if self.weight:
            return self.weighted_target_sum / self.weight
        return self.target_sum / self.rows


def total(counts: Sequence[Counts]) -> Counts:
    """Return the sums of counts."""
    dropped = sum((Counter(count.dropped) for count in counts), Counter[str]())
    classes = itertools.zip_longest(*(count.classes for count in counts), fillvalue=0)
    class_weights = itertools.zip_longest(*(count.class_weights for count in counts), fillvalue=0.0)
    summed = (
        "rows",
        "bytes",
        "rows_read",
        "raw_bytes",
        "target_sum",
        "weight",
        "weighted_target_sum",
    )
    sums = {name: sum(getattr(count, name) for count in counts) for name in summed}

    return Counts(
        **sums,
        classes=tuple(map(sum, classes)),
        class_weights=tuple(map(sum, class_weights)),
        dropped=dict(dropped),
    )


def per_file(parts: Sequence[Part], counts: Sequence[tuple[Counts, ...]]) -> dict[str, Counts]:
    """Return address -> sums over the parts of that file; ``counts`` has each part's splits."""
    by_file: dict[str, list[Counts]] = defaultdict(list)
    for part, of_splits in zip(parts, counts, strict=True):
        by_file[part.uri] += of_splits
    return {uri: total(of_file) for uri, of_file in by_file.items()}
