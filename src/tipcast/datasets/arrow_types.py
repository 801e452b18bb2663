"""What a column's Arrow type means to a dataset: a number, a category, a time, or nothing."""

import pyarrow as pa


def is_number(kind: pa.DataType) -> bool:
    """Whether a column's type is a number, or nothing at all."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
    )


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of a type holds texts."""
    kind = value_type(kind)
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def kind_of(kind: pa.DataType) -> str:
    """Return ``number``, ``category``, ``time``, or nothing for a type that no model can use."""
    kind = value_type(kind)
    if is_text(kind):
        return "category"
    if is_number(kind) or pa.types.is_boolean(kind):
        return "" if pa.types.is_null(kind) else "number"
    return "time" if pa.types.is_timestamp(kind) or pa.types.is_date(kind) else ""


def value_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column's values, that of a dictionary's values too."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def plain_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column, texts of any type as plain strings."""
    return column.cast(pa.string()) if is_text(column.type) else column
