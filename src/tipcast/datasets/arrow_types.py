"""What a column's Arrow type means to a dataset: a number, a category, a time, or nothing."""

import json
import re

import pyarrow as pa

_UNNAMED_INDEX = re.compile(r"__index_level_\d+__|__null_dask_index__")


def is_number(arrow_type: pa.DataType) -> bool:
    """Whether a column's type is a number, or nothing at all."""
    return bool(
        pa.types.is_integer(arrow_type)
        or pa.types.is_floating(arrow_type)
        or pa.types.is_decimal(arrow_type)
        or pa.types.is_null(arrow_type)
    )


def is_text(arrow_type: pa.DataType) -> bool:
    """Whether a column of a type holds texts."""
    arrow_type = value_type(arrow_type)
    return bool(
        pa.types.is_string(arrow_type)
        or pa.types.is_large_string(arrow_type)
        or pa.types.is_string_view(arrow_type)
    )


def column_type_of(arrow_type: pa.DataType) -> str:
    """Return ``number``, ``category``, ``time``, or nothing for a type that no model can use."""
    arrow_type = value_type(arrow_type)
    if is_text(arrow_type):
        return "category"
    if is_number(arrow_type) or pa.types.is_boolean(arrow_type):
        return "" if pa.types.is_null(arrow_type) else "number"
    return "time" if pa.types.is_timestamp(arrow_type) or pa.types.is_date(arrow_type) else ""


def value_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return the type of a column's values, that of a dictionary's values too."""
    return arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type


def plain_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column, texts of any type as plain strings."""
    return column.cast(pa.string()) if is_text(column.type) else column


def index_columns(schema: pa.Schema) -> frozenset[str]:
    """Return the names of columns that were a DataFrame's index when the file was written."""
    pandas_metadata = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    noted = pandas_metadata.get("index_columns", ())
    # A writer may have left out what pandas noted.
    return frozenset(
        name for name in schema.names if name in noted or _UNNAMED_INDEX.fullmatch(name)
    )
