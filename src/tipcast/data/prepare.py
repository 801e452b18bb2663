"""From one fragment of raw trips to features and a label: the task that every worker runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType

from tipcast.backends.base import Array, Frames
from tipcast.config.errors import travelling
from tipcast.data import features, validate
from tipcast.data.fragments import Fragment, Part
from tipcast.data.read import read_fragment

CARD, CASH = 1, 2
"""The TLC's payment types of a credit card and of cash."""


@dataclass(frozen=True)
class Recipe:
    """What is made of raw trips."""

    features: tuple[str, ...]
    threshold: float
    """Tip over fare above which the label is 1."""
    cutoff: int | None = None
    """Microseconds since 1970: rows picked up from here on go into the second part. None: one part."""
    card: bool = False
    """Whether to keep which rows were paid by card, and to count those paid in cash."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Canonical names of the raw columns this needs."""
        return tuple(dict.fromkeys(("pickup", "fare_amount", "tip_amount", *features.needed_columns(self.features))))

    @property
    def optional(self) -> tuple[str, ...]:
        """Those that are read where a file has them."""
        return ("payment_type",) if self.card else ()


@dataclass(frozen=True)
class Read:
    """What was read before anything was dropped; a fragment's second part has none of its own."""

    rows: int = 0
    bytes: int = 0
    missing_passengers: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)


@travelling
def prepare_fragment(fragment: Fragment, frames: Frames, recipe: Recipe) -> tuple[Part, ...]:
    """Read one fragment and make its features and label.

    Parameters
    ----------
    fragment
        What to read; only ``recipe.columns`` of it are.
    frames
        The device's frame library.
    recipe
        What to make.

    Returns
    -------
    tuple of Part
        One part, or the rows before and from ``recipe.cutoff``.

    Raises
    ------
    TipcastError
        D-errors naming the file, for bytes that cannot be read.

    """
    xp = frames.xp
    columns = read_fragment(fragment, frames, (*recipe.columns, *(set(recipe.optional) & set(fragment.columns))))
    read = Read(
        rows=len(columns["pickup"]),
        bytes=sum(int(values.nbytes) for values in columns.values()),
        missing_passengers=validate.missing_passengers(columns),
    )
    keep, dropped = validate.clean(columns, fragment.period, xp)
    if keep is not None:
        columns = {name: values[keep] for name, values in columns.items()}
    read = replace(read, dropped=dropped)
    if recipe.cutoff is None:
        return (_part(columns, frames, recipe, read),)
    start, stop = fragment.period
    nothing = {name: values[:0] for name, values in columns.items()}
    if stop <= recipe.cutoff:
        first, second = columns, nothing
    elif start >= recipe.cutoff:
        first, second = nothing, columns
    else:
        before = columns["pickup"] < recipe.cutoff
        first, second = ({name: values[side] for name, values in columns.items()} for side in (before, ~before))
    return (_part(first, frames, recipe, read), _part(second, frames, recipe, Read()))


def high_tip(columns: Mapping[str, Array], threshold: float) -> Array:
    """Return (rows,) bool: tip over fare, both float64, is above the threshold; the seed's own formula."""
    fare: Array = columns["fare_amount"]
    return columns["tip_amount"] / fare > threshold


def _part(columns: Mapping[str, Array], frames: Frames, recipe: Recipe, read: Read) -> Part:
    xp: ModuleType = frames.xp
    matrix = features.compute(columns, recipe.features, xp)
    label = high_tip(columns, recipe.threshold).astype(xp.int32)
    payment = columns.get("payment_type", xp.zeros(len(label), dtype=xp.int8)) if recipe.card else None
    return Part(
        x=frames.frame(matrix, recipe.features),
        y=frames.series(label, "target"),
        card=None if payment is None else payment == CARD,
        rows=len(label),
        positives=int(label.sum()),
        cash=0 if payment is None else int((payment == CASH).sum()),
        bytes=int(matrix.nbytes + label.nbytes),
        rows_read=read.rows,
        raw_bytes=read.bytes,
        missing_passengers=read.missing_passengers,
        dropped=read.dropped,
    )
