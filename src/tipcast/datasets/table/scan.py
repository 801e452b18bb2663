"""The scan of one file of a table: types and names of all its columns, by the footer of Parquet,
the header of CSV, the schema of Feather or the lines of JSON, and its parts.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from tipcast.datasets import delimited, feather, json_lines, parquet
from tipcast.datasets.arrow_types import index_columns
from tipcast.datasets.find_files import format_of
from tipcast.datasets.listing import FileScan, ScanRequest


@dataclass(frozen=True)
class TableScan(FileScan):
    """What is learned of one file of a table."""

    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Canonical name -> the column's type as it is stored, text of all columns of CSV."""
    footer: parquet.Footer | None = None
    """None: the file is not Parquet, and its values are known once they are read; or what the
    footer tells has been counted.
    """
    index: Collection[str] = ()
    """Columns that were the index of a DataFrame."""
    written: Mapping[str, str] = field(default_factory=dict)
    """Canonical name -> the name as it stands in the header of a CSV file, blanks and all, as rows
    to predict may have it.
    """
    slashed: Collection[tuple[int, ...]] = ()
    """Distinct dates with slashes in a CSV file, as their three numbers."""
    dates_note: str = ""
    """A line on how the file alone says that they are read."""

    @property
    def rows(self) -> int:
        """Rows of the file, if a footer tells them; otherwise 0."""
        return 0 if self.footer is None else self.footer.rows

    @property
    def null_counts(self) -> dict[str, int]:
        """Canonical name -> rows without a value, if a footer tells them."""
        if self.footer is None:
            return {}
        nulls = self.footer.nulls
        spellings = self.parts[0].columns
        return {name: nulls[spelling] for name, spelling in spellings.items() if spelling in nulls}


def scan_as_stored(uri: str, request: ScanRequest) -> TableScan:
    """Look at a file as its format asks for, see ``SCANS``, and cut it into parts.

    ``Table.open`` calls it for training files, ``Table.scan_file`` for others, which must fit
    these. Raises D-errors with the file's name.
    """
    return SCANS[format_of(uri, SCANS)](uri, request)


def _scan_parquet(uri: str, request: ScanRequest) -> TableScan:
    footer = parquet.read_footer(uri, request)
    return TableScan(
        uri,
        footer.parts(dict(footer.names), None),
        None,
        footer.digest,
        types={name: footer.types[spelling] for name, spelling in footer.names},
        footer=footer,
        index={name for name, spelling in footer.names if spelling in footer.index},
    )


def _scan_csv(uri: str, request: ScanRequest) -> TableScan:
    csv = delimited.scan_csv(uri, request, None)
    header = csv.header
    names = dict(csv.names)
    written = dict(zip(header.names, header.written, strict=True))

    return TableScan(
        uri,
        csv.parts(names, None),
        None,
        csv.digest,
        header.notes,
        types=dict.fromkeys(names, pa.string()),
        # pandas writes an index without a name
        index=() if header.written[0].strip() else {header.names[0]},
        written={name: written.get(spelling, spelling) for name, spelling in csv.names},
        slashed=csv.slashed,
        dates_note=csv.dates_note,
    )


def _scan_feather(uri: str, request: ScanRequest) -> TableScan:
    file = feather.scan_feather(uri, request)
    index = index_columns(file.schema)
    return TableScan(
        uri,
        file.parts,
        None,
        file.digest,
        types={name: file.schema.field(spelling).type for name, spelling in file.names},
        index={
            name for name, spelling in file.names if spelling in index and name not in request.names
        },
    )


def _scan_json_lines(uri: str, request: ScanRequest) -> TableScan:
    part = json_lines.scan_json_lines(uri, request)
    types = {name: part.schema.field(spelling).type for name, spelling in part.columns.items()}
    return TableScan(uri, (part,), None, part.digest, types=types)


SCANS = {
    "parquet": _scan_parquet,
    "csv": _scan_csv,
    "feather": _scan_feather,
    "jsonl": _scan_json_lines,
}
"""Format -> how a file of a table is looked at."""
