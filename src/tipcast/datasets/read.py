"""Reading one fragment on a worker: only the columns asked for, and damage told as one line that names the file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import fsspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tipcast.compute.base import Array, Frames
from tipcast.compute.cpu import MISSING
from tipcast.config.errors import TipcastError
from tipcast.datasets import address
from tipcast.datasets.base import Fragment
from tipcast.datasets.delimited import Fault, find_fault, pieces


def read_fragment(fragment: Fragment, frames: Frames, columns: Sequence[str] | None = None) -> dict[str, Array]:
    """Read columns of a fragment, all by default: canonical name -> (rows,) array of the frames' device.

    Times are int64 microseconds with the smallest int64 for null, numbers integer or float64 with NaN for null.

    Raises
    ------
    TipcastError
        D001 gone, D005 damaged, D007 a column the file lacks, D016 not UTF-8, D022 not reached.

    """
    wanted = tuple(fragment.columns if columns is None else columns)
    for name in wanted:
        if name not in fragment.columns:
            raise TipcastError(
                "D007", address.shown(fragment.uri), f"missing column {name!r}", "use a file that has it"
            )
    own = {name: fragment.columns[name] for name in wanted}
    read = _parquet(fragment, own, frames) if fragment.format == "parquet" else _csv(fragment, own, frames)
    return {name: read[spelling] for name, spelling in own.items()}


def _parquet(fragment: Fragment, own: Mapping[str, str], frames: Frames) -> dict[str, Array]:
    with undamaged(fragment):
        read = frames.read_parquet(fragment.uri, fragment.part, tuple(own.values()), fragment.options["storage"])
    if any(len(values) != fragment.rows for values in read.values()):
        raise _changed(fragment)
    return read


def _changed(fragment: Fragment) -> TipcastError:
    what = "has changed since it was listed"
    return TipcastError("D005", address.shown(fragment.uri), what, "let the file be while a job reads it")


@contextlib.contextmanager
def undamaged(fragment: Fragment) -> Iterator[None]:
    """Tell what a reader of Parquet raises in one line: D001 gone, D005 damaged, D022 not reached."""
    where = address.shown(fragment.uri)
    try:
        yield
    except FileNotFoundError as problem:
        raise TipcastError("D001", where, "is gone", "put the file back") from problem
    except (OSError, ValueError, RuntimeError, NotImplementedError) as problem:
        if "cuda error" in str(problem).lower():
            raise
        if address.scheme(fragment.uri):  # a remote end that fails looks like damage: see whether it still answers
            address.size(fragment.uri, fragment.options["storage"])
        groups = " to ".join(map(str, dict.fromkeys((fragment.part[0], fragment.part[-1]))))
        raise TipcastError("D005", where, f"row groups {groups} are damaged", "download or write it again") from problem


def csv_block(fragment: Fragment) -> bytes:
    """Return the rows of a CSV fragment as they are written; D001 gone, D005 changed or damaged, D022 not reached."""
    offset, length = fragment.part
    block = (
        _unpacked(fragment)[fragment.options["start"] :]
        if length < 0
        else address.read_range(fragment.uri, fragment.options["storage"], offset, length)
    )
    if 0 <= length != len(block):
        raise _changed(fragment)
    return block


def _csv(fragment: Fragment, own: Mapping[str, str], frames: Frames) -> dict[str, Array]:
    block = csv_block(fragment)
    options = fragment.options
    times = tuple(own[name] for name in options["times"] if name in own)

    def parse(rows: bytes, wanted: Sequence[str]) -> dict[str, Array]:
        return frames.read_csv(
            rows, options["header"], wanted, tuple(name for name in times if name in wanted), options["dates"]
        )

    try:
        return parse(block, tuple(own.values()))
    except ValueError as problem:
        raise refusal(
            fragment, find_fault(block, options["header"], tuple(own.values()), parse), str(problem)
        ) from problem


def _unpacked(fragment: Fragment) -> bytes:
    return b"".join(pieces(fragment.uri, fragment.options["storage"]))


def refusal(fragment: Fragment, fault: Fault | None, problem: str) -> TipcastError:
    """Return the error for a CSV block that does not parse, naming the line at fault where it was found."""
    where = address.shown(fragment.uri)
    if fault is None:
        return TipcastError("D005", where, f"does not parse: {problem}", "download it again")
    offset, length = fragment.part
    if length < 0:
        before = _unpacked(fragment)[: fragment.options["start"]]
    else:
        before = address.read_range(fragment.uri, fragment.options["storage"], 0, offset)
    line = f"line {before.count(10) + fault.line + 1}"
    if fault.encoding:
        what = f"{line}: column {fault.column!r} is not UTF-8"
        return TipcastError("D016", where, what, "convert the file, e.g. with iconv -f LATIN1 -t UTF-8")
    column = f": column {fault.column!r}:" if fault.column else ""
    return TipcastError(
        "D005", where, f"{line}{column} {fault.what}", "correct or remove that row, or download the file again"
    )


def read_texts(fragment: Fragment, names: Sequence[str]) -> pa.Table:
    """Read text columns of a fragment on the host."""
    if fragment.format == "csv":
        return parse_block(fragment, names, dict.fromkeys(names, pa.string()))
    with undamaged(fragment), fsspec.open(fragment.uri, "rb", **fragment.options["storage"]) as file:
        table = pq.ParquetFile(file).read_row_groups(list(fragment.part), columns=list(names), use_threads=False)
    return pa.table({name: table[name].cast(pa.string()) for name in names})


def parse_block(fragment: Fragment, names: Sequence[str] | None, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Parse columns of a CSV block on the host, all by default; types that are not given are as the values look."""
    header = fragment.options["header"]
    chosen = [name for name in fragment.columns if name in header] if names is None else list(names)

    def parse(rows: bytes, columns: Sequence[str]) -> pa.Table:
        return pa.csv.read_csv(
            pa.BufferReader(rows),
            read_options=pa.csv.ReadOptions(use_threads=False, column_names=list(header)),
            convert_options=pa.csv.ConvertOptions(
                include_columns=list(columns),
                column_types=dict(types),
                null_values=MISSING,
                strings_can_be_null=True,
                true_values=[],
                false_values=[],
            ),
        )

    block = csv_block(fragment)
    try:
        return parse(block, chosen)
    except ValueError as problem:
        raise refusal(fragment, find_fault(block, header, chosen, parse), str(problem)) from problem
