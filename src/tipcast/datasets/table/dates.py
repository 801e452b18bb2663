"""Columns of dates: which columns can be taken so, the day of each value, and what their features
are called.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tipcast.compute.base import Array
from tipcast.config.errors import TipcastError
from tipcast.datasets import csv_cells
from tipcast.datasets.arrow_types import is_text, value_type
from tipcast.datasets.base import RawColumn
from tipcast.datasets.table import features as table_features

FIRST_DAY = -719_162
"""The first day of the year 1, in days since 1970-01-01."""
LAST_DAY = 2_932_896
"""The last day of the year 9999."""
MOST_SHOWN = 5
SLASHED = r"^\s*(?P<first>\d{1,2})/(?P<second>\d{1,2})/(?P<year>\d{4})\b"
"""The beginning of a text that is a date with slashes, day or month first."""


def can_be_dates(arrow_type: pa.DataType) -> bool:
    """Whether values of a type can be dates: texts, days, and times without a zone or of UTC."""
    arrow_type = value_type(arrow_type)
    if pa.types.is_timestamp(arrow_type):
        return str(arrow_type.tz) in table_features.UTC
    return is_text(arrow_type) or pa.types.is_date(arrow_type)


def hint(names: Sequence[str]) -> str:
    """Return a line that names columns which could be dates, and what takes them so."""
    shown = names[:MOST_SHOWN]
    more = f" and {len(names) - MOST_SHOWN:,} more" if len(names) > MOST_SHOWN else ""
    if len(names) == 1 and names[0].isascii() and names[0].isidentifier():
        return f"{names[0]} could be a date: data.types.{names[0]}=date"

    kind = "a date" if len(names) == 1 else "dates"
    types = ", ".join(f"{name}: date" for name in shown)
    return f"{', '.join(shown)}{more} could be {kind}: data.types={{{types}}}"


def features_of(column: RawColumn) -> tuple[str, ...]:
    """Return the names of the features that a column makes, an indicator apart."""
    return table_features.date_names(column.name) if column.type == "date" else (column.name,)


def check_names(columns: Iterable[RawColumn], names: Collection[str], time: str | None) -> None:
    """Refuse dates whose features are called as columns of the files, ``names``, and a date that
    rows are split by. Raises C003.
    """
    for column in columns:
        if column.type != "date":
            continue
        if column.name == time:
            what = f"column {time!r} splits the rows (data.time) and cannot be a feature"
            raise TipcastError("C003", "data.types", what, "leave one of the two out")

        taken = set(features_of(column)).intersection(names)
        if taken:
            name = min(taken)
            what = (
                f"the date {column.name!r} makes the feature {name!r}, but a column has that name"
            )
            fix = f"give the column another name: data.columns={{NEW_NAME: {name}}}"
            raise TipcastError("C003", "data.types", what, fix)


def check_categorical(columns: Iterable[RawColumn], names: Collection[str]) -> None:
    """Refuse the days of a date as categories: they have no end. Raises C003."""
    for column in columns:
        days = f"{column.name}_days"
        if column.type == "date" and days in names:
            what = f"{days!r} counts days and cannot be categorical"
            raise TipcastError("C003", "task.categorical", what, "leave it out")


def dates_as_texts(days: Array) -> Array:
    """Return (rows,) float64 days since 1970-01-01 as texts such as 2019-02-28, None for NaN."""
    missing = np.isnan(days)
    texts = np.where(missing, 0, days).astype("datetime64[D]").astype(str).astype(object)
    texts[missing] = None
    return texts


def slashed_dates(texts: pa.Array) -> set[tuple[int, ...]]:
    """Return the distinct dates with slashes among texts, as their three numbers."""
    dates = pc.extract_regex(texts, SLASHED).drop_null()
    numbers = [digits.cast(pa.int64()).to_pylist() for digits in dates.flatten()]
    return set(zip(*numbers, strict=True))


def days_of(
    stored: pa.ChunkedArray, name: str, dates: str, where: str, place: Callable[[int], str]
) -> Array:
    """Return the days of a column's dates, times or texts: (rows,) float64 days since 1970-01-01,
    NaN for null and for texts that mean no value.

    ``dates`` says how dates with slashes are written, a key of ``csv_cells.DATES``; ``where`` is
    the file and ``place`` says where in it a row is, for messages.

    Raises D005 for a value that is not a date of the years 1 to 9999.
    """
    if pa.types.is_dictionary(stored.type):
        stored = stored.cast(stored.type.value_type)
    days, row, reason = (_of_texts if is_text(stored.type) else _of_times)(stored, dates)
    if row is None:
        return days

    cell = stored.slice(row, 1).cast(pa.string())[0].as_py()[:40]
    what = f"column {name!r}: {cell!r} {reason}"
    if line := place(row):
        what = f"{line}: {what}"
    raise TipcastError("D005", where, what, "write it as 2019-02-28, or leave it empty")


def _of_times(stored: pa.ChunkedArray, dates: str) -> tuple[Array, int | None, str]:
    """Return the days of times or days, and the row of the first that is of no year from 1 to 9999,
    with what it is.
    """
    days = np.asarray(
        stored.cast(pa.date32(), safe=False).cast(pa.int32()).cast(pa.float64()).to_numpy()
    )
    odd = np.flatnonzero((days < FIRST_DAY) | (days > LAST_DAY))
    return days, int(odd[0]) if len(odd) else None, "is outside the years 1 to 9999"


def _of_texts(stored: pa.ChunkedArray, dates: str) -> tuple[Array, int | None, str]:
    """Return the days of texts, and the row of the first that is not a date, with what it is."""
    bare = pc.utf8_trim_whitespace(stored)
    bare = pc.if_else(pc.is_in(bare, pa.array(csv_cells.MISSING_TEXTS)), None, bare)
    # with one time of the day for all, few texts differ
    written = pc.replace_substring_regex(bare, table_features.CLOCK, " 00:00").combine_chunks()
    encoded = written.dictionary_encode()
    days, odd, reason = table_features.days(encoded.dictionary.to_pylist(), dates)
    if odd is not None:
        return np.empty(0), pc.index(encoded.indices, odd).as_py(), reason

    places = encoded.indices.fill_null(len(days)).to_numpy(zero_copy_only=False)
    return np.array([*days, np.nan])[places], None, ""
