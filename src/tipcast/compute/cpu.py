"""The CPU: pandas frames, and pyarrow readers that decode only the columns asked for into NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tipcast.compute.base import Array, Frame

NULL_TIME = np.iinfo(np.int64).min
"""What stands for a missing timestamp."""


class CpuFrames:
    """NumPy, pandas and pyarrow, without state; one thread per call, because Dask runs one call per core.

    Columns come back as 1-D arrays of the device: timestamps as int64 microseconds since the epoch with the smallest
    int64 for null; integers without nulls as they are; every other number as float64 with NaN for null.
    """

    real: type[np.floating[Any]] = np.float64
    """Of targets that are values: scikit-learn sums in it, and rounded ones split a few nodes of a tree otherwise."""
    batch_rows = 0
    """Rows of a file that a task should read where there are so many. 0: as they are listed, about a core's cache."""

    @property
    def xp(self) -> ModuleType:
        """The array module."""
        return np

    def read_parquet(
        self, uri: str, row_groups: Sequence[int], columns: Sequence[str], storage_options: Mapping[str, Any]
    ) -> dict[str, Array]:
        """Read columns, by the file's own names, of some row groups; page checksums are verified where it has them.

        OSError, ValueError or RuntimeError: the bytes are not what the footer says.
        """
        remote = "://" in uri
        with fsspec.open(uri, "rb", **storage_options) if remote else nullcontext(uri) as source:
            file = pq.ParquetFile(source, memory_map=not remote, pre_buffer=remote, page_checksum_verification=True)
            table = file.read_row_groups(list(row_groups), columns=list(columns), use_threads=False)
            return self.arrays(table, columns)

    def arrays(self, table: pa.Table, names: Sequence[str]) -> dict[str, Array]:
        """Return columns of a table on the host."""
        return {name: _array(table.column(name)) for name in names}

    def frame(self, values: Array, names: Sequence[str]) -> Frame:
        """Wrap a (rows, columns) array, each column contiguous, as a DataFrame, which copies nothing."""
        return pd.DataFrame(values, columns=list(names), copy=False)

    def series(self, values: Array, name: str) -> Frame:
        """Wrap a 1-D array as a Series, which copies nothing."""
        return pd.Series(values, name=name, copy=False)


def _array(column: pa.ChunkedArray) -> Array:
    kind = column.type
    if pa.types.is_timestamp(kind):
        if kind.unit != "us":
            column = column.cast(pa.timestamp("us", tz=kind.tz), safe=False)
        column = pa.chunked_array([chunk.view(pa.int64()) for chunk in column.chunks], pa.int64())
        if column.null_count:
            column = column.fill_null(NULL_TIME)
    elif not (pa.types.is_float64(kind) or (pa.types.is_integer(kind) and not column.null_count)):
        column = column.cast(pa.float64(), safe=False)  # ids may be beyond 2^53
    chunks = [chunk.to_numpy(zero_copy_only=chunk.null_count == 0) for chunk in column.chunks]
    if len(chunks) == 1:
        return chunks[0]
    return np.concatenate(chunks) if chunks else column.to_numpy()
