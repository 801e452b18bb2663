"""What the columns of a table's training files hold: one pass over all rows decides how each is
taken, and says so.
"""

import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tipcast.compute.base import Array
from tipcast.config.errors import TipcastError, unknown
from tipcast.datasets import address, csv_cells, table_features, text_form
from tipcast.datasets.arrow_types import is_text, kind_of
from tipcast.datasets.base import RawColumn
from tipcast.datasets.parts import FilePart
from tipcast.datasets.table_scan import TableScan

TAKEN = ("number", "category", "text", "none")
"""What ``data.types`` may say: ``text`` is a category of all texts but the empty one, NA too;
``none`` is left out.
"""
LEFT_OUT = "left out"
"""Word for a column that is not a feature."""
MOST_CATEGORIES = 10_000
"""A column with more different texts is no feature."""
FEW_TEXTS = 20
"""A column with more different texts, most of them of one row each, is left out: they are names of
rows.
"""
MOSTLY = 0.9
MOST_ODD = 10
"""A column of texts is one of numbers where at least so much of it is, and at most so many
different texts are not.
"""
CODE = r"[-+]?(0\d+|\d{17,})"
"""A whole number that loses digits as a float64 does, or its zeros in front."""
DATE = (
    r"(\d{4}-\d{2}-\d{2}|\d{4}/\d{1,2}/\d{1,2}|\d{1,2}/\d{1,2}/\d{4})"
    r"([ T]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?[AP]M)?( ?(UTC|Z|[-+]\d{2}(:?\d{2})?))?)?"
)
LIKE_NUMBER = re.compile(
    r"\s*[-+(]?\s*[^\w\s]{0,3}\s*\d[\d.,' ]*\s*(%|[^\W\d]{1,3}|[^\w\s]{1,3})?\)?\s*"
)
"""Numbers with a currency, a unit, a percent sign or separators of thousands."""
ABSENT = frozenset(csv_cells.MISSING)
ABSENT_TEXTS = pa.array(csv_cells.MISSING)


@dataclass
class Seen:
    """What one column holds, in all rows of all training files."""

    counts: Counter[str] = field(default_factory=Counter)
    """Rows, and those of them that are missing or of a kind, see ``add``."""
    texts: Counter[str] = field(default_factory=Counter)
    """Different texts, missing ones apart; empty once there are too many."""
    odd: Counter[str] = field(default_factory=Counter)
    """Texts that are no numbers, the first of them."""
    absent: Counter[str] = field(default_factory=Counter)
    """Texts that stand for no value, as they are written; the empty one apart."""
    many: bool = False
    """Whether the texts are more than can be categories."""

    @property
    def present(self) -> int:
        """Rows with a value."""
        return self.counts["rows"] - self.counts["missing"]

    def add(self, other: Self) -> None:
        """Add what another part of the files holds."""
        self.counts.update(other.counts)
        self.absent.update(other.absent)
        self.odd.update(other.odd)
        self.texts.update(other.texts)
        self.many = self.many or other.many or len(self.texts) > MOST_CATEGORIES
        if self.many:
            self.texts.clear()

    @property
    def are_times(self) -> bool:
        """Whether all values are dates."""
        return self.present == self.counts["dates"] > 0


def count(column: pa.ChunkedArray, *, cells: bool, many: bool = False) -> Seen:
    """Count one part's texts; of ``cells``, those of CSV, some stand for no value, elsewhere the
    empty one alone.

    All is Arrow's work, of which threads do some at once, but for the few texts that are
    remembered: none where other parts have too ``many`` already.
    """
    if not is_text(column.type):  # a footer without statistics
        return Seen(Counter(rows=len(column), missing=column.null_count))

    pairs = pc.value_counts(column.combine_chunks())
    texts = pairs.field("values")
    counts = pairs.field("counts")
    bare = pc.utf8_trim_whitespace(texts)
    absent = pc.is_in(*((bare, ABSENT_TEXTS) if cells else (texts, pa.array([""]))))
    absent = pc.or_(absent, pc.is_null(texts))
    is_number = pc.and_(_matches(bare, csv_cells.NUMBER), pc.invert(absent))
    other = pc.invert(pc.or_(is_number, absent))
    kinds = {
        "missing": absent,
        "numbers": is_number,
        # no quantities: zeros in front, or too many digits
        "codes": pc.and_(is_number, _matches(bare, CODE)),
        "dates": pc.and_(other, _matches(bare, DATE)),
        "booleans": pc.and_(other, pc.is_in(pc.utf8_lower(bare), pa.array(["true", "false"]))),
    }
    rows = {kind: pc.sum(counts.filter(mask)).as_py() or 0 for kind, mask in kinds.items()}
    many = many or len(texts) > MOST_CATEGORIES

    return Seen(
        Counter(rows | {"rows": len(column)}),
        Counter() if many else _pairs(pairs, pc.invert(absent)),
        _pairs(pairs, other, MOST_ODD + 1),
        _pairs(pairs, pc.and_(absent, pc.not_equal(texts, ""))),  # of a null neither is true
        many,
    )


