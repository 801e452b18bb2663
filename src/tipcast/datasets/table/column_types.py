"""How each column of a table is taken, by what the training files hold: as a number, a category or
no feature, and why.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from tipcast.config.errors import TipcastError, unknown
from tipcast.datasets.arrow_types import column_type_of, is_text
from tipcast.datasets.base import RawColumn
from tipcast.datasets.table import dates
from tipcast.datasets.table import features as table_features
from tipcast.datasets.table.column_stats import ABSENT, MOST_CATEGORIES, MOST_ODD, ColumnStats

TAKEN = ("number", "category", "text", "date", "none")
"""What ``data.types`` may say: ``text`` is a category of all texts but the empty one, NA too; of a
``date`` features are made; ``none`` is left out.
"""
LEFT_OUT = "left out"
"""Word for a column that is not a feature."""
FEW_TEXTS = 20
"""A column with more different texts, most of them of one row each, is left out: they are names of
rows.
"""
MOSTLY = 0.9
"""A column of texts is one of numbers where at least so much of it is, see ``MOST_ODD`` too."""
LIKE_NUMBER = re.compile(
    r"\s*[-+(]?\s*[^\w\s]{0,3}\s*\d[\d.,' ]*\s*(%|[^\W\d]{1,3}|[^\w\s]{1,3})?\)?\s*"
)
"""Numbers with a currency, a unit, a percent sign or separators of thousands."""
WITH_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*")
"""Texts that are no numbers, but would be where the comma is the decimal sign."""
READ_COMMAS = "if the comma is the decimal sign, set data.decimal=,"


@dataclass(frozen=True)
class StoredColumn:
    """A column as the training files have it."""

    name: str
    written: str
    """The name as it stands in the file."""
    type: pa.DataType
    stats: ColumnStats
    cells: bool
    """Whether the files are CSV: then a cell is a text until it is read as something else."""

    @property
    def shown_type(self) -> str:
        """The type for messages, of an extension its name."""
        return "text" if self.cells else str(getattr(self.type, "type_name", self.type))


@dataclass(frozen=True)
class Reading:
    """What the values of a column are read as."""

    type: str
    """``number``, ``category``, ``text``, ``date`` or ``time``; empty: nothing that a model can
    use.
    """
    note: str = ""
    """Why, where that may surprise."""


@dataclass(frozen=True)
class ColumnDecision:
    """What a column is taken for, and why."""

    name: str
    column: RawColumn | None
    """None: it is no feature."""
    stored: str
    stats: ColumnStats
    note: str = ""
    warns: bool = False
    """Whether the note says what a user may not expect."""
    may_be_date: bool = False
    """Whether ``data.types`` could take it for a date, and does not."""

    @property
    def lacks_values(self) -> bool:
        """Whether rows of the training files have no value, or a text that stands for none."""
        if self.stats.counts["missing"] > 0 or (self.column and self.column.missing):
            return True
        if self.column and self.column.type == "date":
            return 0 < self.stats.counts["dates"] < self.stats.present
        return any(text.strip().lstrip("+-").lower() == "nan" for text in self.stats.texts)

    def line(self) -> dict[str, Any]:
        """Return the column's row in the table of columns."""
        taken_as = self.column.type if self.column else LEFT_OUT
        if self.column and self.column.booleans:
            taken_as = "number (True is 1)"

        many = self.stats.many
        texts = self.column.categories if self.column else ()
        # data.types asks for it.
        read = sum(rows for text, rows in self.stats.absent.items() if text in texts)
        distinct = f"> {MOST_CATEGORIES:,}" if many else str(len(texts or self.stats.texts) or "")
        date_hint = dates.hint([self.name]) if self.may_be_date else ""

        return {
            "column": self.name,
            "stored as": self.stored,
            "taken as": taken_as,
            "missing": self.stats.counts["missing"] - read,
            "distinct": distinct,
            "note": "; ".join(filter(None, (self.note, date_hint))),
        }


def decide(stored: StoredColumn, asked: str | None) -> ColumnDecision:
    """Decide how a column is taken: as ``asked``, else as its type and values say.

    Raises C003 if it cannot be so.
    """
    may_be_date = asked is None and bool(stored.name) and _holds_dates(stored, all_rows=True)
    return replace(_decision(stored, asked), may_be_date=may_be_date)


