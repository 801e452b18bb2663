"""Groups of rows: numbers that stand for the values of a column."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tipcast.config.errors import TipcastError

WHOLE = r"^\s*\+?(-?)0*(\d+?)(\.0*)?\s*$"
"""A text that is a whole number: its sign, and its digits."""
EXACT = 2.0**53
"""Whole floats below it are exact."""


def groups_of(stored: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return (rows,) int64 numbers, the same for equal values in whatever type they are stored.

    Whole numbers are equal as numbers and texts, as 7, 7.0 and ``"007"``: to take two groups for
    one never puts a group on two sides. Rows without a value have one number in common.
    """
    if pa.types.is_dictionary(stored.type):
        stored = stored.cast(stored.type.value_type)

    encoded = stored.combine_chunks().dictionary_encode()
    texts = _texts(encoded.dictionary)
    with_missing = np.append(texts.to_numpy(zero_copy_only=False).astype(object), "")
    numbers: NDArray[np.int64] = pd.util.hash_array(with_missing).view(np.int64)
    places = encoded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    return np.asarray(numbers[places])


def _texts(values: pa.Array) -> pa.Array:
    """Return values as texts, whole numbers in one form."""
    if pa.types.is_floating(values.type):
        floats = values.to_numpy(zero_copy_only=False).astype(np.float64)
        whole = (np.abs(floats) < EXACT) & (floats == np.floor(floats))
        numbers = pa.array(np.where(whole, floats, 0).astype(np.int64)).cast(pa.string())
        return pc.if_else(pa.array(whole), numbers, values.cast(pa.string()))

    texts = values.cast(pa.string())
    return pc.replace_substring_regex(texts, WHOLE, r"\1\2")


def check_type(name: str, arrow_type: pa.DataType, where: str) -> None:
    """Refuse (D008) a column whose values have no text form, such as lists."""
    if pa.types.is_nested(arrow_type) or pa.types.is_binary(arrow_type):
        what = f"column {name!r} is {arrow_type}, which cannot define groups"
        raise TipcastError("D008", where, what, "write it as text or numbers")
