"""The space that is searched: ranges and lists by parameter, checked before anything starts."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tipcast.config.errors import TipcastError
from tipcast.config.schema import ModelSpec
from tipcast.models import build

RANGES = ("int", "int_log", "float", "log")
WHOLE = ("int", "int_log")
LOGARITHMIC = ("log", "int_log")
FORMS = "{int: [4, 12]}, {int_log: [50, 800]}, {float: [0.5, 1]}, {log: [0.01, 0.3]} or a list"
INSIDE = 0.382
"""Where between a range's bounds a value is tried out beforehand that is seldom a whole number."""
MOST = 10_000
"""Trials of a search, and combinations of a grid."""


@dataclass(frozen=True)
class Axis:
    """The values that one parameter may take."""

    kind: str
    """``int`` or ``float``, evenly between bounds; ``int_log`` or ``log``, evenly in the logarithm; ``list``."""
    low: float = 0.0
    high: float = 0.0
    """Both included."""
    values: tuple[Any, ...] = ()

    def points(self, number: int) -> tuple[Any, ...]:
        """Return the list's values, or so many of a range with both ends."""
        if self.kind == "list":
            return self.values
        if self.kind in WHOLE and self.high - self.low < number:
            return tuple(range(int(self.low), int(self.high) + 1))
        spaced = (np.geomspace if self.kind in LOGARITHMIC else np.linspace)(self.low, self.high, number)
        # Eight digits are enough to search by, and to type again.
        inner = [round(value) if self.kind in WHOLE else float(f"{value:.8g}") for value in spaced.tolist()[1:-1]]
        return tuple(dict.fromkeys((self.tried[0], *inner, self.tried[1])))

    @property
    def size(self) -> int | None:
        """How many values there are; None: without end."""
        if self.kind == "list":
            return len(self.values)
        if self.low == self.high:
            return 1
        return int(self.high) - int(self.low) + 1 if self.kind in WHOLE else None

    def contains(self, value: Any) -> bool:
        """Tell whether a value is one of them."""
        if self.kind == "list":
            return repr(value) in map(repr, self.values)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and self.low <= value <= self.high and (self.kind not in WHOLE or value == int(value))

    @property
    def tried(self) -> tuple[Any, ...]:
        """What is tried out beforehand: every value of a list, the bounds of a range."""
        if self.kind == "list":
            return self.values
        return (int(self.low), int(self.high)) if self.kind in WHOLE else (self.low, self.high)


Space = Mapping[str, Axis]


def inside(space: Space, params: Mapping[str, Any]) -> bool:
    """Tell whether parameters are a point of a space; those of a model as it is configured need not be."""
    return all(name in params and axis.contains(params[name]) for name, axis in space.items())


def parse(space: Mapping[str, Any]) -> dict[str, Axis]:
    """Read a space as yaml has it, sorted by name: parameter -> one of ``FORMS``; null leaves the parameter out.

    C003 for a form that is none of these, an empty list, a value twice, bounds that are reversed or cannot be.
    """
    return {name: _axis(name, space[name]) for name in sorted(space) if space[name] is not None}


def merged(model: ModelSpec, own: Mapping[str, Any], *, alone: bool) -> dict[str, Axis]:
    """Return a model's space with one's own axes in place of the model's, or one's own alone where there are any."""
    base: Mapping[str, Any] = {} if alone and own else model.space
    return parse({**base, **own})


def check(model: ModelSpec, space: Space, device: str, categorical: Sequence[str], kind: str | None = None) -> None:
    """Let the estimator judge every value of the lists, and of the ranges the bounds and a value between.

    C001 a parameter that the model does not have, C003 a value that it refuses or nothing to search.
    """
    if not space:
        raise TipcastError("C003", "search.space", "nothing is searched", f"name a parameter, as {FORMS}")
    for name, axis in space.items():
        between = () if axis.size is not None else (axis.low + INSIDE * (axis.high - axis.low),)
        for value in (*axis.tried, *between):
            try:
                trial = dataclasses.replace(model, params={**model.params, name: value})
                build.build(trial, device, categorical, kind).check()
            except TipcastError as problem:
                if not problem.where.startswith("model."):
                    raise
                fix = problem.fix
                near = difflib.get_close_matches(name, [*model.space, *model.params], 1)
                if problem.code == "C001" and near:
                    fix = f"did you mean search.space.{near[0]}?"
                elif value in between:
                    bounds = f"[{axis.low:g}, {axis.high:g}]"
                    fix = f"write {{int: {bounds}}} or {{int_log: {bounds}}}"
                raise TipcastError(problem.code, f"search.space.{name}", problem.what, fix) from problem


def _axis(name: str, form: Any) -> Axis:
    if isinstance(form, list | tuple):
        unlike = len(set(map(repr, form))) == len(form) > 0
        if unlike and not any(isinstance(value, Mapping) for value in form):
            return Axis("list", values=tuple(form))
    elif isinstance(form, Mapping) and len(form) == 1:
        ((kind, bounds),) = form.items()
        numbers = bounds if isinstance(bounds, list | tuple) else []
        finite = all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
        if kind in RANGES and finite and len(numbers) == 2:
            low, high = numbers
            whole = kind not in WHOLE or (low == int(low) and high == int(high))
            if low <= high and whole and (low > 0 or kind not in LOGARITHMIC):
                return Axis(kind, low, high)
    fix = f"write {FORMS}, each value once, bounds in order, those of logarithms above 0"
    raise TipcastError("C003", f"search.space.{name}", f"cannot be searched: {form}", fix)