def _decision(stored: StoredColumn, asked: str | None) -> ColumnDecision:
    if asked not in (None, *TAKEN):
        raise unknown("data.types", f"type of {stored.name}", asked, TAKEN, "C003")

    reading = _usual_reading(stored)
    is_usual = asked in (None, reading.type)
    if not stored.name:
        return _left_out(stored, "it has no name")
    if asked == "none":
        return _left_out(stored, "left out by data.types")
    if asked is not None and not is_usual:
        _check_asked(stored, asked, reading)
        note = f"used as data.types says, not as {reading.type or 'nothing'}"
        if asked == "date":
            note = f"features {', '.join(table_features.date_names(stored.name))}"
        reading = Reading(asked, note)

    reason = _why_no_feature(stored, reading)
    if asked is None and not reason:
        reason = _why_names_of_rows(stored, reading)
    if reason:
        return _left_out(stored, reason)

    return ColumnDecision(
        stored.name,
        _raw_column(stored, reading.type),
        stored.shown_type,
        stored.stats,
        reading.note,
        warns=bool(reading.note) and is_usual,
    )


def _usual_reading(stored: StoredColumn) -> Reading:
    """Return what a column's type and values say."""
    if not stored.stats.present:
        absent = stored.stats.absent
        return Reading("", "it has no value" + (f" but {_named(absent)}" if absent else ""))
    if is_text(stored.type):
        return _reading_of_texts(stored)
    return Reading(column_type_of(stored.type))


def _reading_of_texts(stored: StoredColumn) -> Reading:
    """Return what the values of a column of texts say."""
    stats = stored.stats
    if stored.cells and stats.are_times:
        return Reading("time")
    if stored.cells and stats.counts["booleans"] == stats.present:
        return Reading("number")

    are_numbers = (
        stats.counts["numbers"] >= MOSTLY * stats.present
        and len(stats.odd) <= MOST_ODD
        and not stats.counts["codes"]
        and not _has_decimal_commas(stats)
    )
    if are_numbers and stored.cells:
        return Reading("number", _note_of_numbers(stored))
    # two may well be classes, and the file says that it is text
    if are_numbers and len(stats.texts) != 2:
        note = (
            f"texts that are numbers{_exceptions(stats)}: "
            f"data.types={{{stored.name}: number}} reads them as numbers"
        )
        return Reading("category", note)

    return Reading("category", _note_of_categories(stored))


def _note_of_numbers(stored: StoredColumn) -> str:
    """Return a line on cells that are no numbers in a column of them; empty where all are."""
    exceptions = _exceptions(stored.stats)
    if not exceptions:
        return ""
    otherwise = f"data.types={{{stored.name}: category}} keeps them"
    return f"numbers{exceptions}: these become missing values; {otherwise}"


def _note_of_categories(stored: StoredColumn) -> str:
    """Return a line on texts that a user may take for numbers, dates or texts; empty otherwise."""
    stats = stored.stats
    numbers = stats.counts["numbers"]
    dates = stats.counts["dates"]
    texts = stats.texts or stats.odd
    with_signs = sum(bool(LIKE_NUMBER.fullmatch(" ".join(text.split()))) for text in texts)

    if numbers < stats.present:
        look_like_numbers = with_signs >= MOSTLY * len(texts) > 0
        mostly_numbers = numbers >= stats.present / 2
        if _has_decimal_commas(stats) and (look_like_numbers or mostly_numbers):
            return f"texts that look like numbers{_exceptions(stats)}: {READ_COMMAS}"
        if look_like_numbers:
            return "texts that look like numbers with a sign: write plain numbers to use quantities"
        if mostly_numbers:
            exceptions = _exceptions(stats)
            return f"{numbers:,} of its {stats.present:,} texts are numbers{exceptions}"
        if dates >= stats.present / 2:
            return f"{dates:,} of its {stats.present:,} texts are dates"

    if stored.cells and stats.absent:
        return (
            f"{_named(stats.absent)}: read as missing values; "
            f"data.types={{{stored.name}: text}} keeps them as text"
        )

    return ""


def _has_decimal_commas(stats: ColumnStats) -> bool:
    """Whether texts such as 1,5 are among those that are no numbers: quantities, none missing."""
    return any(WITH_COMMA.fullmatch(text) for text in stats.odd)


def _exceptions(stats: ColumnStats) -> str:
    """Return words on the texts of a column of numbers that are none, to follow what it is."""
    absent = {text: rows for text, rows in stats.absent.items() if text not in ABSENT}
    named = _named(stats.odd + Counter(absent))
    return f", but for {named}" if named else ""


