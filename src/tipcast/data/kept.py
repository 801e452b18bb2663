"""The columns of trips that scored files keep: as the file has them, in the file's order, row by row."""

from __future__ import annotations

from collections.abc import Sequence

import fsspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tipcast.backends.cpu import CSV_CHUNK, DATES, MISSING
from tipcast.config.errors import TipcastError
from tipcast.data import address
from tipcast.data.base import Fragment
from tipcast.data.delimited import find_fault
from tipcast.data.read import csv_block, refusal, undamaged
from tipcast.data.taxi import schema

ADDED = ("probability", "prediction", "model_name", "model_version")
"""What scoring adds; columns that are called so already, as of an earlier scoring, are left out."""
IDS = ("VendorID", *schema.ZONES)
"""Whole numbers of CSV files; all their other numbers become doubles."""


def read_kept(fragment: Fragment, keep: Sequence[str] | None, *, threads: bool = False) -> pa.Table:
    """Read what is kept of a fragment, on the host.

    Parameters
    ----------
    fragment
        What to read. Parquet columns keep their types. Of CSV, columns that the TLC has become times, whole numbers
        and doubles, all others stay text.
    keep
        Names as the file or as ``data.schema`` has them; None: every column but ``ADDED``.
    threads
        Whether to decode several columns at once.

    Returns
    -------
    pyarrow.Table
        In the fragment's row order, without the file's metadata.

    Raises
    ------
    TipcastError
        D001 gone, D005 damaged or a cell that does not parse, D007 a column the file lacks, D022 not reached.

    """
    table = _parquet(fragment, keep, threads) if fragment.format == "parquet" else _csv(fragment, keep, threads)
    return table.replace_schema_metadata(None)


def _parquet(fragment: Fragment, keep: Sequence[str] | None, threads: bool) -> pa.Table:
    with undamaged(fragment):
        if address.scheme(fragment.uri):
            with fsspec.open(fragment.uri, "rb", **fragment.options["storage"]) as remote:
                table = _row_groups(pq.ParquetFile(remote, page_checksum_verification=True), fragment, keep, threads)
        else:
            file = pq.ParquetFile(fragment.uri, memory_map=True, page_checksum_verification=True)
            table = _row_groups(file, fragment, keep, threads)
    return table


def _row_groups(file: pq.ParquetFile, fragment: Fragment, keep: Sequence[str] | None, threads: bool) -> pa.Table:
    names = file.schema_arrow.names
    chosen = _chosen(names, keep, fragment)
    every = chosen == names  # then no name is looked up: a dot in one would be taken for a path into a struct
    table = file.read_row_groups(list(fragment.part), columns=None if every else chosen, use_threads=threads)
    return table.select(chosen)


def _csv(fragment: Fragment, keep: Sequence[str] | None, threads: bool) -> pa.Table:
    options = fragment.options
    header = options["header"]
    chosen = _chosen([name for at, name in enumerate(header) if name != f"_{at}"], keep, fragment)
    known = {own: canonical for canonical, own in _canonical(header, fragment).items()}
    types = {name: _type(known.get(name)) for name in chosen}

    def parse(rows: bytes, columns: Sequence[str]) -> pa.Table:
        return pa.csv.read_csv(
            pa.BufferReader(rows),
            read_options=pa.csv.ReadOptions(use_threads=threads, block_size=CSV_CHUNK, column_names=list(header)),
            convert_options=pa.csv.ConvertOptions(
                include_columns=list(columns),
                column_types=types,
                null_values=MISSING,
                strings_can_be_null=True,
                timestamp_parsers=DATES[options["dates"]],
            ),
        )

    block = csv_block(fragment)
    try:
        table = parse(block, chosen or header[:1])
    except ValueError as problem:
        raise refusal(fragment, find_fault(block, header, chosen, parse), str(problem)) from problem
    for name in set(chosen) & {own for own, canonical in known.items() if canonical in IDS}:
        whole = table[name].cast(pa.int64(), safe=False)  # parsed as a double: some files write 1.0
        table = table.set_column(table.column_names.index(name), name, whole)
    return table.select(chosen)


def _type(canonical: str | None) -> pa.DataType:
    if canonical is None:
        return pa.string()
    return pa.timestamp("us") if canonical in schema.TIMES else pa.float64()


def _canonical(names: Sequence[str], fragment: Fragment) -> dict[str, str]:
    return schema.map_columns(names, address.shown(fragment.uri), (), schema.COLUMNS)


def _chosen(names: Sequence[str], keep: Sequence[str] | None, fragment: Fragment) -> list[str]:
    """Return the file's own names of what is kept, in the file's order."""
    if keep is None:
        return [name for name in names if name not in ADDED]
    canonical = _canonical(names, fragment)
    missing = [name for name in keep if name not in names and name not in canonical]
    if missing:
        raise TipcastError(
            "D007",
            address.shown(fragment.uri),
            f"missing {schema.named('column', missing)}, which keep names",
            "take what is missing out of keep, or use a file that has it",
        )
    wanted = {name if name in names else canonical[name] for name in keep}
    return [name for name in names if name in wanted]
