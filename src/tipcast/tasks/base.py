"""What is predicted from what: the task, its target functions, and its entry in a manifest."""

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from tipcast.compute.base import Array
from tipcast.config.errors import unknown
from tipcast.tasks import kinds
from tipcast.tasks.kinds import Kind

MANIFEST_FIELDS = (
    "name",
    "kind",
    "classes",
    "columns",
    "function",
    "params",
    "values",
    "swapped",
    "weight",
)
"""Fields of a task that a saved model's manifest has."""
GROUP = "tipcast.targets"
"""Entry points of installed packages that name target functions."""

Target = Callable[..., Array]
"""``target(columns, xp, **params)``: canonical raw columns (rows,) -> (rows,) target.

Classes are bool or integers from 0, -1 for a row without a target; values are floats, NaN for a
row without one: such rows are dropped. ``xp`` is numpy or cupy.
"""

CARD = 1
"""The TLC's payment type of a credit card: tips in cash are not recorded."""
MINUTE = 60_000_000
NULL_TIME = -(2**63)


@dataclass(frozen=True)
class TargetColumn:
    """A column that is the target as it is."""

    name: str
    kind: Kind
    classes: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    """The number that stands for each class, ascending; empty if the column holds 0, 1, ...
    itself.
    """


@dataclass(frozen=True)
class Task:
    """What is predicted from what."""

    name: str
    kind: Kind
    features: tuple[str, ...]
    categorical: tuple[str, ...] = ()
    """Features that are categories, for models that take them."""
    classes: tuple[str, ...] = ()
    """Names of the classes; empty for regression and clustering."""
    columns: tuple[str, ...] = ()
    """Canonical raw columns that the target is computed from."""
    function: str | None = None
    """Name of the target's function; None: the one column as it is, or no target."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the function."""
    resolved: Target | None = field(default=None, compare=False, repr=False)
    """The function itself: workers may not know it by name."""
    description: str = ""
    """The target in words, as ``tip_amount / fare_amount > 0.2``: what the manifest says."""
    values: tuple[float, ...] = ()
    """See ``TargetColumn``."""
    swapped: bool = False
    """Whether class 0 is the second of the column: the first is the positive one."""
    weight: str | None = None
    """Canonical raw column of the rows' weights; None: every row counts the same."""
    validation: float = 0.0
    """Share of the training rows, or of their time, that is held out."""
    folds: int = 0
    """Number of folds of the training rows, each tested by a model of the others; 0: none."""
    missing: float = -1.0
    """What a feature holds in place of a missing value, if the model gets to know it: NaN, or the
    dataset's own value.
    """

    @property
    def has_target(self) -> bool:
        """Whether the rows have a target column, which models learn to predict."""
        return self.kind.has_target

    def target(self, columns: Mapping[str, Array], xp: ModuleType) -> Array | None:
        """Compute the target from raw columns, canonical name -> (rows,) array of the module
        ``xp``.

        Returns (rows,) bool or integer classes, -1 for a row without a target; or float values,
        NaN for a row without one; None for clustering.
        """
        if not self.has_target:
            return None

        target = self._unswapped_target(columns, xp)
        if not self.swapped:
            return target
        return xp.where(target >= 0, 1 - target, target)

    def _unswapped_target(self, columns: Mapping[str, Array], xp: ModuleType) -> Array:
        """Return the target, its classes in the column's own order."""
        if self.function is not None:
            values = (self.resolved or target_function(self.function))(columns, xp, **self.params)
        else:
            values = columns[self.columns[0]]

        # Here a number below 0 is a value like any other, not a missing class.
        if not self.kind.has_classes:
            return values.astype(xp.float64, copy=False)
        if self.function is not None:
            return values
        if self.values:
            class_values = xp.asarray(self.values)
            at = xp.searchsorted(class_values, values).clip(0, len(class_values) - 1)
            return xp.where(class_values[at] == values, at, -1).astype(xp.int32)
        if values.dtype.kind != "f":
            return values

        # A column of texts is read as codes: the places of its texts among the classes.
        return xp.where(values == values, values, -1).astype(xp.int32)

    @property
    def target_name(self) -> str:
        """The target's function or column, with its unit if that is known, as ``duration
        (minutes)``; empty for clustering.
        """
        if not self.has_target:
            return ""
        name = self.function or self.columns[0]
        unit = _UNITS.get(name, "") if self.function else ""
        return f"{name} ({unit})" if unit else name

    def to_manifest(self) -> dict[str, Any]:
        """Return the task as a saved model's manifest has it, see ``from_manifest``."""
        entry: dict[str, Any] = {}
        for name in MANIFEST_FIELDS:
            value = getattr(self, name)
            entry[name] = list(value) if isinstance(value, tuple) else value
        entry["kind"] = self.kind.name
        return entry


