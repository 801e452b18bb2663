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
import pyarrow.csv
import pyarrow.parquet as pq

from tipcast.compute.base import Array, Frame

NULL_TIME = np.iinfo(np.int64).min
"""What stands for a missing timestamp."""
MISSING = ["", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "\\N"]
"""What a CSV cell without a value may say."""
CSV_CHUNK = 8 << 20
"""Bytes that the CSV parser works on at once."""
DATES = {
    "iso": [pa.csv.ISO8601, "%Y-%m-%d %H:%M:%S UTC"],
    "month_first": [pa.csv.ISO8601, "%m/%d/%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %I:%M:%S %p", "%m/%d/%Y %I:%M %p"],
    "day_first": [pa.csv.ISO8601, "%d/%m/%Y %H:%M", "%d/%m/%Y %H:%M:%S", "%d/%m/%Y %I:%M:%S %p", "%d/%m/%Y %I:%M %p"],
}
"""How a CSV file writes its dates -> the formats tried in order on every cell."""


class CpuFrames:
    """NumPy, pandas and pyarrow; one thread per call, because Dask runs one call per core."""

    xp: ModuleType = np
    batch_rows = 0
    """Fragments are read as they are listed: each about fills a core's cache."""

    def read_parquet(
        self, uri: str, row_groups: Sequence[int], columns: Sequence[str], storage_options: Mapping[str, Any]
    ) -> dict[str, Array]:
        """Read columns of some row groups; page checksums are verified where the file has them."""
        remote = "://" in uri
        with fsspec.open(uri, "rb", **storage_options) if remote else nullcontext(uri) as source:
            file = pq.ParquetFile(source, memory_map=not remote, pre_buffer=remote, page_checksum_verification=True)
            table = file.read_row_groups(list(row_groups), columns=list(columns), use_threads=False)
            return {name: _array(table.column(name)) for name in columns}

    def read_csv(
        self, block: bytes, header: Sequence[str], columns: Sequence[str], timestamps: Sequence[str], dates: str = "iso"
    ) -> dict[str, Array]:
        """Parse columns of a block of CSV rows without their header line."""
        types = {name: pa.timestamp("us") if name in timestamps else pa.float64() for name in columns}
        table = pa.csv.read_csv(
            pa.BufferReader(block),
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=CSV_CHUNK, column_names=list(header)),
            convert_options=pa.csv.ConvertOptions(
                include_columns=list(columns), column_types=types, null_values=MISSING, timestamp_parsers=DATES[dates]
            ),
        )
        return {name: _array(table.column(name)) for name in columns}

    def frame(self, values: Array, names: Sequence[str]) -> Frame:
        """Wrap a (rows, columns) array as a DataFrame."""
        return pd.DataFrame(values, columns=list(names), copy=False)

    def series(self, values: Array, name: str) -> Frame:
        """Wrap a 1-D array as a Series."""
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
        column = column.cast(pa.float64())
    chunks = [chunk.to_numpy(zero_copy_only=chunk.null_count == 0) for chunk in column.chunks]
    if len(chunks) == 1:
        return chunks[0]
    return np.concatenate(chunks) if chunks else column.to_numpy()
