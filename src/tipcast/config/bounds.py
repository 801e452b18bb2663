"""Bounds of numbers, which the schemas state and every configuration is held to before its job loads a library."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from tipcast.config.errors import TipcastError


def bounded(
    least: float | None = None, *, above: float | None = None, below: float | None = None, default: Any = "???"
) -> Any:
    """Return a schema's field whose numbers are at least, above and below others; null passes.

    The default is OmegaConf's sign of a value that must be given.
    """
    return dataclasses.field(default=default, metadata={"least": least, "above": above, "below": below})


def check(field: dataclasses.Field[Any], value: Any, where: str) -> None:
    """Refuse a number outside the bounds of its field, if that has any; C003."""
    if value is None or not field.metadata:
        return
    least, above, below = (field.metadata[name] for name in ("least", "above", "below"))
    enough = value >= least if above is None else value > above
    if enough and value < (math.inf if below is None else below):
        return
    if below is not None:
        wanted, fix = f"{least} to below {below}", "use a number between them"
    elif above is None:
        wanted, fix = f"at least {least}", f"use {least} or more"
    else:
        wanted, fix = f"above {above}", f"use more than {above}"
    raise TipcastError("C003", where, f"must be {wanted}, got {value}", fix)
