"""Reading of a table's columns: whether a file's columns fit those of training, which of them the
host reads, and the values that it makes of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tipcast.compute.base import Array, Frames
from tipcast.config.errors import TipcastError
from tipcast.datasets import address, csv_cells, text_form
from tipcast.datasets.arrow_types import column_type_of, is_text
from tipcast.datasets.base import RawColumn
from tipcast.datasets.listing import ScanRequest
from tipcast.datasets.parts import FilePart
from tipcast.datasets.table import dates as table_dates
from tipcast.datasets.table import features as table_features
from tipcast.datasets.table.groups import groups_of
from tipcast.datasets.table.scan import TableScan

Place = Callable[[int], str]
"""Says where in its file a row is, see ``FilePart.place``."""


def values_of(
    stored: pa.ChunkedArray,
    column: RawColumn,
    where: str,
    decimal: str = ".",
    place: Place | None = None,
) -> Array:
    """Return a column that is stored in another way than a device reads it as (rows,) float64, NaN
    for null.

    Numbers and codes of categories, int64 microseconds of days. ``where`` is the file, for
    messages, and ``decimal`` the decimal sign of numbers that are texts.

    Raises D005 for a text that says no number, D008 for a value that may be of two categories.
    """
    if pa.types.is_dictionary(stored.type):
        stored = stored.cast(stored.type.value_type)

    if column.type == "category" and is_text(stored.type):
        return _codes_of_texts(stored, column)
    if column.type == "category":
        return _codes_of_values(stored, column, where)
    if is_text(stored.type):
        return _numbers_of_texts(stored, column, where, decimal, place)

    # ids may be beyond 2^53
    return np.asarray(stored.cast(pa.float64(), safe=False).to_numpy())


def _codes_of_texts(texts: pa.ChunkedArray, column: RawColumn) -> Array:
    # a model of an earlier version may have them in any form
    categories = pa.array(text_form.texts_in_one_form(column.categories), pa.string())
    codes = pc.index_in(texts, value_set=categories)
    return np.asarray(codes.cast(pa.float64()).to_numpy())


def _codes_of_values(values: pa.ChunkedArray, column: RawColumn, where: str) -> Array:
    """Return the codes of numbers, booleans or times that training had as texts.

    Raises D008 if a value may be of two categories.
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
    texts: pa.ChunkedArray, column: RawColumn, where: str, decimal: str, place: Place | None
) -> Array:
    """Return the numbers that texts say, of a column of booleans 1 and 0.

    Raises D005 if a text says none.
    """
    if column.booleans:
        lower = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
        texts = pc.if_else(pc.equal(lower, "false"), "0", texts)
        texts = pc.if_else(pc.equal(lower, "true"), "1", texts)

    missing = text_form.texts_in_one_form(text.strip() for text in column.missing)
    absent = pa.array([*csv_cells.MISSING_TEXTS, *missing])
    values, odd = csv_cells.numbers(texts, absent, decimal)
    if odd is None:
        return np.asarray(values.to_numpy())

    what = f"column {column.name!r}: cannot read {texts[odd].as_py()[:40]!r} as a number"
    line = "" if place is None else place(odd)
    if line:
        what = f"{line}: {what}"
    raise TipcastError("D005", where, what, "correct it, or leave it empty")


@dataclass(frozen=True)
class ColumnReader:
    """Reads the columns of a table as training has them: files must have them so."""

    by_name: Mapping[str, RawColumn]
    """The time column apart."""
    time: str | None
    dates: str
    """How dates with slashes are written, a key of ``csv_cells.DATES``; empty: each file decides.
    """
    decimal: str = "."
    """The decimal sign of numbers that are texts."""
    group: str | None = None
    """The column of groups, apart from ``by_name`` too."""

    def type_of(self, name: str) -> str:
        """Return ``number``, ``category``, ``date``, ``time`` or ``group``."""
        if name == self.time:
            return "time"
        if name == self.group:
            return "group"
        return self.by_name[name].type

    def check(self, scan: TableScan, request: ScanRequest) -> None:
        """Refuse a file with other columns than it must have.

        Raises D007 for a missing column, D008 for another type.
        """
        where = address.shown(scan.uri)
        for name in request.columns:
            arrow_type = scan.types.get(name)
            if arrow_type is None:
                fix = (
                    "use a file that has it, or map the file's name "
                    f"with {request.key}={{{name}: ITS_NAME}}"
                )
                raise TipcastError("D007", where, f"missing column {name!r}", fix)
            if not self._fits(scan, name):
                what = f"column {name!r} is {arrow_type}, but data.train has a {self.type_of(name)}"
                raise TipcastError(
                    "D008", where, what, "write it with the type that it has in the training files"
                )

    def adapt_scan(self, scan: TableScan, optional: Sequence[str] = ()) -> TableScan:
        """Return the scan of a file with the columns that its parts can read, and which of them the
        host has to.

        ``optional`` columns that do not fit are left out.
        """
        names = [name for name in scan.types if name not in optional or self._fits(scan, name)]
        first = scan.parts[0]
        spellings = {name: first.columns[name] for name in names}
        on_host = [
            name for name in names if self._is_decoded_on_host(first, name, scan.types[name])
        ]

        parts = tuple(
            part.for_table(spellings, on_host, self.time, self.dates) for part in scan.parts
        )
        notes = scan.notes
        if scan.dates_note and not self.dates:
            notes = (*notes, scan.dates_note)
        return replace(scan, parts=parts, notes=notes)

    def read(self, part: FilePart, frames: Frames, names: Sequence[str]) -> dict[str, Array]:
        """Read columns of a part, on the host those whose values a device does not read as they are
        stored; ``Table.read`` calls it.
        """
        if not names:
            return {}

        on_host = [name for name in names if name in part.decoded_on_host]
        plain = [name for name in names if name not in on_host]
        arrays, table = part.read_arrays_and_table(frames, plain, on_host)
        where = address.shown(part.uri)

        for name in on_host:
            if name == self.time:  # the time may be days
                times = pa.table({name: table[name].cast(pa.timestamp("us"))})
                arrays |= frames.arrays(times, [name])
                continue
            if name == self.group:
                arrays[name] = frames.xp.asarray(groups_of(table[name]))
                continue

            column = self.by_name[name]
            if column.type == "date":
                values = table_dates.days_of(table[name], name, part.dates, where, part.place)
            else:
                values = values_of(table[name], column, where, self.decimal, part.place)
            arrays[name] = frames.xp.asarray(values)

        return {name: arrays[name] for name in names}

    def _fits(self, scan: TableScan, name: str) -> bool:
        """Whether the values of a file's column can be taken as training took them."""
        arrow_type = scan.types[name]
        if not scan.parts[0].typed or pa.types.is_null(arrow_type):
            return True
        if self.type_of(name) == "time":
            return column_type_of(arrow_type) == "time"
        if self.type_of(name) == "group":
            return True
        if self.type_of(name) == "date":
            return table_dates.can_be_dates(arrow_type)
        return column_type_of(arrow_type) in ("number", "category")

    def _is_decoded_on_host(self, part: FilePart, name: str, arrow_type: pa.DataType) -> bool:
        """Whether no device reads a column's values as they are stored."""
        if name == self.time:
            return part.typed and not pa.types.is_timestamp(arrow_type)
        if name == self.group:
            return True

        column = self.by_name.get(name)
        if column is None or column.type in ("category", "date"):
            return column is not None
        return is_text(arrow_type) and (part.typed or bool(column.booleans or column.missing))
