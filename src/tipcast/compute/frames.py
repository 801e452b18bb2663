"""Frame libraries: readers that decode only the columns asked for into arrays, and frames of them,
on each device.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
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
    """NumPy, pandas and pyarrow, without state.

    A call uses one thread, because Dask runs one call per core. Columns come back as 1-D arrays of
    the device: timestamps as int64 microseconds since the epoch with the smallest int64 for null;
    integers without nulls as they are; every other number as float64 with NaN for null.
    """

    real: type[np.floating[Any]] = np.float64
    """Type of targets that are values: scikit-learn sums in it, and rounded targets split a few
    nodes of a tree otherwise.
    """
    on_gpu = False
    batch_rows = 0
    """Rows of a file that one task should read. 0: parts are read as they are listed, which fits
    a core's cache.
    """

    @property
    def xp(self) -> ModuleType:
        """The array module."""
        return np

    def read_parquet(
        self,
        uri: str,
        row_groups: Sequence[int],
        columns: Sequence[str],
        storage_options: Mapping[str, Any],
    ) -> dict[str, Array]:
        """Read columns, by the file's own names, of some row groups.

        Page checksums are verified if the file has them. Raises OSError, ValueError or RuntimeError
        if the bytes are not what the footer says.
        """
        remote = "://" in uri
        with fsspec.open(uri, "rb", **storage_options) if remote else nullcontext(uri) as source:
            file = pq.ParquetFile(
                source, memory_map=not remote, pre_buffer=remote, page_checksum_verification=True
            )
            table = file.read_row_groups(list(row_groups), columns=list(columns), use_threads=False)
            return self.arrays(table, columns)

    def arrays(self, table: pa.Table, names: Sequence[str]) -> dict[str, Array]:
        """Return columns of a table on the host."""
        return {name: _array(table.column(name)) for name in names}

    def frame(self, values: Array, names: Sequence[str]) -> Frame:
        """Wrap a (rows, columns) array, each column contiguous, as a DataFrame without a copy."""
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
    return column.to_numpy()  # one chunk without nulls is not copied


class GpuFrames(CpuFrames):
    """CuPy and cuDF, imported where a task runs, so that a driver needs no GPU."""

    real = np.float32
    on_gpu = True
    batch_rows = 8_000_000
    """A task costs the same few milliseconds for up to about this many rows."""

    @property
    def xp(self) -> ModuleType:
        import cupy

        module: ModuleType = cupy
        return module

    def read_parquet(
        self,
        uri: str,
        row_groups: Sequence[int],
        columns: Sequence[str],
        storage_options: Mapping[str, Any],
    ) -> dict[str, Array]:
        """Read columns of some row groups.

        Local files are decoded on the device, which verifies no page checksums.
        """
        if "://" in uri:
            return super().read_parquet(uri, row_groups, columns, storage_options)

        frame = _decoded(uri, row_groups, columns)
        odd = [
            name
            for name, kind in frame.dtypes.items()
            if not isinstance(kind, np.dtype) or kind.kind not in "iufM"
        ]
        read = {name: _device_array(frame[name]) for name in columns if name not in odd}
        if odd:  # as decimals: their conversion must equal the host's to the last bit
            read |= super().read_parquet(uri, row_groups, odd, storage_options)

        return {name: read[name] for name in columns}

    def arrays(self, table: Any, names: Sequence[str]) -> dict[str, Array]:
        return {
            name: self.xp.asarray(values) for name, values in super().arrays(table, names).items()
        }

    def frame(self, values: Array, names: Sequence[str]) -> Frame:
        import cudf

        return cudf.DataFrame(values, columns=list(names), nan_as_null=False)

    def series(self, values: Array, name: str) -> Frame:
        import cudf

        return cudf.Series(values, name=name, nan_as_null=False)


def _decoded(path: str, row_groups: Sequence[int], columns: Sequence[str]) -> Frame:
    """Decode by pylibcudf.

    cuDF's own reader makes columns of folders' names, and an index of columns.
    """
    import cudf
    import pylibcudf

    if not Path(path).exists():
        raise FileNotFoundError(path)
    options = (
        pylibcudf.io.parquet.ParquetReaderOptions.builder(pylibcudf.io.SourceInfo([path]))
        .use_pandas_metadata(False)
        .ignore_missing_columns(False)
        .build()
    )
    options.set_row_groups([list(row_groups)])
    options.set_column_names(list(columns))
    return cudf.DataFrame.from_pylibcudf(pylibcudf.io.parquet.read_parquet(options))


def _device_array(column: Frame) -> Array:
    if column.dtype.kind == "M":
        whole = (
            column
            if column.dtype == np.dtype("datetime64[us]")
            else column.astype("datetime64[us]")
        )
        return _filled(whole.astype("int64"), NULL_TIME)
    if column.dtype.kind == "f" or column.null_count:
        return _filled(column.astype("float64"), np.nan)
    return column.values


def _filled(column: Frame, value: float) -> Array:
    """Return a column's values with nulls replaced."""
    if not column.null_count:
        return column.values
    missing = column.isnull().values
    values = column.fillna(0).values
    values[missing] = value
    return values
