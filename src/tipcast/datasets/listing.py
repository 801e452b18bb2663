"""The listing of all parts, and files before they are read: what is asked of them, and what is
learned of one.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tipcast.compute.base import count
from tipcast.config.errors import TipcastError
from tipcast.datasets.dialect import Dialect
from tipcast.datasets.parts import FilePart, Part, Period

COLUMN_NAMES = "column_names"
"""Of a model's manifest: the dataset's name -> a file's, where mapped."""


@dataclass(frozen=True)
class FileInfo:
    """What the files of a listing have in common, and the manifest of a model says of those that it
    is trained on. Datasets add to it.
    """

    column_names: Mapping[str, str] = field(default_factory=dict)
    """The dataset's name -> the files' own, of the columns that a user maps."""

    def to_manifest(self) -> dict[str, Any]:
        """Return what JSON can hold, by the manifest's keys."""
        return {COLUMN_NAMES: dict(self.column_names)} if self.column_names else {}


def column_names_of(manifest: Mapping[str, Any]) -> Mapping[str, str]:
    """Return ``FileInfo.column_names`` of the files that a saved model was trained on."""
    names: Mapping[str, str] = manifest.get(COLUMN_NAMES, {})
    return names


@dataclass(frozen=True)
class Listing:
    """All parts of one period or of one side of the data, in time and file order."""

    parts: tuple[Part, ...]
    period: Period | None
    uris: tuple[str, ...]
    digest: str
    """One digest over all files' digests."""
    name: str
    """What its rows are, in the plural: ``blobs rows`` or ``rows``."""
    info: FileInfo = FileInfo()
    notes: tuple[str, ...] = ()
    """Lines worth a log line, as ``column names mapped from lower case``."""

    @property
    def known_rows(self) -> int:
        """Rows of the parts that tell their number without being read, as Parquet's footers do."""
        return sum(part.rows or 0 for part in self.parts)

    @property
    def size(self) -> str:
        """In words: files but for rows that are made, rows where footers tell, and parts, each of
        which a task reads.
        """
        rows = [part.rows for part in self.parts if part.rows is not None]
        n_parts = len(self.parts)
        total = f"{sum(rows):,} rows, " if len(rows) == n_parts else ""
        are_made = not any(isinstance(part, FilePart) for part in self.parts)
        files = "" if are_made else f"{count(len(self.uris), 'file')}, "
        return f"{files}{total}{count(n_parts, 'part')}"


@dataclass(frozen=True)
class ScanRequest:
    """What is asked of every file."""

    columns: tuple[str, ...]
    """Canonical columns it must have."""
    optional: tuple[str, ...] = ()
    """Those to read where it has them."""
    block_bytes: int = 32 << 20
    """A plain CSV file is read in blocks of this size."""
    storage: Mapping[str, Any] = field(default_factory=dict)
    """The user's fsspec options."""
    nullable: tuple[str, ...] = ()
    """Columns that may have no value at all."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The dataset's name -> a file's own, of columns that a user maps."""
    key: str = "data.columns"
    """Key of the configuration that sets ``names``."""
    dialect: Dialect = Dialect()
    """How text files are written; the separator is what each file's scan finds."""
    any_columns: bool = False
    """Whether any column may be of use: then folders named KEY=VALUE, whose column the files lack,
    are refused.
    """
    strict: bool = True
    """Whether every file must have all that is mapped; otherwise what a file lacks is not mapped in
    it.
    """


@dataclass(frozen=True)
class FileScan:
    """What is learned of one file before any worker reads it; datasets add what they need."""

    uri: str
    parts: tuple[FilePart, ...]
    period: Period | None
    digest: str
    notes: tuple[str, ...] = ()


AnyScan = TypeVar("AnyScan", bound=FileScan)


def seen_names(spellings: Sequence[str], request: ScanRequest, where: str) -> list[tuple[str, str]]:
    """Return (name that the dataset sees, the file's own) of a file's columns, in their order.

    A column that is mapped is seen by the dataset's name; another one of that very name is not
    seen. The dataset sees names in one Unicode form, as ö may be one sign or an o with two dots.
    ``where`` is the file, for messages.

    Raises D006 for a column that stands for two or occurs twice, D007 for one that the file
    lacks.
    """
    plain = [unicodedata.normalize("NFC", name) for name in spellings]
    mapped = _mapped_names(plain, request, where)
    canonical: dict[str, str] = {}

    for name, column in mapped.items():
        if column in canonical:
            what = f"column {column!r} is mapped to {canonical[column]} and to {name}"
            raise TipcastError("D006", where, what, f"use another column in {request.key}")
        canonical[column] = name

    return [
        (canonical.get(name, name), spelling)
        for name, spelling in zip(plain, spellings, strict=True)
        if name in canonical or name not in mapped
    ]


def _mapped_names(plain: Sequence[str], request: ScanRequest, where: str) -> dict[str, str]:
    """Return the dataset's name -> a file's, where the user maps it and the file has it.

    Raises D006 and D007 as ``seen_names``.
    """
    wanted = {name: unicodedata.normalize("NFC", column) for name, column in request.names.items()}
    twice = next((name for name, times in Counter(plain).items() if name and times > 1), None)

    if twice is not None:
        what = f"column {twice!r} occurs twice"
        raise TipcastError("D006", where, what, "drop or rename one of the two")

    lacking = {name: column for name, column in wanted.items() if column not in plain}
    if lacking and request.strict:
        name, column = next(iter(lacking.items()))
        near = difflib.get_close_matches(column, plain, 1)
        columns = f"{count(len(plain), 'column')} found"
        if near:
            columns = f"{columns}, including {near[0]!r}"
        what = f"missing column {column!r}, which {request.key} maps to {name} ({columns})"
        raise TipcastError(
            "D007", where, what, f"write the name that the file has for {name} there"
        )

    return {name: column for name, column in wanted.items() if name not in lacking}
