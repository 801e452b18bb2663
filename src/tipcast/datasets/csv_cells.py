"""What cells of CSV among numbers and times mean: missing values, forms of numbers, of dates and of
UTC.
"""

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

MISSING_TEXTS = [
    "",
    "#N/A",
    "#N/A N/A",
    "#NA",
    "-1.#IND",
    "-1.#QNAN",
    "-NaN",
    "-nan",
    "1.#IND",
    "1.#QNAN",
    "<NA>",
    "N/A",
    "NA",
    "NULL",
    "NaN",
    "None",
    "n/a",
    "nan",
    "null",
    "\\N",
]
"""What a CSV cell without a value may say: what pandas takes so, and PostgreSQL's."""
CSV_CHUNK = 8 << 20
"""Bytes that the CSV parser works on at once."""
_CLOCKS = (" %H:%M", " %H:%M:%S", " %I:%M:%S %p", " %I:%M %p", "")
_SPELLED = ("%Y/%m/%d", " %Y-%m-%d")  # a blank is for any number of blanks
_YEAR_FIRST = [
    "%Y-%m-%d %H:%M:%S UTC",
    *(f"{day}{clock}" for day in _SPELLED for clock in _CLOCKS),
]
_MONTH_FIRST = [f"%m/%d/%Y{clock}" for clock in _CLOCKS]
_DAY_FIRST = [f"%d/%m/%Y{clock}" for clock in _CLOCKS]
_DOTTED = [f"%d.%m.%Y{clock}" for clock in _CLOCKS]
DATES = {
    "iso": [pa.csv.ISO8601, *_YEAR_FIRST, *_DOTTED],
    "month_first": [pa.csv.ISO8601, *_MONTH_FIRST, *_YEAR_FIRST, *_DOTTED],
    "day_first": [pa.csv.ISO8601, *_DAY_FIRST, *_YEAR_FIRST, *_DOTTED],
}
"""How a CSV file writes its dates -> the formats tried in order on every cell.

The usual ones come first: reading a cell costs what all formats before its own cost.
"""
NUMBER = r"[-+]?((\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|(?i:inf(inity)?|nan))"
"""A cell, without blanks around it, that is a number in files of all formats and in rows to a saved
model. Its decimal sign is a point, see ``number_pattern``.
"""
ZONE_OF_UTC = r"(:\d\d(?:\.\d+)?) ?(?:UTC|Z|[-+]00(?::?00)?)$"
"""The end of a time that is marked as UTC, which is taken as wall-clock time; the group is what
stays.
"""
OTHER_ZONE = re.compile(r":\d\d(\.\d+)? ?[-+]\d\d(:?\d\d)?$")
_LATE_DAY = r"^\d+[-/]\d+[-/](29|30|31)\b|^(29|30|31)\.\d+\."
_LATE = {"iso": "", "month_first": r"|^\d+/(29|30|31)/", "day_first": r"|^(29|30|31)/\d+/"}
"""How a CSV file writes its dates -> those at the end of a month, which some months do not have."""
_LEAP_SECOND = r":6[01]\b"
_SHORT_YEAR = r"^\d{1,2}[/.]\d{1,2}[/.]\d{1,3}\b"
_ABSENT = pa.array(MISSING_TEXTS)
FAULT = re.compile(
    r"(?:CSV column #(?P<column>\d+): )?(?:CSV parse error: )?Row #(?P<row>\d+): "
    r"(?:Expected (?P<expected>\d+) columns, got (?P<fields>\d+)|.*invalid (?:UTF8 data|value "
    r"'(?P<value>.*)'))",
    re.DOTALL,
)
"""What pyarrow says of the first row that does not parse."""


def number_pattern(decimal: str) -> str:
    """Return ``NUMBER`` with another decimal sign."""
    return NUMBER.replace(r"\.", re.escape(decimal))


def numbers(
    texts: pa.ChunkedArray, absent: pa.Array = _ABSENT, decimal: str = "."
) -> tuple[Any, int | None]:
    """Read texts as float64, null where one is among ``absent`` without blanks around it.

    Returns None and the place of the first text that cannot be read where there is one.
    """
    bare = pc.utf8_trim_whitespace(texts)
    bare = pc.if_else(pc.is_in(bare, value_set=absent), None, bare)
    is_number = pc.match_substring_regex(bare, f"^({number_pattern(decimal)})$")
    odd = pc.index(is_number, value=False).as_py()
    if odd >= 0:
        return None, odd

    if decimal != ".":
        bare = pc.replace_substring(bare, decimal, ".")
    return bare.cast(pa.float64()), None


def times(texts: pa.ChunkedArray, dates: str) -> tuple[Any, int | None]:
    """Read texts as timestamps in microseconds; ``dates`` is a key of ``DATES``.

    Returns the timestamps, None where a text has no form of a time, and the place of the first text
    that is wrong.
    """
    bare = pc.utf8_trim_whitespace(texts)
    bare = pc.replace_substring_regex(bare, ZONE_OF_UTC, r"\1")
    rows = pa.BufferOutputStream()
    pa.csv.write_csv(pa.table({"time": bare}), rows, pa.csv.WriteOptions(include_header=False))
    reading = pa.csv.ReadOptions(use_threads=False, block_size=CSV_CHUNK, column_names=["time"])
    convert = pa.csv.ConvertOptions(
        column_types={"time": pa.timestamp("us")},
        null_values=MISSING_TEXTS,
        timestamp_parsers=DATES[dates],
    )
    form = pa.csv.ParseOptions(newlines_in_values=True)
    try:
        values = pa.csv.read_csv(pa.BufferReader(rows.getvalue()), reading, form, convert)["time"]
    except ValueError as problem:
        fault = FAULT.search(str(problem))
        if fault is None:
            raise
        return None, int(fault["row"]) - 1

    row = _first_odd_time(bare.combine_chunks(), values.combine_chunks(), dates)
    return values, row


def _first_odd_time(texts: pa.Array, values: pa.Array, dates: str) -> int | None:
    """Return the place of the first text whose time is not the one that it says; None: all are.

    The parsers of forms other than ISO 8601 make 2 March of 30 February, the next minute of a
    second beyond 59, and the year 19 of 02/28/19. Texts are looked at where the time that came out
    may be such a one, which few are.
    """
    is_suspect = pc.or_kleene(pc.less_equal(pc.day(values), 3), pc.less_equal(pc.second(values), 1))
    is_suspect = pc.or_kleene(is_suspect, pc.less(pc.year(values), 1000))
    suspects = pc.indices_nonzero(pc.fill_null(is_suspect, False))

    texts = texts.take(suspects)
    values = values.take(suspects)
    is_moved = pc.and_(
        pc.match_substring_regex(texts, _LATE_DAY + _LATE[dates]),
        pc.less_equal(pc.day(values), 3),
    )
    is_next_minute = pc.match_substring_regex(texts, _LEAP_SECOND)
    is_early = pc.match_substring_regex(texts, _SHORT_YEAR)

    is_odd = pc.or_(pc.or_(is_moved, is_next_minute), is_early)
    first = pc.index(is_odd, value=True).as_py()
    return None if first < 0 else suspects[first].as_py()