def _named(counts: Counter[str]) -> str:
    """Return the three most frequent texts, each with its rows."""
    return ", ".join(
        f"{text!r} ({rows:,} row{'s' * (rows != 1)})" for text, rows in counts.most_common(3)
    )


def _check_asked(stored: StoredColumn, asked: str, usual: Reading) -> None:
    """Refuse what ``data.types`` asks for where the values are not so. Raises C003."""
    odd = stored.stats.odd
    if asked == "number":
        can_be = usual.type in ("category", "number") and len(odd) <= MOST_ODD
        can_be = can_be and not _has_decimal_commas(stored.stats)
    elif asked == "date":
        can_be = _holds_dates(stored, all_rows=False)
    else:
        can_be = is_text(stored.type)

    if not can_be:
        example = f" (as {next(iter(odd))!r})" if odd else ""
        what = f"column {stored.name!r} is {usual.type or 'nothing'}{example}, not {asked}"
        fix = "write the column that way, or leave the key out"
        if asked == "number" and _has_decimal_commas(stored.stats):
            fix = f"{fix}; {READ_COMMAS}"
        raise TipcastError("C003", "data.types", what, fix)


def _holds_dates(stored: StoredColumn, *, all_rows: bool) -> bool:
    """Whether values of a column can be dates: of texts all or some of them."""
    if not dates.can_be_dates(stored.type):
        return False
    if not is_text(stored.type):
        return stored.stats.present > 0
    return stored.stats.are_times if all_rows else stored.stats.counts["dates"] > 0


def _why_no_feature(stored: StoredColumn, reading: Reading) -> str:
    """Return why a column cannot be a feature; empty where it can."""
    if reading.type in ("number", "date"):
        return ""
    if reading.type == "time":
        return reading.note or "it holds times, by which data.time= can split the rows"
    if reading.type not in ("category", "text"):
        return reading.note or f"it is {stored.shown_type}"
    if not stored.stats.many:
        return ""

    reason = f"it has more than {MOST_CATEGORIES:,} distinct texts"
    return f"{reason}; {reading.note}" if reading.note else reason


def _why_names_of_rows(stored: StoredColumn, reading: Reading) -> str:
    """Return why texts are names of rows rather than categories; empty where they are not."""
    texts = len(stored.stats.texts)
    rows = stored.stats.present
    if reading.type != "category" or reading.note or texts <= max(rows / 2, FEW_TEXTS):
        return ""

    return (
        f"{texts:,} texts in {rows:,} rows look like names of rows: "
        f"data.types={{{stored.name}: category}} uses them"
    )


def _left_out(stored: StoredColumn, reason: str) -> ColumnDecision:
    return ColumnDecision(stored.name, None, stored.shown_type, stored.stats, reason)


def _raw_column(stored: StoredColumn, column_type: str) -> RawColumn:
    """Return a column of numbers or dates, or of ``column_type`` category or text, as a model has
    it.
    """
    stats = stored.stats
    # MLflow takes no column without a name
    spellings = tuple(dict.fromkeys(filter(None, (stored.written, stored.name))))

    if column_type == "date":
        return RawColumn(stored.name, spellings, "date", largest=None)
    if column_type == "number":
        booleans = pa.types.is_boolean(stored.type) or stats.counts["booleans"] == stats.present
        odd = () if booleans else stats.odd
        missing = sorted({*odd, *(stats.absent.keys() - ABSENT)})
        return RawColumn(
            stored.name, spellings, largest=None, missing=tuple(missing), booleans=booleans
        )

    absent = stats.absent if column_type == "text" else ()
    categories = sorted({*stats.texts, *absent})
    return RawColumn(stored.name, spellings, "category", categories=tuple(categories))


def notes(columns: Iterable[ColumnDecision]) -> list[str]:
    """Return lines of columns that are left out, those for one reason together, of those that may
    surprise, and of those that could be dates.
    """
    columns = list(columns)
    lines = []
    left_out: dict[str, list[str]] = {}
    for column in columns:
        if column.warns:
            lines.append(f"column {column.name}: {column.note}")
        if column.column is None:
            left_out.setdefault(column.note, []).append(column.name)

    for note, names in left_out.items():
        shown = ", ".join(name or "''" for name in names[:5])
        more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
        lines.append(f"column {shown}{more} is no feature: {note}")
    if could_be_dates := [column.name for column in columns if column.may_be_date]:
        lines.append(dates.hint(could_be_dates))

    return lines
