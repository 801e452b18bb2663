"""What is learned of one file before any worker reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tipcast.config.errors import TipcastError
from tipcast.data.address import last_name
from tipcast.data.fragments import Fragment, Period
from tipcast.data.schema import colour_of


@dataclass(frozen=True)
class Wanted:
    """What is asked of every file."""

    columns: tuple[str, ...]
    """Canonical columns it must have."""
    optional: tuple[str, ...] = ()
    """Those to read where it has them."""
    colour: str | None = None
    block_bytes: int = 32 << 20
    storage: Mapping[str, Any] = field(default_factory=dict)
    """The user's fsspec options."""
    nullable: tuple[str, ...] = ()
    """Columns that may have no value at all."""


@dataclass(frozen=True)
class Found:
    """One file."""

    uri: str
    fragments: tuple[Fragment, ...]
    period: Period
    digest: str
    colour: str | None
    notes: tuple[str, ...]


def colour_in(names: Sequence[str], uri: str, where: str, wanted: str | None) -> str | None:
    """Return a file's colour by its columns, else by its name.

    Raises
    ------
    TipcastError
        D007 it is not the colour that the configuration asks for.

    """
    by_columns = colour_of(names)
    if by_columns and wanted and by_columns != wanted:
        own = {"yellow": "tpep_pickup_datetime", "green": "lpep_pickup_datetime"}
        what = f"missing column {own[wanted]!r}: it has {own[by_columns]!r}, so it is a {by_columns}-taxi file"
        raise TipcastError("D007", where, what, f"ask for the colour {by_columns}, or name {wanted}-taxi files")
    name = last_name(uri).lower()
    return by_columns or next((colour for colour in ("green", "yellow") if colour in name), None)
