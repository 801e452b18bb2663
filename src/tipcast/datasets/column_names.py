"""A user's own names of columns: what a dataset sees in place of them, and what a saved model calls its raw columns."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tipcast.compute.base import count
from tipcast.config.errors import TipcastError
from tipcast.datasets.base import Dataset, RawColumn, ScanRequest

NAMES = "column_names"
"""Of a fragment's options, a listing's facts and a model's manifest: the dataset's name -> a file's, where mapped."""


def check_names(dataset: Dataset, names: Mapping[str, str], key: str) -> None:
    """Refuse names of a configuration's ``key`` that are none of a dataset's columns; C003."""
    known = dataset.known_columns
    for name in names:
        if known and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            fix = f"did you mean {near[0]}?" if near else f"left of each colon write one of {', '.join(known)}"
            raise TipcastError("C003", key, f"{dataset.name} has no column {name!r}", fix)


def seen_names(own: Sequence[str], request: ScanRequest, where: str) -> list[tuple[str, str]]:
    """Return (name that the dataset sees, the file's own) of a file's columns, in their order.

    A column that is mapped is seen by the dataset's name; another one of that very name is not seen.

    Parameters
    ----------
    own
        Names of the file's columns.
    request
        What is asked of it, with the names that a user maps.
    where
        The file, for messages.

    Raises
    ------
    TipcastError
        D006 a column that stands for two or is there twice, D007 one that the file lacks.

    """
    twice = next((name for name, times in Counter(own).items() if name and times > 1), None)
    if twice is not None:
        raise TipcastError("D006", where, f"column {twice!r} is there twice", "drop or rename one of the two")
    lacking = {name: column for name, column in request.names.items() if column not in own}
    if lacking and request.strict:
        name, column = next(iter(lacking.items()))
        near = difflib.get_close_matches(column, own, 1)
        found = count(len(own), "column") + (f" found, {near[0]!r} among them" if near else " found")
        what = f"missing column {column!r}, which {request.key} maps to {name} ({found})"
        raise TipcastError("D007", where, what, f"write the file's own name of {name} there")
    names = {name: column for name, column in request.names.items() if name not in lacking}
    seen: dict[str, str] = {}
    for name, column in names.items():
        if column in seen:
            what = f"column {column!r} is mapped to {seen[column]} and to {name}"
            raise TipcastError("D006", where, what, f"name another column in {request.key}")
        seen[column] = name
    return [(seen.get(name, name), name) for name in own if name in seen or name not in names]


def mapped(request: ScanRequest) -> dict[str, Any]:
    """Return what a fragment's options tell of names that a user maps; nothing where none are."""
    return {NAMES: dict(request.names)} if request.names else {}


def as_named(columns: Iterable[RawColumn], facts: Mapping[str, Any]) -> tuple[RawColumn, ...]:
    """Return a model's raw columns, those that the user maps by the training files' own names.

    ``facts`` are of the listing of the training rows; the dataset's own spellings are taken too.
    """
    names: Mapping[str, str] = facts.get(NAMES, {})
    found = []
    for column in columns:
        own = [names[name] for name in (column.name, *column.spellings) if name in names]
        found.append(replace(column, spellings=tuple(dict.fromkeys((*own, *column.spellings)))))
    return tuple(found)


def raw_frame(dataset: Dataset, columns: Mapping[str, Any], features: Sequence[str], facts: Mapping[str, Any]) -> Any:
    """Return canonical host columns as the user of a model of some features has them, see ``Dataset.raw_frame``."""
    usual = dataset.raw_columns(features, facts)
    names = {one.spellings[0]: own.spellings[0] for one, own in zip(usual, as_named(usual, facts), strict=True)}
    return dataset.raw_frame(columns, facts).rename(columns=names)
