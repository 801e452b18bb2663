"""Parameters that a user gave: unknown names and impossible values are refused in one line."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from tipcast.config.errors import TipcastError


def check_names(section: str, given: Collection[str], valid: Collection[str], hints: Mapping[str, str]) -> None:
    """Refuse a name under ``params`` or ``fit`` that the library does not have, or that another key decides.

    Raises
    ------
    TipcastError
        C001 with the nearest valid name, or the hint of what to use instead.

    """
    for name in given:
        if name in valid:
            continue
        near = difflib.get_close_matches(name, valid, 1)
        if name in hints:
            fix = f"use {hints[name]}"
        elif near:
            fix = f"did you mean model.{section}.{near[0]}?"
        else:
            fix = f"choose from {', '.join(sorted(valid))}"
        raise TipcastError("C001", f"model.{section}.{name}", "this model has no such parameter", fix)


def positive_int(key: str, value: Any) -> int:
    """Return a whole number of at least 1; C003 for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        what = f"must be a whole number of at least 1, got {value!r}"
        raise TipcastError("C003", key, what, f"set {key} to 1 or more")
    return value


def positive(key: str, value: Any) -> float:
    """Return a finite number above 0; C003 for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        what = f"must be a finite number above 0, got {value!r}"
        raise TipcastError("C003", key, what, f"set {key} to a number above 0")
    return float(value)


def refused(problem: Exception, params: Collection[str], library: str) -> TipcastError:
    """Return a library's own complaint about a parameter's value as C003."""
    name = next((name for name in params if name in str(problem)), "")
    return TipcastError("C003", f"model.params.{name}".rstrip("."), str(problem), f"see {library}'s documentation")
