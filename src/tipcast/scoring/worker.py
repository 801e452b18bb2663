"""What workers do in a scoring: score a fragment of a file into a part, put a file's parts together, digest inputs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import secede

from tipcast.compute.base import Array, Frames, to_host
from tipcast.config.errors import TipcastError, travelling
from tipcast.config.plain import redact
from tipcast.datasets import address
from tipcast.datasets.base import Dataset, Fragment, Period
from tipcast.datasets.column_names import NAMES
from tipcast.datasets.delimited import read_table
from tipcast.datasets.parquet import undamaged
from tipcast.evaluation.base import Evaluator, evaluator
from tipcast.models.base import Scorer
from tipcast.scoring.output_folder import MANIFEST, Entry
from tipcast.scoring.plan import Item
from tipcast.scoring.writing import (
    Footer,
    added_columns,
    file_sha256,
    file_stamp,
    join_parts,
    remove,
    write_part,
    written,
)
from tipcast.tasks.base import Task

WRITERS = threading.BoundedSemaphore(8)
"""Files that a worker with one thread for its device writes at once."""
MISSING = -1.0
"""What features have where they are missing."""
Choose = Callable[[Sequence[str]], list[str]]
"""Of the names that a file has, those that are kept."""


@dataclass(frozen=True)
class Work:
    """What all tasks of a scoring share."""

    dataset: Dataset
    task: Task
    threshold: float | None
    """Of two classes: scores at or above it are predicted 1."""
    keep: tuple[str, ...] | None
    name: str
    """Of the model; its version is None where it is not registered."""
    version: str | None
    compression: str
    folder: str
    """That gets the scores."""
    storage: Mapping[str, Any]
    """For the folder, as ``address.storage`` returns them."""
    recipe: str
    """Digest of all that the scores depend on beside their input."""
    edges: Sequence[float] | None
    """Of numbers: the (bins + 1,) edges of the bins that predictions are counted in."""

    @property
    def evaluator(self) -> Evaluator:
        """Of the task's kind."""
        return evaluator(self.task.kind)

    @property
    def needed(self) -> tuple[str, ...]:
        """Canonical columns that the features are made of."""
        return tuple(self.dataset.code.needed_columns(self.task.features))


@dataclass(frozen=True)
class Scored:
    """A part, or all parts of a file."""

    path: str
    """Of a part."""
    rows: int
    unscored: Mapping[str, int]
    """Reason -> rows whose prediction is null."""
    predictions: Any
    """What the evaluator counted."""
    seen: int
    """Labelled rows of the period that the model was trained on."""


@travelling
def score_fragment(
    fragment: Fragment, path: str, scorer: Scorer, frames: Frames, work: Work, seen: Period | None = None
) -> Scored:
    """Score all rows of one fragment and write them as a part of the file that gets its scores.

    ``seen`` is the period of the rows that the model was trained on, where this fragment's are of the same kind.
    """
    dataset, xp = work.dataset, frames.xp
    wanted = dict.fromkeys((*filter(None, [dataset.time]), *work.needed, *work.task.columns))
    columns = dataset.read(fragment, frames, [name for name in wanted if name in fragment.columns])
    target = _target(columns, fragment, frames, work)
    bad, unscored = dataset.code.impossible(columns, work.needed, xp)
    matrix, predicted = predict(columns, scorer, frames, work)
    good = slice(None) if bad is None else ~bad
    alone = frames.batch_rows > 0  # then a worker has one thread for its device, and the host's cores are idle
    kept = read_passthrough(fragment, dataset, work.keep, added_columns(work.task), threads=alone)
    table = with_predictions(kept, to_host(predicted), None if bad is None else to_host(bad), work)
    write_part(table, path, work.storage, threads=alone)
    return Scored(
        path=path,
        rows=len(matrix),
        unscored=unscored,
        predictions=work.evaluator.count(
            predicted[good],
            None if target is None else target[good],
            threshold=work.threshold,
            edges=work.edges,
        ),
        seen=0 if target is None or seen is None else _within(columns[str(dataset.time)][good], target[good], seen),
    )


def predict(columns: dict[str, Array], scorer: Scorer, frames: Frames, work: Work) -> tuple[Array, Array]:
    """Return features (rows, features) float32 and what ``Scorer.score`` makes of them, on the frames' device."""
    xp = frames.xp
    rows = len(next(iter(columns.values())))
    lacking = {name: xp.full(rows, np.nan) for name in work.needed if name not in columns}
    with np.errstate(all="ignore"):  # values that cannot be are found by ``impossible``
        matrix = work.dataset.compute(columns | lacking, work.task.features, xp)
    matrix[xp.isinf(matrix)] = MISSING  # some libraries refuse them, and all rows with them
    return matrix, scorer.score(frames.frame(matrix, work.task.features))


def _target(columns: dict[str, Array], fragment: Fragment, frames: Frames, work: Work) -> Array | None:
    """Return the (rows,) target, -1 (classes) or NaN (values) for rows that training would drop; None: not known."""
    if not work.task.has_target or not set(work.task.columns) <= set(columns):
        return None
    xp = frames.xp
    with np.errstate(all="ignore"):  # what has no answer, as fares of 0, is among the rows that are dropped
        keep, _ = work.dataset.clean(columns, fragment.period, xp)
        target = work.task.target(columns, xp)
    if target is None:
        return None
    values: Array = target.astype(xp.float64 if work.task.kind == "regression" else xp.int32)
    if keep is not None:
        values[~keep] = np.nan if work.task.kind == "regression" else -1
    return values