def _matches(texts: pa.Array, pattern: str) -> pa.Array:
    """Return which texts, whole, are of a pattern; no null is."""
    return pc.fill_null(pc.match_substring_regex(texts, f"^({pattern})$"), fill_value=False)


def _pairs(pairs: pa.StructArray, mask: pa.Array, most: int | None = None) -> Counter[str]:
    """Return the texts that a mask chooses, at most so many, and the rows of each."""
    chosen = pairs.filter(mask).slice(0, most)
    return Counter(
        dict(
            zip(chosen.field("values").to_pylist(), chosen.field("counts").to_pylist(), strict=True)
        )
    )


@dataclass(frozen=True)
class Taken:
    """How a column is taken."""

    name: str
    column: RawColumn | None
    """None: it is no feature."""
    stored: str
    seen: Seen
    note: str = ""
    warns: bool = False
    """Whether the note says what a user may not expect."""

    @property
    def lacks_values(self) -> bool:
        """Whether rows of the training files have no value, or a text that stands for none."""
        if self.seen.counts["missing"] > 0 or (self.column and self.column.missing):
            return True
        return any(text.strip().lstrip("+-").lower() == "nan" for text in self.seen.texts)

    def line(self) -> dict[str, Any]:
        """Return the column's row in the table of columns."""
        kind = self.column.type if self.column else LEFT_OUT
        if self.column and self.column.booleans:
            kind = "number (True is 1)"

        many = self.seen.many
        texts = self.column.categories if self.column else ()
        # as data.types asks for
        read = sum(rows for text, rows in self.seen.absent.items() if text in texts)
        distinct = f"> {MOST_CATEGORIES:,}" if many else str(len(texts or self.seen.texts) or "")

        return {
            "column": self.name,
            "stored as": self.stored,
            "taken as": kind,
            "missing": self.seen.counts["missing"] - read,
            "distinct": distinct,
            "note": self.note,
        }


def types_of(scans: Sequence[TableScan], left_out: Collection[str]) -> dict[str, pa.DataType]:
    """Return the type of each column that all files have, indexes apart; D008 where it has two.

    A column without a value in one file has its type from another; those in ``left_out`` may have
    any.
    """
    first = scans[0]
    types = dict(first.types)
    for scan in scans[1:]:
        one, other = (each.fragments[0].file_format for each in (first, scan))
        if one != other:
            what = f"is {other} where {address.shown(first.uri)} is {one}"
            raise TipcastError(
                "D008", address.shown(scan.uri), what, "write all files of data.train in one format"
            )

        for name in (types.keys() & scan.types.keys()) - set(left_out):
            one = types[name]
            other = scan.types[name]
            if pa.types.is_null(one):
                types[name] = other
            elif not pa.types.is_null(other) and (
                kind_of(one) != kind_of(other)
                or pa.types.is_boolean(one) != pa.types.is_boolean(other)
            ):
                what = f"column {name!r} is {other} where {address.shown(first.uri)} has {one}"
                raise TipcastError(
                    "D008", address.shown(scan.uri), what, "write it as one type in all files"
                )

    shared = set(types).intersection(*(scan.types for scan in scans)) - set(first.index)
    return {name: kind for name, kind in types.items() if name in shared}


