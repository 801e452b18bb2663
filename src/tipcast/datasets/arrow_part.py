"""Parts of typed files that Arrow reads as tables: what Feather and JSON lines have in common."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tipcast.compute.base import Array, Frames
from tipcast.datasets import address
from tipcast.datasets.arrow_types import plain_text
from tipcast.datasets.parts import CsvTypes, FilePart
from tipcast.datasets.text_form import table_in_one_form


@dataclass(frozen=True, kw_only=True)
class ArrowPart(FilePart):
    """Rows of a file whose columns have types."""

    names: tuple[str, ...]
    """Names of all columns, in the file's order."""
    typed = True

    @abstractmethod
    def table(self, names: Sequence[str]) -> pa.Table:
        """Read columns by the file's own names, on the host, in the types that the file has.

        At least one name is given. Raises D001 if the file is gone, D005 if it has changed or is
        damaged, D022 if it is not reached.
        """

    def read(self, frames: Frames, columns: Sequence[str] | None = None) -> dict[str, Array]:
        names = list(self.columns if columns is None else columns)
        return frames.arrays(self._canonical(names), names) if names else {}

    def read_arrow(self, types: Mapping[str, pa.DataType | None]) -> pa.Table:
        table = self._canonical(list(types))
        texts = [plain_text(column) for column in table.columns]
        table = pa.Table.from_arrays(texts, names=table.column_names)
        return table_in_one_form(table, address.shown(self.uri))

    def read_arrays_and_table(
        self, frames: Frames, array_columns: Sequence[str], table_columns: Sequence[str]
    ) -> tuple[dict[str, Array], pa.Table]:
        table = self.read_arrow(dict.fromkeys([*array_columns, *table_columns]))
        return frames.arrays(table, array_columns), table.select(list(table_columns))

    def read_as_stored(
        self, choose: Callable[[Sequence[str]], list[str]], csv_types: CsvTypes
    ) -> pa.Table:
        """Read columns of the types that the file has, without its metadata."""
        chosen = choose(self.names)
        table = self.table(chosen or self.names[:1])  # ``table`` takes no empty list
        return table.select(chosen).replace_schema_metadata(None)

    def _canonical(self, names: Sequence[str]) -> pa.Table:
        """Read canonical columns in the types that the file has."""
        spellings = [self.columns[name] for name in names]
        table = self.table(list(dict.fromkeys(spellings)))
        return pa.Table.from_arrays([table[spelling] for spelling in spellings], names=names)
