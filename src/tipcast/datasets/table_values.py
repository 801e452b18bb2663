"""Columns of a table that no device reads as they are stored: values are made of them on the
host.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tipcast.compute.base import Array
from tipcast.config.errors import TipcastError
from tipcast.datasets import csv_cells, table_features, text_form
from tipcast.datasets.arrow_types import is_text
from tipcast.datasets.base import RawColumn

Place = Callable[[int], str]
"""Says where in its file a row is, see ``FilePart.place``."""


def values_of(
    stored: pa.ChunkedArray, column: RawColumn, where: str, place: Place | None = None
) -> Array:
    """Return a column that is stored in another way than a device reads it as (rows,) float64, NaN
    for null.

    Numbers and codes of categories, int64 microseconds of days. D005 a text that says no number;
    D008 a value that may be of two categories. ``where`` is the file, for messages.
    """
    if pa.types.is_dictionary(stored.type):
        stored = stored.cast(stored.type.value_type)

    if column.type == "category" and is_text(stored.type):
        return _codes_of_texts(stored, column)
    if column.type == "category":
        return _codes_of_values(stored, column, where)
    if is_text(stored.type):
        return _numbers_of_texts(stored, column, where, place)

    # ids may be beyond 2^53
    return np.asarray(stored.cast(pa.float64(), safe=False).to_numpy())


def _codes_of_texts(texts: pa.ChunkedArray, column: RawColumn) -> Array:
    # a model of an earlier version may have them in any form
    categories = pa.array(text_form.texts_in_one_form(column.categories), pa.string())
    codes = pc.index_in(texts, value_set=categories)
    return np.asarray(codes.cast(pa.float64()).to_numpy())


def _codes_of_values(values: pa.ChunkedArray, column: RawColumn, where: str) -> Array:
    """Return the codes of numbers, booleans or times that training had as texts; D008 one may be
    of two.
    """
    encoded = values.combine_chunks().dictionary_encode()
    try:
        codes = table_features.codes(encoded.dictionary.to_pylist(), column.categories)
    except ValueError as problem:
        what = f"column {column.name!r}: {problem}"
        raise TipcastError("D008", where, what, "write it as text") from problem

    places = encoded.indices.fill_null(len(codes)).to_numpy(zero_copy_only=False)
    return np.array([*codes, np.nan])[places]


def _numbers_of_texts(
    texts: pa.ChunkedArray, column: RawColumn, where: str, place: Place | None
) -> Array:
    """Return the numbers that texts say, of a column of booleans 1 and 0; D005 a text says none."""
    if column.booleans:
        lower = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
        texts = pc.if_else(pc.equal(lower, "false"), "0", texts)
        texts = pc.if_else(pc.equal(lower, "true"), "1", texts)

    missing = text_form.texts_in_one_form(text.strip() for text in column.missing)
    absent = pa.array([*csv_cells.MISSING_TEXTS, *missing])
    values, odd = csv_cells.numbers(texts, absent)
    if odd is None:
        return np.asarray(values.to_numpy())

    what = f"column {column.name!r}: cannot read {texts[odd].as_py()[:40]!r} as a number"
    line = "" if place is None else place(odd)
    if line:
        what = f"{line}: {what}"
    raise TipcastError("D005", where, what, "correct it, or leave it empty")