def look(scans: Iterable[TableScan], types: Mapping[str, pa.DataType]) -> dict[str, Seen]:
    """Count what columns hold in all files: texts are read, of other columns footers tell; D-errors
    of reading.

    ``types`` are those of the columns as they are stored; every column of CSV is text.
    """
    seen = {name: Seen() for name in types}

    def look_at(part: FilePart, names: Sequence[str]) -> list[Seen]:
        table = part.read_on_host(dict.fromkeys(names, pa.string()))
        return [count(table[name], cells=not part.typed, many=seen[name].many) for name in names]

    with ThreadPoolExecutor(address.AT_ONCE) as pool:
        parts: deque[tuple[list[str], Future[list[Seen]]]] = deque()
        for scan in scans:
            missing = scan.missing
            present = [name for name in seen if name in scan.types]
            read = [name for name in present if is_text(scan.types[name]) or name not in missing]
            if read:
                parts += [(read, pool.submit(look_at, part, read)) for part in scan.fragments]
            for name in set(present).difference(read):
                seen[name].counts.update(rows=scan.rows, missing=missing[name])

        while parts:  # and no list of all, as the texts of many parts would fill the memory
            names, part = parts.popleft()
            for name, other in zip(names, part.result(), strict=True):
                seen[name].add(other)

    return seen


def take(
    name: str, written: str, kind: pa.DataType, seen: Seen, asked: str | None, *, cells: bool
) -> Taken:
    """Decide how a column is taken: as ``asked``, else as its type and values say; C003 it cannot
    be so.

    ``written`` is the name as it stands in the file, ``cells`` whether that is CSV.
    """
    # MLflow takes no column without a name
    spellings = tuple(dict.fromkeys(filter(None, (written, name))))
    own = kind_of(kind)
    note = ""
    shown = "text" if cells else str(getattr(kind, "type_name", kind))  # of an extension its name
    if asked not in (None, *TAKEN):
        raise unknown("data.types", f"type of {name}", asked, TAKEN, "C003")

    if not seen.present:
        own = ""
        note = "it has no value" + (f" but {_named(seen.absent)}" if seen.absent else "")
    elif is_text(kind):
        own, note = _of_texts(name, seen, cells=cells)

    usual = own
    if not name:
        return Taken(name, None, shown, seen, "it has no name")
    if asked == "none":
        return Taken(name, None, shown, seen, "left out by data.types")

    if asked not in (None, own):
        takes_numbers = own in ("category", "number") and len(seen.odd) <= MOST_ODD
        if not (takes_numbers if asked == "number" else is_text(kind)):
            example = f" (as {next(iter(seen.odd))!r})" if seen.odd else ""
            what = f"column {name!r} is {own or 'nothing'}{example}, not {asked}"
            raise TipcastError(
                "C003", "data.types", what, "write the column so, or leave the key out"
            )
        own, note = asked, f"taken as data.types says, not as {own or 'nothing'}"

    column = None
    if own == "number":
        booleans = pa.types.is_boolean(kind) or seen.counts["booleans"] == seen.present
        missing = sorted({*(() if booleans else seen.odd), *(seen.absent.keys() - ABSENT)})
        column = RawColumn(name, spellings, largest=None, missing=tuple(missing), booleans=booleans)
    elif own in ("category", "text") and seen.many:
        note = f"it has more than {MOST_CATEGORIES:,} different texts" + (
            f"; {note}" if note else ""
        )
    elif (
        own == "category"
        and not note
        and asked is None
        and len(seen.texts) > max(seen.present / 2, FEW_TEXTS)
    ):
        note = (
            f"{len(seen.texts):,} texts in {seen.present:,} rows name rows: "
            f"data.types={{{name}: category}} takes them"
        )
    elif own in ("category", "text"):
        categories = tuple(sorted({*seen.texts, *(seen.absent if own == "text" else ())}))
        column = RawColumn(name, spellings, "category", categories=categories)
    else:
        note = note or ("a time is split by with data.time=" if own == "time" else f"it is {shown}")

    return Taken(
        name, column, shown, seen, note, warns=bool(column and note and asked in (None, usual))
    )


