"""Frame libraries of each device: readers that decode columns into arrays, and frames of arrays."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tipcast.compute import gpu_parquet
from tipcast.compute.base import Array, Frame

NULL_TIME = np.iinfo(np.int64).min
"""Stands for a missing timestamp."""


class CpuFrames:
    """NumPy, pandas and pyarrow, without state.

    A call uses one thread, because Dask runs one call per core. Columns come back as 1-D arrays of
    the device: timestamps as int64 microseconds since the epoch with the smallest int64 for null;
    integers without nulls as they are; every other number as float64 with NaN for null.
    """

    real: type[np.floating[Any]] = np.float64
    """Type of targets that are values. Scikit-learn sums in it: with rounded targets, a few nodes
    of a tree would split elsewhere.
    """
    on_gpu = False
    rows_on_host = False
    """Whether rows that a GPU has prepared wait in the host's memory."""
    batch_values = 0
    """Values, rows times columns, that one task should read; 0 for one part per task, which fits a
    core's cache.
    """

    @property
    def xp(self) -> ModuleType:
        """The array module."""
        return np

    def batch_rows(self, columns: int) -> int:
        """Return the rows of so many columns that one task should read; 0 for one part per task."""
        return self.batch_values // max(columns, 1)

    def read_parquet(
        self,
        uri: str,
        row_groups: Sequence[int],
        columns: Sequence[str],
        storage_options: Mapping[str, object],
    ) -> dict[str, Array]:
        """Read columns of some row groups, by their names in the file.

        Page checksums are verified if the file has them. Raises OSError, ValueError or RuntimeError
        if the bytes are not what the footer says.
        """
        remote = "://" in uri
        with _opened(uri, storage_options) as source:
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


def _opened(uri: str, storage_options: Mapping[str, object]) -> AbstractContextManager[Any]:
    """Open a remote file; a local one is mapped into memory by its path."""
    if "://" not in uri:
        return nullcontext(uri)
    file: AbstractContextManager[Any] = fsspec.open(uri, "rb", **storage_options)
    return file


def _array(column: pa.ChunkedArray) -> Array:
    """Return a column's values on the host, as ``CpuFrames`` says."""
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
    batch_values = 64_000_000
    """A task costs the same few milliseconds for up to about this many values."""

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
        storage_options: Mapping[str, object],
    ) -> dict[str, Array]:
        """Read columns of some row groups.

        Local files are decoded on the device, which verifies no page checksums.
        """
        import cudf

        if "://" in uri:
            return super().read_parquet(uri, row_groups, columns, storage_options)

        frame = cudf.DataFrame.from_pylibcudf(gpu_parquet.read(uri, row_groups, columns))
        # The host converts decimals, so that they are equal to the last bit on both devices.
        host_names = [
            name
            for name, kind in frame.dtypes.items()
            if not isinstance(kind, np.dtype) or kind.kind not in "iufM"
        ]
        read = {name: _device_array(frame[name]) for name in columns if name not in host_names}
        if host_names:
            read |= super().read_parquet(uri, row_groups, host_names, storage_options)

        return {name: read[name] for name in columns}

    def arrays(self, table: pa.Table, names: Sequence[str]) -> dict[str, Array]:
        return {
            name: self.xp.asarray(values) for name, values in super().arrays(table, names).items()
        }

    def frame(self, values: Array, names: Sequence[str]) -> Frame:
        import cudf

        return cudf.DataFrame(values, columns=list(names), nan_as_null=False)

    def series(self, values: Array, name: str) -> Frame:
        import cudf

        return cudf.Series(values, name=name, nan_as_null=False)


class GpuFramesOnHost(GpuFrames):
    """Frames of a GPU whose memory is too small for all rows at once."""

    rows_on_host = True


def _device_array(column: Frame) -> Array:
    """Return a column's values on the device, as ``CpuFrames`` says."""
    if column.dtype.kind == "M":
        if column.dtype != np.dtype("datetime64[us]"):
            column = column.astype("datetime64[us]")
        return _filled(column.astype("int64"), NULL_TIME)
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
