"""NVIDIA GPUs: cuDF frames, and readers into CuPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tipcast.compute.base import Array, Frame
from tipcast.compute.cpu import NULL_TIME, CpuFrames


class GpuFrames(CpuFrames):
    """CuPy and cuDF, imported where a task runs, so that a driver needs no GPU."""

    real = np.float32
    batch_rows = 8_000_000
    """A task costs the same few milliseconds for up to about this many rows."""

    @property
    def xp(self) -> ModuleType:
        import cupy

        module: ModuleType = cupy
        return module

    def read_parquet(
        self, uri: str, row_groups: Sequence[int], columns: Sequence[str], storage_options: Mapping[str, Any]
    ) -> dict[str, Array]:
        """Read columns of some row groups; local files are decoded on the device, remote ones on the host.

        Only the host's reader verifies page checksums.
        """
        if "://" in uri:
            return super().read_parquet(uri, row_groups, columns, storage_options)
        frame = _decoded(uri, row_groups, columns)
        odd = [name for name in columns if not _is_plain(frame[name])]
        read = {name: _array(frame[name]) for name in columns if name not in odd}
        if odd:  # such as decimals, whose conversion must equal the host's to the last bit
            read |= super().read_parquet(uri, row_groups, odd, storage_options)
        return {name: read[name] for name in columns}

    def arrays(self, table: Any, names: Sequence[str]) -> dict[str, Array]:
        return {name: self.xp.asarray(values) for name, values in super().arrays(table, names).items()}

    def frame(self, values: Array, names: Sequence[str]) -> Frame:
        import cudf

        return cudf.DataFrame(values, columns=list(names), nan_as_null=False)

    def series(self, values: Array, name: str) -> Frame:
        import cudf

        return cudf.Series(values, name=name, nan_as_null=False)


def _decoded(path: str, row_groups: Sequence[int], columns: Sequence[str]) -> Frame:
    """Decode by pylibcudf: cuDF's own reader makes columns of folders' names, and an index of columns."""
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


def _is_plain(column: Frame) -> bool:
    kind = column.dtype
    return isinstance(kind, np.dtype) and kind.kind in "iufM"


def _array(column: Frame) -> Array:
    if column.dtype.kind == "M":
        whole = column if column.dtype == np.dtype("datetime64[us]") else column.astype("datetime64[us]")
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