def _of_texts(name: str, seen: Seen, *, cells: bool) -> tuple[str, str]:
    """Return what a column of texts is taken for, and why where that may surprise."""
    present, (numbers, dates) = seen.present, (seen.counts[kind] for kind in ("numbers", "dates"))
    if cells and seen.are_times:
        return "time", ""
    if cells and seen.counts["booleans"] == present:
        return "number", ""

    named = _named(
        seen.odd + Counter({text: rows for text, rows in seen.absent.items() if text not in ABSENT})
    )
    but = f", but for {named}" if named else ""
    if numbers >= MOSTLY * present and len(seen.odd) <= MOST_ODD and not seen.counts["codes"]:
        if cells:
            note = (
                f"numbers{but}: these are missing values; data.types={{{name}: category}} otherwise"
            )
            return "number", note if named else ""
        if len(seen.texts) != 2:  # two may well be classes, and the file says that it is text
            return (
                "category",
                f"texts that are numbers{but}: data.types={{{name}: number}} takes them so",
            )

    texts = seen.texts or seen.odd
    with_signs = sum(bool(LIKE_NUMBER.fullmatch(" ".join(text.split()))) for text in texts)
    if numbers < present and with_signs >= MOSTLY * len(texts) > 0:
        return (
            "category",
            "texts that look like numbers with a sign: write them as numbers to have quantities",
        )

    for kind, rows in (("numbers", numbers), ("dates", dates)):
        if present / 2 <= rows and numbers < present:
            return (
                "category",
                f"{rows:,} of its {present:,} texts are {kind}{but if kind == 'numbers' else ''}",
            )

    if cells and seen.absent:
        named = _named(seen.absent)
        return (
            "category",
            f"{named}: taken for missing values; data.types={{{name}: text}} takes them for texts",
        )

    return "category", ""


def _named(counts: Counter[str]) -> str:
    """Return the three most frequent texts, each with its rows."""
    return ", ".join(
        f"{text!r} ({rows:,} row{'s' * (rows != 1)})" for text, rows in counts.most_common(3)
    )


def notes(taken: Sequence[Taken]) -> list[str]:
    """Return lines of columns that are left out, those for one reason together, and of those that
    may surprise.
    """
    left: dict[str, list[str]] = {}
    for each in taken:
        if each.column is None:
            left.setdefault(each.note, []).append(each.name)
    lines = [f"column {each.name}: {each.note}" for each in taken if each.warns]
    for note, names in left.items():
        shown = ", ".join(name or "''" for name in names[:5])
        more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
        lines.append(f"column {shown}{more} is no feature: {note}")
    return lines


def values_of(
    column: pa.ChunkedArray, known: RawColumn, where: str, place: Callable[[int], str] | None = None
) -> Array:
    """Return a column that is stored in another way than a device reads it as (rows,) float64, NaN
    for null.

    Numbers and codes of categories, int64 microseconds of days. D005 a text that is no number;
    ``place`` says where a row is, see ``FilePart.place``.
    """
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)

    if known.type == "category":
        if is_text(column.type):
            # a model of an earlier version may have them in any form
            texts = pa.array(text_form.texts_in_one_form(known.categories), pa.string())
            codes = pc.index_in(column, value_set=texts)
            return np.asarray(codes.cast(pa.float64()).to_numpy())
        found = column.combine_chunks().dictionary_encode()
        try:
            codes = table_features.codes(found.dictionary.to_pylist(), known.categories)
        except ValueError as problem:
            raise TipcastError(
                "D008", where, f"column {known.name!r}: {problem}", "write it as text"
            ) from problem
        places = found.indices.fill_null(len(codes)).to_numpy(zero_copy_only=False)
        return np.array([*codes, np.nan])[places]

    if not is_text(column.type):
        # ids may be beyond 2^53
        return np.asarray(column.cast(pa.float64(), safe=False).to_numpy())

    if known.booleans:
        lower = pc.utf8_lower(pc.utf8_trim_whitespace(column))
        column = pc.if_else(
            pc.equal(lower, "true"), "1", pc.if_else(pc.equal(lower, "false"), "0", column)
        )

    missing = text_form.texts_in_one_form(text.strip() for text in known.missing)
    absent = pa.array([*csv_cells.MISSING, *missing])
    values, odd = csv_cells.numbers(column, absent)
    if odd is not None:
        what = f"column {known.name!r}: cannot read {column[odd].as_py()[:40]!r} as a number"
        if place is not None and (line := place(odd)):
            what = f"{line}: {what}"
        raise TipcastError("D005", where, what, "correct it, or leave it empty")

    return np.asarray(values.to_numpy())
