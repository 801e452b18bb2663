"""Texts in one Unicode form: an umlaut is one sign or two in files, and both are the same value."""

import unicodedata
from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa

from tipcast.config.errors import TipcastError
from tipcast.datasets.arrow_types import is_text

FORM: Final = "NFC"


def texts_in_one_form(texts: Iterable[str]) -> list[str]:
    """Return texts in the form that values of columns are read in."""
    return [unicodedata.normalize(FORM, text) for text in texts]


def table_in_one_form(table: pa.Table, where: str) -> pa.Table:
    """Return a table with its texts in one form. Raises D016 for one that is not UTF-8."""
    for at, name in enumerate(table.column_names):
        if not is_text(table[at].type):
            continue

        try:
            column = column_in_one_form(table[at])
        except ValueError as problem:
            what = f"column {name!r} contains text that is not UTF-8"
            raise TipcastError("D016", where, what, "write its text as UTF-8") from problem
        table = table.set_column(at, name, column)

    return table


def column_in_one_form(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of strings, (rows,), in one form; the column itself if it was so already.

    ASCII has one form alone, which costs a look at the bytes. Of other columns each distinct text
    is normalised once. ValueError: a text is not UTF-8.
    """
    if all(_is_ascii(chunk) for chunk in column.chunks):
        return column

    encoded = column.combine_chunks().dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    # Not by pyarrow.compute.utf8_normalize: it decomposes texts whatever the form.
    normal = texts_in_one_form(texts)
    if normal == texts:
        return column
    return pa.chunked_array([pa.array(normal, pa.string()).take(encoded.indices)])


def _is_ascii(texts: pa.StringArray) -> bool:
    """Whether no byte of an array's texts has the high bit of other signs than ASCII's."""
    _, offsets, content = texts.buffers()
    if content is None or not len(texts):
        return True

    ends = np.frombuffer(offsets, np.int32)[[texts.offset, texts.offset + len(texts)]]
    signs = np.frombuffer(content, np.int8)[slice(*ends)]
    return not len(signs) or bool(signs.min() >= 0)
