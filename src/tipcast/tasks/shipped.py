"""The targets that come with tipcast, of columns of taxi trips; any array module computes them."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from tipcast.compute.base import Array
from tipcast.tasks.base import Target

CARD = 1
"""The TLC's payment type of a credit card: tips in cash are not recorded."""
MINUTE = 60_000_000
NULL_TIME = -(2**63)


def high_tip(columns: Mapping[str, Array], xp: ModuleType, *, threshold: float) -> Array:
    """Return (rows,) bool: tip over fare, both float64, is above the threshold; the seed's own formula."""
    fare: Array = columns["fare_amount"]
    return columns["tip_amount"] / fare > threshold


def high_tip_card(columns: Mapping[str, Array], xp: ModuleType, *, threshold: float) -> Array:
    """Return (rows,) int8: ``high_tip`` of rows that were paid by card, -1 for the others."""
    high = high_tip(columns, xp, threshold=threshold).astype(xp.int8)
    return xp.where(columns["payment_type"] == CARD, high, xp.int8(-1))


def tip_amount(columns: Mapping[str, Array], xp: ModuleType, *, card_only: bool = True) -> Array:
    """Return (rows,) float64 dollars; with ``card_only`` NaN where the trip was not paid by card."""
    tip = columns["tip_amount"]
    return xp.where(columns["payment_type"] == CARD, tip, xp.nan) if card_only else tip


def duration(columns: Mapping[str, Array], xp: ModuleType, *, shortest: float = 1.0, longest: float = 60.0) -> Array:
    """Return (rows,) float64 minutes from pick-up to drop-off, NaN outside ``shortest`` to ``longest``."""
    minutes = (columns["dropoff"] - columns["pickup"]) / MINUTE
    known = (columns["dropoff"] != NULL_TIME) & (columns["pickup"] != NULL_TIME)
    return xp.where(known & (minutes >= shortest) & (minutes <= longest), minutes, xp.nan)


TARGETS: dict[str, Target] = {
    "high_tip": high_tip,
    "high_tip_card": high_tip_card,
    "tip_amount": tip_amount,
    "duration": duration,
}
