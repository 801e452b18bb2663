"""Data sets of openml.org by their number: fetched once by scikit-learn, kept as Parquet, and read as a table."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self
from urllib.error import URLError

import pyarrow as pa
import pyarrow.parquet as pq

from tipcast.config.errors import TipcastError
from tipcast.config.schema import DataSpec, OpenmlData
from tipcast.datasets.table import Table
from tipcast.tasks.base import TargetColumn

TARGET = b"target"
"""Name in a Parquet file's metadata of the column that OpenML names as the target; there is none, or several: empty."""


@dataclass(frozen=True)
class OpenML(Table):
    """A table with a target of its own."""

    target: str | None = None

    @classmethod
    def open(cls, spec: DataSpec) -> Self:
        """Fetch the data set where the cache lacks it, and look at it as at a table.

        Raises
        ------
        TipcastError
            C003 C004 configuration; D001 no such data set, or a cache that cannot be written, D005 a damaged one,
            D022 OpenML does not answer; those of a table.

        """
        if not isinstance(spec, OpenmlData):
            raise TipcastError("C003", "data.source", "OpenML has a configuration of its own", "use data=openml")
        path = Path(spec.cache).expanduser().absolute() / "openml" / f"{spec.id}.parquet"
        if not path.exists():
            try:
                _fetch(spec.id, path)
            except (URLError, TimeoutError) as problem:
                fix = f"check the network, or put the data set into data.cache, as openml/{path.name}"
                raise TipcastError("D022", "https://www.openml.org", str(problem), fix) from problem
            except OSError as problem:
                raise TipcastError("D001", path.parent, str(problem), "set data.cache to another folder") from problem
            except ValueError as problem:
                missing = "not found" in str(problem)
                fix = "see openml.org for its number" if missing else "remove it from data.cache, or use another"
                raise TipcastError("D001" if missing else "D005", "data.id", str(problem), fix) from problem
        table = super().open(replace(spec, train=str(path)))
        known = pq.read_schema(path).metadata or {}  # a file that was put there may tell no target
        return replace(table, target=known.get(TARGET, b"").decode() or None)

    def target_column(self, name: str | None, kind: str | None) -> TargetColumn:
        """Return what a column holds, by default OpenML's own target."""
        return super().target_column(name or self.target, kind)


def _fetch(number: int, path: Path) -> None:
    """Write a data set, without the columns that OpenML says to leave out, beside what scikit-learn keeps of it."""
    from sklearn.datasets import fetch_openml  # not for those who use no such data

    with warnings.catch_warnings(action="ignore"):  # of versions, and of each try that failed
        found = fetch_openml(data_id=number, data_home=str(path.parents[1]), as_frame=True, parser="auto")
    target = found.target_names[0] if len(found.target_names) == 1 else ""
    rows = pa.Table.from_pandas(found.frame, preserve_index=False).replace_schema_metadata({TARGET: target})
    unfinished = path.with_suffix(f".{os.getpid()}")  # another job may fetch the same
    try:
        pq.write_table(rows, unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
