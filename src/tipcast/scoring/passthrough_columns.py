"""The columns of their input that scored files keep: as the file has them, in the file's order, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import fsspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tipcast.compute.cpu import CSV_CHUNK, DATES, MISSING
from tipcast.config.errors import TipcastError
from tipcast.datasets import address
from tipcast.datasets.base import Dataset, Fragment
from tipcast.datasets.delimited import parsed
from tipcast.datasets.parquet import undamaged
from tipcast.tasks.base import Task

Choose = Callable[[Sequence[str]], list[str]]
"""Of the names that a file has, those that are kept."""


def added_columns(task: Task) -> tuple[str, ...]:
    """Return the names of the columns that scoring adds."""
    predicted = {
        "classification": ("probability", "prediction"),
        "multiclass": (*(f"probability_{name}" for name in task.classes), "prediction"),
        "regression": ("prediction",),
        "clustering": ("cluster", "distance"),
    }[task.kind]
    return (*predicted, "model_name", "model_version")


def read_passthrough(
    fragment: Fragment, dataset: Dataset, keep: Sequence[str] | None, added: Sequence[str], *, threads: bool = False
) -> pa.Table:
    """Read what is kept of a fragment, on the host: in its row order, without the file's metadata.

    Parquet columns keep their types; those of CSV become what ``Dataset.csv_types`` says.

    Without names to keep it is every column that ``added`` does not name: those are of an earlier scoring. ``threads``
    decodes several columns at once.

    Raises
    ------
    TipcastError
        D001 gone, D005 damaged or a cell that does not parse, D007 a column the file lacks, D022 not reached.

    """
    read = _parquet if fragment.format == "parquet" else _csv
    return read(fragment, lambda names: _chosen(names, dataset, keep, added, fragment), dataset, threads)


def _parquet(fragment: Fragment, choose: Choose, dataset: Dataset, threads: bool) -> pa.Table:
    with undamaged(fragment):
        if address.scheme(fragment.uri):
            with fsspec.open(fragment.uri, "rb", **fragment.options["storage"]) as remote:
                return _row_groups(pq.ParquetFile(remote, page_checksum_verification=True), fragment, choose, threads)
        file = pq.ParquetFile(fragment.uri, memory_map=True, page_checksum_verification=True)
        return _row_groups(file, fragment, choose, threads)


def _row_groups(file: pq.ParquetFile, fragment: Fragment, choose: Choose, threads: bool) -> pa.Table:
    names = file.schema_arrow.names
    chosen = choose(names)
    every = chosen == names  # then no name is looked up: a dot in one would be taken for a path into a struct
    table = file.read_row_groups(list(fragment.part), columns=None if every else chosen, use_threads=threads)
    return table.select(chosen).replace_schema_metadata(None)


def _csv(fragment: Fragment, choose: Choose, dataset: Dataset, threads: bool) -> pa.Table:
    header = fragment.options["header"]
    chosen = choose([name for at, name in enumerate(header) if name != f"_{at}"])
    types = dataset.csv_types(header, address.shown(fragment.uri))
    whole = [name for name in chosen if types.get(name) == pa.int64()]  # some files write 1.0

    def parse(rows: bytes, columns: Sequence[str]) -> pa.Table:
        return pa.csv.read_csv(
            pa.BufferReader(rows),
            read_options=pa.csv.ReadOptions(use_threads=threads, block_size=CSV_CHUNK, column_names=list(header)),
            convert_options=pa.csv.ConvertOptions(
                include_columns=list(columns),
                column_types=types | dict.fromkeys(whole, pa.float64()),
                null_values=MISSING,
                strings_can_be_null=True,
                timestamp_parsers=DATES[fragment.options["dates"]],
            ),
        )

    table = parsed(fragment, chosen or header[:1], parse)
    for name in whole:
        table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.int64(), safe=False))
    return table.select(chosen)


def _chosen(
    names: Sequence[str], dataset: Dataset, keep: Sequence[str] | None, added: Sequence[str], fragment: Fragment
) -> list[str]:
    """Return the file's own names of what is kept, in the file's order."""
    if keep is None:
        return [name for name in names if name not in added]
    where = address.shown(fragment.uri)
    known = dataset.own_names(names, where)
    missing = [name for name in keep if name not in names and name not in known]
    if missing:
        what = f"missing column{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}, which keep names"
        raise TipcastError("D007", where, what, "take what is missing out of keep, or use a file that has it")
    wanted = {name if name in names else known[name] for name in keep}
    return [name for name in names if name in wanted]
