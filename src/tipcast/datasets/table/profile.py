"""Profile of a table's training files, made on the driver before any worker starts: which columns
they have, how each is taken, and which numbers it may have.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from tipcast.compute.base import Array
from tipcast.compute.frames import CpuFrames
from tipcast.config.data_schema import TableData
from tipcast.config.errors import TipcastError, needs_value, unknown
from tipcast.datasets import address, delimited
from tipcast.datasets.arrow_types import column_type_of
from tipcast.datasets.base import RawColumn
from tipcast.datasets.find_files import named_by, request_of, scan_files
from tipcast.datasets.parquet import ParquetPart
from tipcast.datasets.parts import FilePart
from tipcast.datasets.table import column_types, time_split
from tipcast.datasets.table import dates as table_dates
from tipcast.datasets.table.column_stats import COLUMNS_AT_ONCE, ColumnStats, count_columns
from tipcast.datasets.table.column_types import ColumnDecision, StoredColumn
from tipcast.datasets.table.groups import check_type
from tipcast.datasets.table.reader import ColumnReader
from tipcast.datasets.table.scan import TableScan, scan_as_stored

MOST_PARTS = 4
INDEX = "it was the index of a DataFrame"
NO_NAMES = "its name is one of its values: if the first line is a row, add a line of names above it"
GROUPS = "rows with the same value stay on one side of the split (data.group)"
PARTIAL = "only some of the files have it"


@dataclass(frozen=True)
class Profile:
    """What the training files tell of a table; the fields are those of ``Table``."""

    columns: tuple[RawColumn, ...]
    notes: tuple[str, ...]
    dates: str
    decisions: Mapping[str, ColumnDecision]
    medians: Mapping[str, float]
    nan_in_sample: frozenset[str]


def scan_training_files(spec: TableData) -> tuple[list[TableScan], tuple[str, ...]]:
    """Find the training files and scan each; also return lines worth a log line.

    Raises C004 if no rows to test on are named, and what ``scan_files`` raises.
    """
    if spec.test is None and not spec.test_share:
        raise needs_value("data.test", "give files, or set data.test_share=0.2")

    return scan_files(named_by(spec, "train"), request_of(spec), "data.train", scan_as_stored)


def profile_training_files(spec: TableData, scans: Sequence[TableScan]) -> Profile:
    """Read what the columns of the training files hold, on the driver.

    In CSV every cell is read, in Parquet the columns of texts and those that no footer counts.
    """
    types = _shared_types(
        scans, {name for name, column_type in spec.types.items() if column_type == "none"}
    )
    _check_names(spec, types)
    stats = count_columns(scans, types, spec.decimal)
    _check_time(spec, scans[0], types, stats)

    all_columns = _shared_columns(spec, scans[0], types, stats)
    all_columns |= _unshared_columns(scans, types)
    if spec.group:
        check_type(spec.group, types[spec.group], address.shown(scans[0].uri))
        all_columns[spec.group] = _of_groups(all_columns[spec.group])
    features = [column for column in all_columns.values() if column.name != spec.time]
    columns = _chosen(features)
    table_dates.check_names(_chosen(all_columns.values()), all_columns, spec.time)
    dates, dates_note = _dates_of(scans, all_columns.values())
    reader = ColumnReader(
        {column.name: column for column in columns}, spec.time, dates, spec.decimal
    )
    medians, nan_in_sample = _look_at_numbers(scans, reader)

    notes = (*column_types.notes(features), *dates_note)
    return Profile(columns, notes, dates, all_columns, medians, nan_in_sample)


def _shared_types(scans: Sequence[TableScan], left_out: Collection[str]) -> dict[str, pa.DataType]:
    """Return the type of each column that all files have, indexes apart.

    A column without a value in one file has its type from another; those in ``left_out`` may have
    any.

    Raises D008 for a column of two types.
    """
    first = scans[0]
    types = dict(first.types)
    for scan in scans[1:]:
        _check_format(scan, first)

        for name in (types.keys() & scan.types.keys()) - set(left_out):
            arrow_type = scan.types[name]
            if pa.types.is_null(types[name]):
                types[name] = arrow_type
            elif not pa.types.is_null(arrow_type) and not _are_alike(types[name], arrow_type):
                what = (
                    f"column {name!r} is {arrow_type}, "
                    f"but {address.shown(first.uri)} has {types[name]}"
                )
                raise TipcastError(
                    "D008", address.shown(scan.uri), what, "write it with one type in all files"
                )

    shared = set(types).intersection(*(scan.types for scan in scans)) - set(first.index)
    return {name: arrow_type for name, arrow_type in types.items() if name in shared}


def _check_format(scan: TableScan, first: TableScan) -> None:
    """Refuse a file of another format than the first has. Raises D008."""
    file_format = scan.parts[0].file_format
    first_format = first.parts[0].file_format
    if file_format != first_format:
        what = f"is {file_format}, but {address.shown(first.uri)} is {first_format}"
        raise TipcastError(
            "D008", address.shown(scan.uri), what, "write all files of data.train in one format"
        )


def _are_alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether values of two types can be of one column."""
    return column_type_of(one) == column_type_of(other) and (
        pa.types.is_boolean(one) == pa.types.is_boolean(other)
    )