def _within(time: Array, target: Array, period: Period) -> int:
    """Count rows of a period whose target is known."""
    known = target >= 0 if target.dtype.kind == "i" else target == target
    return int((known & (time >= period[0]) & (time < period[1])).sum())


def with_predictions(table: pa.Table, predicted: Any, bad: Any, work: Work) -> pa.Table:
    """Return a table of kept columns with what scoring adds; predictions are null where ``bad``, (rows,), is true."""
    kind, classes = work.task.kind, work.task.classes
    if kind == "classification":
        values = [np.asarray(predicted, dtype=np.float64), (predicted >= work.threshold).astype(np.int8)]
    elif kind == "multiclass":
        values = [*np.asarray(predicted, dtype=np.float64).T, np.asarray(classes)[predicted.argmax(axis=1)]]
    elif kind == "clustering":
        values = [predicted[:, 0].astype(np.int32), np.asarray(predicted[:, 1], dtype=np.float64)]
    else:
        values = [np.asarray(predicted, dtype=np.float64)]
    arrays = [pa.array(each, mask=bad) for each in values]
    arrays += [pa.repeat(pa.scalar(said, pa.string()), len(predicted)) for said in (work.name, work.version)]
    added = dict(zip(added_columns(work.task), arrays, strict=True))
    if table.num_columns and table.num_rows != len(predicted):
        raise ValueError(f"{table.num_rows} rows were kept and {len(predicted)} scored")
    columns = dict(zip(table.column_names, table.columns, strict=True)) if table.num_columns else {}
    return pa.Table.from_arrays([*columns.values(), *added.values()], names=[*columns, *added])


@travelling
def join(
    item: Item,
    parts: Sequence[Scored],
    input_sha256: str,
    work: Work,
    *,
    input_storage: Mapping[str, Any],
    replaces: bool,
    alone: bool,
) -> tuple[Entry, Scored]:
    """Put a file's parts together, in their order, as its scores; they appear whole or not at all.

    Where they replace scores that the folder's manifest names, the manifest goes first. Where a worker is ``alone``
    with a device, several files are written beside the next one's scoring. D005: the input has changed meanwhile.
    """
    sums = total(parts, work.evaluator)
    footer = Footer(sums.rows, work.recipe, input_sha256, sums.unscored)
    path = f"{work.folder}/{item.name}"
    with WRITERS if alone else nullcontext():
        if alone:
            secede()  # once a writer is free: or the next files' parts pile up on the disk
        opened = [address.opened(part.path, work.storage) for part in parts]
        with written(path, work.storage) as file:
            rows, size, sha256 = join_parts(opened, file, work.compression, footer)
            if rows != sums.rows:
                what = f"{rows} rows of {sums.rows} are in its parts"
                raise TipcastError("T008", address.shown(path), what, "check the disk, and repeat the command")
            if file_stamp(item.uri, input_storage) != item.stamp:
                raise address.changed(item.uri)
            if replaces:
                remove(f"{work.folder}/{MANIFEST}", work.storage)
    stamp = file_stamp(path, work.storage) or ""
    entry = Entry(
        redact(item.uri), item.stamp, input_sha256, work.recipe, rows, size, sha256, stamp, dict(sums.unscored)
    )
    return entry, sums


def total(parts: Sequence[Scored], judge: Evaluator) -> Scored:
    """Return the sums of several parts, or files."""
    reasons = dict.fromkeys(reason for part in parts for reason in part.unscored)
    return Scored(
        path="",
        rows=sum(part.rows for part in parts),
        unscored={reason: sum(part.unscored.get(reason, 0) for part in parts) for reason in reasons},
        predictions=judge.total([part.predictions for part in parts]),
        seen=sum(part.seen for part in parts),
    )


@travelling
def digest(uri: str, storage: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a file that was scored."""
    return file_sha256(uri, storage)


# The columns of their input that scored files keep: as the file has them, in the file's order, row by row


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
    mapped = fragment.options.get(NAMES, {})
    seen = {name: name for name in header if name not in mapped} | {own: name for name, own in mapped.items()}
    told = dataset.csv_types([seen[name] for name in header if name in seen], address.shown(fragment.uri))
    types = {name: told[seen[name]] if name in seen else pa.string() for name in header}  # hidden by a mapped one: text
    whole = [name for name in chosen if types.get(name) == pa.int64()]  # some files write 1.0
    types |= dict.fromkeys(whole, pa.float64())
    table = read_table(fragment, chosen or header[:1], types, threads=threads)
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
    known = {**dataset.own_names(names, where), **fragment.columns, **fragment.options.get(NAMES, {})}
    missing = [name for name in keep if name not in names and name not in known]
    if missing:
        what = f"missing column{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}, which keep names"
        raise TipcastError("D007", where, what, "take what is missing out of keep, or use a file that has it")
    wanted = {name if name in names else known[name] for name in keep}
    return [name for name in names if name in wanted]
