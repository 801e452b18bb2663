"""Which columns of Parquet files have NaN among their numbers: footers count nulls alone."""

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc

from tipcast.datasets import address
from tipcast.datasets.arrow_types import value_type
from tipcast.datasets.parts import FilePart
from tipcast.datasets.table_scan import TableScan

COLUMNS_AT_ONCE = 16
"""Columns of a part that a thread reads together, so that wide tables do not fill the memory."""


def columns_with_nan(scans: Sequence[TableScan], names: Collection[str]) -> set[str]:
    """Return those of some columns that have NaN in any part of any Parquet file; D-errors of
    reading.

    Every part is read, as nothing else tells, but a column only till NaN is seen in it, and of
    floating-point numbers alone. In CSV a cell of ``nan`` is a text, which is counted otherwise.
    """
    seen: set[str] = set()

    def look_at(part: FilePart, floating: Sequence[str]) -> None:
        left = [name for name in floating if name not in seen]
        for start in range(0, len(left), COLUMNS_AT_ONCE):
            chosen = left[start : start + COLUMNS_AT_ONCE]
            table = part.read_on_host(dict.fromkeys(chosen))
            seen.update(name for name in chosen if _has_nan(table[name]))

    with ThreadPoolExecutor(address.AT_ONCE) as pool:
        tasks = []
        for scan in scans:
            types = scan.types
            floating = [name for name in names if pa.types.is_floating(value_type(types[name]))]
            if floating:
                tasks += [pool.submit(look_at, part, floating) for part in scan.parts]
        for task in tasks:
            task.result()

    return seen


def _has_nan(column: pa.ChunkedArray) -> bool:
    """Tell whether a column of floating-point numbers of any width has NaN; null is none."""
    return bool(pc.any(pc.is_nan(column.cast(pa.float64()))).as_py())
