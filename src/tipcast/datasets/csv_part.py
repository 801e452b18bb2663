"""A part of a CSV file: reading its rows, and naming the line, column and cell at fault."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tipcast.compute.base import Array, Frames
from tipcast.config.errors import TipcastError
from tipcast.datasets import address, csv_cells
from tipcast.datasets.arrow_types import is_text, plain_text
from tipcast.datasets.csv_bytes import ends_within_quotes, last_open_quote, pieces, quoted_field
from tipcast.datasets.dialect import NAME_ENCODING, Dialect
from tipcast.datasets.listing import ScanRequest, seen_names
from tipcast.datasets.parts import CsvTypes, FilePart
from tipcast.datasets.text_form import table_in_one_form

_NO_BREAKS = bytes.maketrans(b"\r\n", b"  ")


@dataclass(frozen=True, kw_only=True)
class CsvPart(FilePart):
    """A byte range of a CSV file, or all rows of one that is compressed or not in UTF-8."""

    offset: int
    """Start of the first row, in bytes of the text in UTF-8."""
    length: int
    """Length in bytes; -1: to the end of a file that is read from its beginning."""
    header: tuple[str, ...]
    """One distinct name per field of a row."""
    times: tuple[str, ...] = ()
    """Canonical columns that hold times; all others are numbers where nothing else is asked for."""
    quoted: bool = False
    """Whether the file has quotes, within which lines may break."""
    dialect: Dialect = Dialect()
    file_format = "csv"
    typed = False

    @property
    def extent(self) -> tuple[int, ...]:
        return self.offset, self.length

    def for_table(
        self,
        columns: Mapping[str, str],
        decoded_on_host: Sequence[str],
        time: str | None,
        dates: str,
    ) -> Self:
        part = super().for_table(columns, decoded_on_host, time, dates)
        return replace(part, times=() if time is None else (time,))

    def read(self, frames: Frames, columns: Sequence[str] | None = None) -> dict[str, Array]:
        """Read numbers and times onto the frames' device; ``Dataset.read`` calls it for trips.

        Raises what ``read_file_columns`` raises.
        """
        names = tuple(self.columns if columns is None else columns)
        if not names:  # a table of texts alone: otherwise every column would be parsed
            return {}

        return frames.arrays(self.read_arrow(self._types(names)), names)

    def read_arrow(self, types: Mapping[str, pa.DataType | None]) -> pa.Table:
        """Read canonical columns on the host; ``read`` and ``read_arrays_and_table`` call it."""
        asked = {self.columns[name]: arrow_type for name, arrow_type in types.items()}
        table = self.read_file_columns(list(asked), asked)
        columns = [_without_blanks(plain_text(table[spelling])) for spelling in asked]
        table = pa.Table.from_arrays(columns, names=list(types))
        return table_in_one_form(table, address.shown(self.uri))

    def read_arrays_and_table(
        self, frames: Frames, array_columns: Sequence[str], table_columns: Sequence[str]
    ) -> tuple[dict[str, Array], pa.Table]:
        """Read all in one pass over the rows; ``ColumnReader.read`` calls it."""
        texts = dict.fromkeys(table_columns, pa.string())
        table = self.read_arrow({**self._types(array_columns), **texts})
        return frames.arrays(table, array_columns), table

    def _types(self, names: Sequence[str]) -> dict[str, pa.DataType | None]:
        return {name: pa.timestamp("us") if name in self.times else pa.float64() for name in names}

    def read_as_stored(
        self, choose: Callable[[Sequence[str]], list[str]], csv_types: CsvTypes
    ) -> pa.Table:
        """Read columns as ``csv_types`` says, empty texts as null; scoring calls it.

        Raises what ``read_file_columns`` raises.
        """
        # The reader calls columns without a name so.
        chosen = choose([name for at, name in enumerate(self.header) if name != f"_{at}"])
        types = self._stored_types(csv_types)
        # some files write 1.0
        read_types = {
            name: pa.float64() if arrow_type == pa.int64() else arrow_type
            for name, arrow_type in types.items()
        }
        table = self.read_file_columns(chosen or self.header[:1], read_types)
        columns = [
            _null_for_empty(column)
            if types[name] == pa.string()
            else column.cast(types[name], safe=False)
            for name, column in zip(table.column_names, table.columns, strict=True)
        ]

        return pa.Table.from_arrays(columns, names=table.column_names).select(chosen)

    def _stored_types(self, csv_types: CsvTypes) -> dict[str, pa.DataType]:
        """Return the type of each column by the file's own name."""
        where = address.shown(self.uri)
        mapped = ScanRequest((), names=self.column_names, strict=False)
        names = seen_names(self.header, mapped, where)
        types = csv_types([canonical for canonical, _ in names], where)
        # A column whose name another one is mapped to is not seen: it stays text.
        return dict.fromkeys(self.header, pa.string()) | {
            spelling: types[canonical] for canonical, spelling in names
        }

    def read_file_columns(
        self, spellings: Sequence[str], types: Mapping[str, pa.DataType | None]
    ) -> pa.Table:
        """Read columns by the file's own names, on the host by one thread: Dask runs one call per
        core.

        Numbers and times are null if a cell says one of ``csv_cells.MISSING_TEXTS``, apart from
        blanks around it; texts stay as they are. If a cell is not written as most are, numbers and
        times are read from texts. ``read_arrow`` and ``read_as_stored`` call it.

        Raises D001 if the file is gone, D005 if it has changed, is damaged, or a cell or row does
        not parse, D016 if it is not UTF-8, D022 if it is not reached.
        """
        block = self.block()
        if self.quoted and self.length < 0:  # such a file is looked at as it is read
            self.refuse_open_quote(block)
        elif not self.quoted and b'"' in block:  # the scan of a remote file read its beginning
            self.refuse_cut_quote(block)

        asked = {name: arrow_type for name, arrow_type in types.items() if arrow_type is not None}
        timeless = {
            name: pa.string() if pa.types.is_timestamp(arrow_type) else arrow_type
            for name, arrow_type in asked.items()
        }
        for attempt in (asked, timeless, dict.fromkeys(asked, pa.string())):
            try:
                table = self._parse_block(block, spellings, attempt)
            except ValueError as problem:
                fault = problem
                continue
            if not spellings:
                return table
            columns = [
                self._from_texts(block, name, table[name], asked.get(name)) for name in spellings
            ]
            return pa.Table.from_arrays(columns, names=list(spellings))

        raise self._at_fault(block, fault) from fault

    def _parse_block(
        self, block: bytes, spellings: Sequence[str], types: Mapping[str, pa.DataType]
    ) -> pa.Table:
        """Parse rows, times as ISO 8601 has them; ``read_file_columns`` calls it.

        Raises ValueError for a row or a cell that does not parse so.
        """
        reading = pa.csv.ReadOptions(
            use_threads=False,
            block_size=csv_cells.CSV_CHUNK,
            column_names=list(self.header),
        )
        convert = pa.csv.ConvertOptions(
            include_columns=list(spellings),
            column_types=dict(types),
            null_values=csv_cells.MISSING_TEXTS,
            strings_can_be_null=False,
            true_values=[],
            false_values=[],
            timestamp_parsers=[pa.csv.ISO8601],  # the only parser that knows how long months are
            decimal_point=self.dialect.decimal,
        )
        form = pa.csv.ParseOptions(
            delimiter=self.dialect.separator, newlines_in_values=b'"' in block
        )

        return pa.csv.read_csv(pa.BufferReader(block), reading, form, convert)

    def _from_texts(
        self, block: bytes, name: str, column: pa.ChunkedArray, arrow_type: pa.DataType | None
    ) -> pa.ChunkedArray:
        """Return a column as the type that is asked for, where it was read as text;
        ``read_file_columns`` calls it.

        Raises D005 with line, column and cell.
        """
        if arrow_type is None or column.type == arrow_type:
            return column

        is_number = pa.types.is_floating(arrow_type)
        values, row = (
            csv_cells.numbers(column, decimal=self.dialect.decimal)
            if is_number
            else csv_cells.times(column, self.dates)
        )
        if row is None:
            return values

        text = column[row].as_py()
        what = f"cannot read {text[:40]!r}"
        fix = "correct or remove that row, or download the file again"
        if is_number:
            what = f"{what} as a number"
            fix = "correct it, or leave it empty"
        elif csv_cells.OTHER_ZONE.search(text):
            what = f"{what}, a time in a zone other than UTC"
            fix = "write wall-clock time without a zone, such as 2019-02-01 18:30:00"
        elif values is not None:
            what = f"{what}: there is no such time"

        what = f"{self._line(block, row)}: column {name!r}: {what}"
        raise TipcastError("D005", address.shown(self.uri), what, fix)

    def block(self) -> bytes:
        """Return the bytes of all rows of the part. Raises D005 if the file has changed."""
        return self._bytes(self.offset, self.length)

    def _bytes(self, start: int, length: int) -> bytes:
        if self.length < 0:
            whole = b"".join(pieces(self.uri, self.storage, self.dialect.encoding))
            return whole[start:] if length < 0 else whole[start : start + length]

        block = address.read_range(self.uri, self.storage, start, length)
        if len(block) != length:
            raise address.changed(self.uri)
        return block

    def refuse_open_quote(self, block: bytes) -> None:
        """Refuse rows that end within quotes, of which pyarrow takes all that follows for one
        field. Raises D005.
        """
        if ends_within_quotes(block, self.dialect.separator):
            opening = last_open_quote(block, self.dialect.separator)
            line = self._bytes(0, self.offset).count(10) + block[:opening].count(10) + 1
            what = f"line {line}: an opening quote is never closed"
            fix = "close it, or double it inside quotes"
            raise TipcastError("D005", address.shown(self.uri), what, fix)

    def refuse_cut_quote(self, block: bytes) -> None:
        """Refuse a block that was cut within quotes, which the scan of a remote file cannot know.
        Raises D005.
        """
        if ends_within_quotes(block, self.dialect.separator):
            line = self._bytes(0, self.offset + len(block)).count(10)
            what = f"line {line} breaks inside quotes, though the file starts without quotes"
            fix = "copy the file to this machine, or compress it with gzip"
            raise TipcastError("D005", address.shown(self.uri), what, fix)

    def place(self, row: int) -> str:
        return self._line(self.block(), row)

    def _line(self, block: bytes, row: int) -> str:
        """Return in words the file's line at which a row of the block, counted from 0, begins."""
        before = self._bytes(0, self.offset)
        plain = block
        if b'"' in block:
            quoted = quoted_field(self.dialect.separator)
            plain = quoted.sub(lambda field: field[0].translate(_NO_BREAKS), block)

        starts = list[int]()
        start = 0
        for line in plain.splitlines(keepends=True):
            if line.strip(b"\r\n"):  # pyarrow counts no empty lines
                starts.append(start)
            start += len(line)

        within = block[: starts[row]].splitlines()
        return f"line {before.count(10) + len(within) + 1}"

    def _at_fault(self, block: bytes, problem: ValueError) -> TipcastError:
        """Return the error of a block that does not parse, which names the line and the column."""
        where = address.shown(self.uri)
        fault = csv_cells.FAULT.search(str(problem))
        if fault is None:
            return TipcastError("D005", where, f"cannot be parsed: {problem}", "download it again")

        line = self._line(block, int(fault["row"]) - 1)
        fix = "correct or remove that row, or download the file again"
        if not fault["column"]:
            what = f"{line} has {fault['fields']} fields, not {fault['expected']}"
            return TipcastError("D005", where, what, fix)

        column = f"column {self.header[int(fault['column'])]!r}"
        if fault["value"] is None or "\ufffd" in fault["value"]:
            return TipcastError("D016", where, f"{line}: {column} is not UTF-8", NAME_ENCODING)

        what = f"{line}: {column}: cannot read {fault['value'][:40]!r}"
        return TipcastError("D005", where, what, fix)


def _without_blanks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts without the blanks around them, as they stand after commas."""
    return pc.utf8_trim_whitespace(column) if is_text(column.type) else column


def _null_for_empty(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pc.equal(column, ""), None, column)
