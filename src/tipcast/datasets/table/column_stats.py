"""What the columns of a table's files hold, counted over all rows: missing values, numbers, dates,
different texts; and NaN.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from tipcast.datasets import address, csv_cells
from tipcast.datasets.arrow_types import is_text, value_type
from tipcast.datasets.parts import FilePart
from tipcast.datasets.table.dates import slashed_dates
from tipcast.datasets.table.scan import TableScan

MOST_CATEGORIES = 10_000
"""A column with more different texts is no feature."""
MOST_ODD = 10
"""A column is one of numbers where at most so many different texts are not."""
CODE = r"[-+]?(0\d+|\d{17,})"
"""A whole number that loses digits as a float64 does, or its zeros in front."""
DATE = (
    r"(\d{4}-\d{2}-\d{2}|\d{4}/\d{1,2}/\d{1,2}|\d{1,2}/\d{1,2}/\d{4}|\d{1,2}\.\d{1,2}\.\d{4})"
    r"([ T]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?[AP]M)?( ?(UTC|Z|[-+]\d{2}(:?\d{2})?))?)?"
)
COLUMNS_AT_ONCE = 16
"""Columns of a part that a thread reads together, so that wide tables do not fill the memory."""
ABSENT = frozenset(csv_cells.MISSING_TEXTS)
ABSENT_TEXTS = pa.array(csv_cells.MISSING_TEXTS)


@dataclass
class ColumnStats:
    """What one column holds, in all rows of all training files."""

    counts: Counter[str] = field(default_factory=Counter)
    """Rows, and those of them that are missing or of a kind, see ``count_part``."""
    texts: Counter[str] = field(default_factory=Counter)
    """Different texts, missing ones apart; empty once there are too many."""
    odd: Counter[str] = field(default_factory=Counter)
    """Texts that are no numbers, the first of them."""
    absent: Counter[str] = field(default_factory=Counter)
    """Texts that stand for no value, as they are written; the empty one apart."""
    many: bool = False
    """Whether the texts are more than can be categories."""
    slashed: set[tuple[int, ...]] = field(default_factory=set)
    """Distinct dates with slashes, as their three numbers; of CSV the scan of the file has them."""

    @property
    def present(self) -> int:
        """Rows with a value."""
        return self.counts["rows"] - self.counts["missing"]

    def add(self, other: Self) -> None:
        """Add what another part of the files holds."""
        self.counts.update(other.counts)
        self.absent.update(other.absent)
        self.odd.update(other.odd)
        self.slashed.update(other.slashed)
        self.texts.update(other.texts)
        self.many = self.many or other.many or len(self.texts) > MOST_CATEGORIES
        if self.many:
            self.texts.clear()

    @property
    def are_times(self) -> bool:
        """Whether all values are dates."""
        return self.present == self.counts["dates"] > 0


def count_columns(
    scans: Iterable[TableScan], types: Mapping[str, pa.DataType], decimal: str = "."
) -> dict[str, ColumnStats]:
    """Count what columns hold in all files: texts are read, of other columns footers tell.

    ``types`` are those of the columns as they are stored; every column of CSV is text.
    ``decimal`` is the decimal sign of texts that are numbers.

    Raises D-errors of reading.
    """
    stats = {name: ColumnStats() for name in types}

    def count_texts(part: FilePart, names: Sequence[str]) -> list[ColumnStats]:
        table = part.read_arrow(dict.fromkeys(names, pa.string()))
        return [
            count_part(table[name], cells=not part.typed, many=stats[name].many, decimal=decimal)
            for name in names
        ]

    with ThreadPoolExecutor(address.AT_ONCE) as pool:
        parts: deque[tuple[list[str], Future[list[ColumnStats]]]] = deque()
        for scan in scans:
            missing = scan.null_counts
            present = [name for name in stats if name in scan.types]
            to_read = [name for name in present if is_text(scan.types[name]) or name not in missing]

            if to_read:
                parts += [(to_read, pool.submit(count_texts, part, to_read)) for part in scan.parts]
            for name in set(present).difference(to_read):
                stats[name].counts.update(rows=scan.rows, missing=missing[name])

        while parts:  # and no list of all, as the texts of many parts would fill the memory
            names, part = parts.popleft()
            for name, of_part in zip(names, part.result(), strict=True):
                stats[name].add(of_part)

    return stats


def count_part(
    column: pa.ChunkedArray, *, cells: bool, many: bool = False, decimal: str = "."
) -> ColumnStats:
    """Count one part's texts; of ``cells``, those of CSV, some stand for no value, elsewhere the
    empty one alone.

    All is Arrow's work, of which threads do some at once, but for the few texts that are
    remembered: none where other parts have too ``many`` already.
    """
    if not is_text(column.type):  # a footer without statistics
        return ColumnStats(Counter(rows=len(column), missing=column.null_count))

    pairs = pc.value_counts(column.combine_chunks())
    texts = pairs.field("values")
    kinds = _kinds_of_texts(texts, csv_cells.number_pattern(decimal), cells=cells)
    absent = kinds["missing"]
    is_odd = pc.invert(pc.or_(kinds["numbers"], absent))

    counts = pairs.field("counts")
    rows = {kind: pc.sum(counts.filter(mask)).as_py() or 0 for kind, mask in kinds.items()}
    many = many or len(texts) > MOST_CATEGORIES

    return ColumnStats(
        Counter(rows | {"rows": len(column)}),
        Counter() if many else _pairs(pairs, pc.invert(absent)),
        _pairs(pairs, is_odd, MOST_ODD + 1),
        _pairs(pairs, pc.and_(absent, pc.not_equal(texts, ""))),  # for a null neither is true
        many,
        set() if cells else slashed_dates(texts),
    )


def _kinds_of_texts(texts: pa.Array, number: str, *, cells: bool) -> dict[str, pa.Array]:
    """Return kind -> which of different texts are of it; a text may be of two kinds.

    ``number`` is the pattern of numbers.
    """
    bare = pc.utf8_trim_whitespace(texts)
    absent = pc.is_in(bare, ABSENT_TEXTS) if cells else pc.is_in(texts, pa.array([""]))
    absent = pc.or_(absent, pc.is_null(texts))
    is_number = pc.and_(_matches(bare, number), pc.invert(absent))
    is_odd = pc.invert(pc.or_(is_number, absent))

    return {
        "missing": absent,
        "numbers": is_number,
        # no quantities: zeros in front, or too many digits
        "codes": pc.and_(is_number, _matches(bare, CODE)),
        "dates": pc.and_(is_odd, _matches(bare, DATE)),
        "booleans": pc.and_(is_odd, pc.is_in(pc.utf8_lower(bare), pa.array(["true", "false"]))),
    }


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


def columns_with_nan(scans: Sequence[TableScan], names: Collection[str]) -> set[str]:
    """Return those of some columns that have NaN in any part of any Parquet file, whose footers
    count nulls alone.

    Every part is read, as nothing else tells, but a column only till NaN is seen in it, and of
    floating-point numbers alone. In CSV a cell of ``nan`` is a text, which is counted otherwise.

    Raises D-errors of reading.
    """
    with_nan: set[str] = set()

    def look_at(part: FilePart, floating: Sequence[str]) -> None:
        left = [name for name in floating if name not in with_nan]
        for start in range(0, len(left), COLUMNS_AT_ONCE):
            chosen = left[start : start + COLUMNS_AT_ONCE]
            table = part.read_arrow(dict.fromkeys(chosen))
            with_nan.update(name for name in chosen if _has_nan(table[name]))

    with ThreadPoolExecutor(address.AT_ONCE) as pool:
        tasks = []
        for scan in scans:
            types = scan.types
            floating = [name for name in names if pa.types.is_floating(value_type(types[name]))]
            if floating:
                tasks += [pool.submit(look_at, part, floating) for part in scan.parts]
        for task in tasks:
            task.result()

    return with_nan


def _has_nan(column: pa.ChunkedArray) -> bool:
    """Tell whether a column of floating-point numbers of any width has NaN; null is none."""
    if column.type not in (pa.float32(), pa.float64()):
        column = column.cast(pa.float64())
    return bool(pc.any(pc.is_nan(column)).as_py())