def high_tip(columns: Mapping[str, Array], xp: ModuleType, *, threshold: float) -> Array:
    """Return (rows,) bool: whether tip over fare, both float64, is above the threshold."""
    fare: Array = columns["fare_amount"]
    return columns["tip_amount"] / fare > threshold


def high_tip_card(columns: Mapping[str, Array], xp: ModuleType, *, threshold: float) -> Array:
    """Return (rows,) int8: ``high_tip`` for rows that were paid by card, -1 for others."""
    high = high_tip(columns, xp, threshold=threshold).astype(xp.int8)
    return xp.where(columns["payment_type"] == CARD, high, xp.int8(-1))


def tip_amount(columns: Mapping[str, Array], xp: ModuleType, *, card_only: bool = True) -> Array:
    """Return (rows,) float64 dollars; with ``card_only`` NaN if the trip was not paid by card."""
    tip = columns["tip_amount"]
    if not card_only:
        return tip
    return xp.where(columns["payment_type"] == CARD, tip, xp.nan)


def duration(
    columns: Mapping[str, Array], xp: ModuleType, *, shortest: float = 1.0, longest: float = 60.0
) -> Array:
    """Return (rows,) float64 minutes from pick-up to drop-off.

    They are NaN outside ``shortest`` to ``longest``, both in minutes.
    """
    minutes = (columns["dropoff"] - columns["pickup"]) / MINUTE
    has_times = (columns["dropoff"] != NULL_TIME) & (columns["pickup"] != NULL_TIME)
    return xp.where(has_times & (minutes >= shortest) & (minutes <= longest), minutes, xp.nan)


_TARGETS: dict[str, Target] = {
    "high_tip": high_tip,
    "high_tip_card": high_tip_card,
    "tip_amount": tip_amount,
    "duration": duration,
}
"""Functions by name: tipcast's own, for taxi trips, and those that users register."""
_UNITS = {"tip_amount": "dollars", "duration": "minutes"}
"""Units of tipcast's own functions that return numbers."""


def is_weight(values: Array, xp: ModuleType) -> Array:
    """Return which of (rows,) values are weights: those that are not missing, infinite or below
    0.
    """
    return xp.isfinite(values) & (values >= 0)


def from_manifest(entry: Mapping[str, Any], features: Sequence[str], description: str = "") -> Task:
    """Make the task of a saved model from its manifest, as ``Task.to_manifest`` has written it."""
    fields: dict[str, Any] = {}
    for name in MANIFEST_FIELDS:
        if name in entry:
            value = entry[name]
            fields[name] = tuple(value) if isinstance(value, list) else value

    fields["kind"] = kinds.named(entry["kind"])
    return Task(**fields, features=tuple(features), description=description)


def register(name: str, target: Target) -> None:
    """Register a target function under a name, for ``function:`` in a task's yaml.

    An installed package does the same with an entry point of the group ``tipcast.targets``. The
    function must be importable on the workers, as the driver imports it.
    """
    _TARGETS[name] = target


def target_function(name: str) -> Target:
    """Return a target function by name: registered, shipped, or of an installed package.

    A path to a function is not looked up. Raises C003 for an unknown name.
    """
    if name not in _TARGETS:
        for entry in importlib.metadata.entry_points(group=GROUP, name=name):
            _TARGETS[name] = entry.load()
    if name not in _TARGETS:
        raise unknown("task.function", "target function", name, _TARGETS, "C003")
    return _TARGETS[name]