def _check_names(spec: TableData, types: Mapping[str, pa.DataType]) -> None:
    """Refuse columns of the configuration that the files do not have (D007), and groups of rows
    that are split by time (C003).
    """
    if spec.group and spec.time:
        what = "rows with a time are split by it, and their groups are not kept together"
        raise TipcastError("C003", "data.group", what, "leave out data.group or data.time")

    named: list[tuple[str, str | None]] = [("data.types", name) for name in spec.types]
    named += [("data.group", spec.group), ("data.time", spec.time)]
    for key, name in named:
        if name is not None and name not in types:
            raise unknown(key, "column", name, list(types), "D007")


def _check_time(
    spec: TableData,
    first: TableScan,
    types: Mapping[str, pa.DataType],
    stats: Mapping[str, ColumnStats],
) -> None:
    """Refuse a column of times that is empty or holds anything else. Raises D010 or D008."""
    time = spec.time
    if time is None:
        return
    if not stats[time].present:
        raise time_split.empty(first.uri, time)

    if first.parts[0].typed:
        are_times = column_type_of(types[time]) == "time"
        stored = types[time]
    else:
        are_times = stats[time].are_times
        stored = "text"

    if not are_times:
        what = f"column {time!r} is {stored}, not a timestamp"
        fix = "write it as 2019-02-28 13:05, or leave data.time out"
        raise TipcastError("D008", address.shown(first.uri), what, fix)


def _shared_columns(
    spec: TableData,
    first: TableScan,
    types: Mapping[str, pa.DataType],
    stats: Mapping[str, ColumnStats],
) -> dict[str, ColumnDecision]:
    """Decide how each column that all files have is taken."""
    cells = not first.parts[0].typed
    shared = {}
    for name, arrow_type in types.items():
        written = first.written.get(name, name)
        stored = StoredColumn(name, written, arrow_type, stats[name], cells)
        shared[name] = column_types.decide(stored, spec.types.get(name))

    # a header that is a row has values of its columns for names
    values = [
        column for column in shared.values() if column.column and column.name in column.stats.texts
    ]
    if cells and 2 * len(values) > len(shared):
        shared[values[0].name] = replace(values[0], note=NO_NAMES, warns=True)

    return shared


def _unshared_columns(
    scans: Sequence[TableScan], types: Mapping[str, pa.DataType]
) -> dict[str, ColumnDecision]:
    """Return the columns that only some files have, and those that were an index."""
    stored = {
        name: arrow_type for scan in reversed(scans) for name, arrow_type in scan.types.items()
    }
    index = scans[0].index
    return {
        name: ColumnDecision(
            name, None, str(arrow_type), ColumnStats(), INDEX if name in index else PARTIAL
        )
        for name, arrow_type in stored.items()
        if name not in types
    }


def _chosen(decisions: Iterable[ColumnDecision]) -> tuple[RawColumn, ...]:
    """Return the columns that a model can use."""
    return tuple(decision.column for decision in decisions if decision.column)


def _of_groups(column: ColumnDecision) -> ColumnDecision:
    """Return the column of the groups as one that is not a feature."""
    return replace(column, column=None, note=GROUPS, warns=False, may_be_date=False)


def _dates_of(
    scans: Sequence[TableScan], decisions: Iterable[ColumnDecision]
) -> tuple[str, list[str]]:
    """Return how the files write dates with slashes, see ``Table.dates``, and a line on it if they
    do.
    """
    slashed = {date for scan in scans for date in scan.slashed}
    for decision in decisions:
        if decision.column and decision.column.type == "date":
            slashed |= decision.stats.slashed
    if not slashed:
        return "", []
    dates, note = delimited.reading(slashed, None)
    return dates, [note]


def _look_at_numbers(
    scans: Sequence[TableScan], reader: ColumnReader
) -> tuple[dict[str, float], frozenset[str]]:
    """Read the columns of numbers and dates of at most ``MOST_PARTS`` parts, evenly spread over the
    files.

    Returns the median of each, of dates a whole day, and the columns among whose values is NaN.
    """
    columns = reader.by_name.values()
    numbers = [column.name for column in columns if column.type in ("number", "date")]
    parts = [part for scan in scans for part in reader.adapt_scan(scan).parts]

    medians = {}
    nan_in_sample = set()
    with ThreadPoolExecutor(address.AT_ONCE) as pool:
        for names in _read_together(numbers, parts):
            read = partial(reader.read, frames=CpuFrames(), names=names)
            values_of_parts = list(pool.map(read, _spread(parts)))
            for name in names:
                values = np.concatenate([part[name] for part in values_of_parts])
                if np.isnan(values).any():
                    nan_in_sample.add(name)
                medians[name] = _median(values, whole=reader.type_of(name) == "date")

    return medians, frozenset(nan_in_sample)


def _read_together(names: Sequence[str], parts: Sequence[FilePart]) -> list[Sequence[str]]:
    """Return the columns that are read at once: a few, so that wide tables do not fill the memory;
    all of files that are read row by row.
    """
    if not isinstance(parts[0], ParquetPart):
        return [names]
    return [
        names[start : start + COLUMNS_AT_ONCE] for start in range(0, len(names), COLUMNS_AT_ONCE)
    ]


def _median(values: Array, *, whole: bool) -> float:
    """Return the median of the finite values, 0 without any; of dates a whole day."""
    finite = values[np.isfinite(values)]
    median = float(np.median(finite)) if len(finite) else 0.0
    return float(np.floor(median)) if whole else median


def _spread(parts: Sequence[FilePart]) -> list[FilePart]:
    """Return at most ``MOST_PARTS`` parts from the first to the last."""
    places = np.linspace(0, len(parts) - 1, MOST_PARTS).astype(int)
    return [parts[at] for at in np.unique(places)]
