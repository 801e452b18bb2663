"""Parquet files that cuDF reads and writes; they have the schema and metadata that pyarrow would
give them.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

Table = Any
"""pylibcudf's Table, or its TableWithMetadata."""
SHARE_OF_MEMORY = 0.1
"""Largest share of a GPU's memory that the columns of a file may take. cuDF needs several times as
much while it writes.
"""
MOST_BYTES = 4 << 30
"""Most bytes that they may take: the file is whole in the host's memory before it is written."""
BYTES_OF_VALUE = 8
"""Bytes that a value is taken for: those of a number, or of a short text."""
KEPT_TYPES = {
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
    pa.large_string(),
    pa.date32(),
}
"""Types that cuDF reads and writes as they are, besides integers and times."""
ARROW_SCHEMA = "ARROW:schema"
"""Key of the metadata by which pyarrow finds the exact types of columns."""


def fits(rows: int, columns: int, file_bytes: int) -> bool:
    """Whether a GPU can hold and write so many rows and columns at once.

    ``file_bytes`` is the size of the input: long texts take more than a value is taken for.
    """
    import cupy

    _, memory = cupy.cuda.Device().mem_info
    needed = max(rows * columns * BYTES_OF_VALUE, file_bytes)
    return bool(needed <= min(memory * SHARE_OF_MEMORY, MOST_BYTES))


def keeps(kind: pa.DataType) -> bool:
    """Whether cuDF reads and writes columns of a type as they are."""
    if pa.types.is_timestamp(kind):
        return kind.tz is None and kind.unit != "s"
    if pa.types.is_integer(kind):
        return True
    return kind in KEPT_TYPES


def read(path: str, row_groups: Sequence[int], columns: Sequence[str]) -> Table:
    """Read columns of some row groups; page checksums are not verified.

    cuDF's own reader would turn names of folders into columns, and columns into an index. Raises
    FileNotFoundError, and what pylibcudf raises for a damaged file.
    """
    from pylibcudf.io import SourceInfo, parquet

    if not Path(path).exists():
        raise FileNotFoundError(path)
    options = (
        parquet.ParquetReaderOptions.builder(SourceInfo([path]))
        .use_pandas_metadata(False)
        .ignore_missing_columns(False)
        .build()
    )
    options.set_row_groups([list(row_groups)])
    options.set_column_names(list(columns))
    return parquet.read_parquet(options)


def write(
    stored: Table,
    added: pa.Table,
    constants: Mapping[str, str | None],
    schema: pa.Schema,
    metadata: Mapping[str, str],
    group_rows: int,
) -> memoryview:
    """Return a Parquet file: the columns of ``read``, those of ``added`` (a table on the host), and
    a text column for each of ``constants``, which it repeats in every row.

    The file has ``schema``, whose columns are in this order, is compressed by zstd and has no page
    checksums. A row group has at most ``group_rows`` rows.
    """
    import pylibcudf
    from pylibcudf.io import SinkInfo, parquet
    from pylibcudf.io.types import CompressionType

    columns = dict(zip(stored.column_names(), stored.tbl.columns(), strict=True))
    columns |= zip(added.column_names, pylibcudf.Table.from_arrow(added).columns(), strict=True)
    for name, text in constants.items():
        scalar = pylibcudf.Scalar.from_arrow(pa.scalar(text, pa.string()))
        columns[name] = pylibcudf.Column.from_scalar(scalar, added.num_rows)
    table = pylibcudf.Table([columns[name] for name in schema.names])

    file = io.BytesIO()
    options = (
        parquet.ParquetWriterOptions.builder(SinkInfo([file]), table)
        .metadata(_described(table, schema.names))
        .key_value_metadata([{ARROW_SCHEMA: _encoded(schema), **metadata}])
        .compression(CompressionType.ZSTD)
        .utc_timestamps(False)
        .row_group_size_rows(group_rows)
        .build()
    )
    # Otherwise row groups would end at 128 MB.
    options.set_row_group_size_bytes(group_rows * len(schema.names) * 2 * BYTES_OF_VALUE)
    parquet.write_parquet(options)
    return file.getbuffer()


def _described(table: Table, names: Sequence[str]) -> Any:
    """Return cuDF's description of a table: the names of its columns, and that all may have
    nulls.
    """
    from pylibcudf.io.types import TableInputMetadata

    description = TableInputMetadata(table)
    for column, name in zip(description.column_metadata, names, strict=True):
        column.set_name(name)
        column.set_nullability(True)
    return description


def _encoded(schema: pa.Schema) -> str:
    """Return a schema in the form that pyarrow keeps it in a file."""
    return base64.b64encode(schema.serialize()).decode()
