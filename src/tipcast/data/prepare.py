"""From one fragment of raw trips to features and a label: the task that every worker runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

from tipcast.backends.base import Array, Frames
from tipcast.data import features, validate
from tipcast.data.fragments import Fragment, Part
from tipcast.data.read import read_fragment

CARD = 1
"""TLC's payment_type of a credit card."""


@dataclass(frozen=True)
class Recipe:
    """What is made of raw trips."""

    features: tuple[str, ...]
    threshold: float
    """Tip over fare above which the label is 1."""
    cutoff: int | None = None
    """Microseconds since 1970: rows picked up from here on go into the second part. None: one part."""
    card: bool = False
    """Whether to keep which rows were paid by card."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Canonical names of the raw columns this needs."""
        extra = ("payment_type",) if self.card else ()
        wanted = ("pickup", "fare_amount", "tip_amount", *features.needed_columns(self.features), *extra)
        return tuple(dict.fromkeys(wanted))


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
    columns = read_fragment(fragment, frames, recipe.columns)
    rows_read = len(columns["pickup"])
    raw_bytes = sum(int(values.nbytes) for values in columns.values())
    keep, dropped = validate.clean(columns, fragment.period, xp)
    if keep is not None:
        columns = {name: values[keep] for name, values in columns.items()}
    counts = (rows_read, raw_bytes, dropped)
    if recipe.cutoff is None:
        return (_part(columns, frames, recipe, counts),)
    start, stop = fragment.period
    nothing = {name: values[:0] for name, values in columns.items()}
    if stop <= recipe.cutoff:
        pieces = (columns, nothing)
    elif start >= recipe.cutoff:
        pieces = (nothing, columns)
    else:
        before = columns["pickup"] < recipe.cutoff
        pieces = tuple({name: values[side] for name, values in columns.items()} for side in (before, ~before))
    return (_part(pieces[0], frames, recipe, counts), _part(pieces[1], frames, recipe, (0, 0, {})))


def high_tip(columns: Mapping[str, Array], threshold: float) -> Array:
    """Return (rows,) bool: tip over fare, both float64, is above the threshold; the seed's own formula."""
    fare: Array = columns["fare_amount"]
    return columns["tip_amount"] / fare > threshold


def _part(columns: Mapping[str, Array], frames: Frames, recipe: Recipe, counts: tuple[int, int, Mapping[str, int]]) -> Part:
    xp: ModuleType = frames.xp
    matrix = features.compute(columns, recipe.features, xp)
    label = high_tip(columns, recipe.threshold).astype(xp.int32)
    return Part(
        x=frames.frame(matrix, recipe.features),
        y=frames.series(label, "target"),
        card=columns["payment_type"] == CARD if recipe.card else None,
        rows=len(label),
        positives=int(label.sum()),
        bytes=int(matrix.nbytes + label.nbytes),
        rows_read=counts[0],
        raw_bytes=counts[1],
        dropped=counts[2],
    )
