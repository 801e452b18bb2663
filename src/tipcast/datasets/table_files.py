"""Files of a table, held against the training files: whether their columns fit, and how they are
read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from tipcast.compute.base import Array, Frames
from tipcast.config.errors import TipcastError
from tipcast.datasets import address, table_values
from tipcast.datasets.arrow_types import is_text, kind_of
from tipcast.datasets.base import RawColumn
from tipcast.datasets.parts import FilePart
from tipcast.datasets.scan import ScanRequest
from tipcast.datasets.table_scan import TableScan


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table as training has them: files must have them so."""

    by_name: Mapping[str, RawColumn]
    """The time column apart."""
    time: str | None
    dates: str
    """How dates with slashes are written, a key of ``csv_cells.DATES``; empty: each file decides.
    """

    def type_of(self, name: str) -> str:
        """Return ``number``, ``category`` or ``time``."""
        return "time" if name == self.time else self.by_name[name].type

    def check(self, scan: TableScan, request: ScanRequest) -> None:
        """Refuse a file that lacks a column that it must have, D007, or has another type, D008."""
        where = address.shown(scan.uri)
        for name in request.columns:
            kind = scan.types.get(name)
            if kind is None:
                fix = (
                    "use a file that has it, or map the file's name "
                    f"by {request.key}={{{name}: ITS_NAME}}"
                )
                raise TipcastError("D007", where, f"missing column {name!r}", fix)
            if not self._fits(scan, name):
                what = f"column {name!r} is {kind}, where data.train has a {self.type_of(name)}"
                raise TipcastError("D008", where, what, "write it as the training files have it")

    def fitted(self, scan: TableScan, optional: Sequence[str] = ()) -> TableScan:
        """Return the scan of a file with the columns that its parts can read, and which of them the
        host has to.

        ``optional`` columns that do not fit are left out.
        """
        names = [name for name in scan.types if name not in optional or self._fits(scan, name)]
        first = scan.parts[0]
        spellings = {name: first.columns[name] for name in names}
        host = [name for name in names if self._is_of_host(first, name, scan.types[name])]

        parts = tuple(part.of_table(spellings, host, self.time, self.dates) for part in scan.parts)
        return replace(scan, parts=parts, notes=() if self.dates else scan.notes)

    def read(self, part: FilePart, frames: Frames, names: Sequence[str]) -> dict[str, Array]:
        """Read columns of a part, on the host those whose values a device does not read as they are
        stored.
        """
        if not names:
            return {}

        host = [name for name in names if name in part.host]
        plain = [name for name in names if name not in host]
        arrays, table = part.read_beside(frames, plain, host)
        where = address.shown(part.uri)

        for name in host:
            if name == self.time:  # the time may be days
                times = pa.table({name: table[name].cast(pa.timestamp("us"))})
                arrays |= frames.arrays(times, [name])
            else:
                column = self.by_name[name]
                values = table_values.values_of(table[name], column, where, part.place)
                arrays[name] = frames.xp.asarray(values)

        return {name: arrays[name] for name in names}

    def _fits(self, scan: TableScan, name: str) -> bool:
        """Whether the values of a file's column can be taken as training took them."""
        kind = scan.types[name]
        if not scan.parts[0].typed or pa.types.is_null(kind):
            return True
        if self.type_of(name) == "time":
            return kind_of(kind) == "time"
        return kind_of(kind) in ("number", "category")

    def _is_of_host(self, part: FilePart, name: str, kind: pa.DataType) -> bool:
        """Whether no device reads a column's values as they are stored."""
        if name == self.time:
            return part.typed and not pa.types.is_timestamp(kind)

        column = self.by_name.get(name)
        if column is None or column.type == "category":
            return column is not None
        return is_text(kind) and (part.typed or bool(column.booleans or column.missing))
