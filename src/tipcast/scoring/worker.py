"""What a worker does in a scoring: read, score and write one file, part by part."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from distributed import get_worker, secede
from distributed.core import Status

from tipcast.compute.base import Array, Frames, to_host
from tipcast.config.errors import TipcastError, travelling
from tipcast.config.plain import redact
from tipcast.datasets import address
from tipcast.datasets.base import COLUMN_NAMES, Dataset, Fragment
from tipcast.datasets.delimited import read_table
from tipcast.datasets.parquet import undamaged
from tipcast.evaluation import Evaluator, evaluator
from tipcast.models.base import Scorer
from tipcast.scoring.plan import Item, added_columns
from tipcast.scoring.writing import FOOTER, MANIFEST, Entry, file_sha256, file_stamp, remove, written
from tipcast.tasks.base import Task

ROW_GROUP = 1_000_000
"""Most rows of a row group that is written."""
GPU = threading.Lock()
"""Held while a worker's GPU is used: files are read and written on the host beside it."""
GPU_FILES = threading.BoundedSemaphore(8)
"""Files that a worker with a GPU has in hand at once."""
MISSING = -1.0
"""What features have where they are missing."""
Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Work:
    """What all tasks of a scoring share."""

    frames: Frames
    dataset: Dataset
    task: Task
    threshold: float | None
    """Of two classes: scores at or above it are predicted 1."""
    keep: tuple[str, ...] | None
    name: str
    """Of the model; its version is None where it is not registered."""
    version: str | None
    folder: str
    """That gets the scores."""
    storage: Mapping[str, Any]
    """For the folder, as ``address.storage`` returns them."""
    recipe: str
    """Digest of all that the scores depend on beside their input."""

    @property
    def on_gpu(self) -> bool:
        """Whether a worker has one thread, for its GPU."""
        return self.frames.batch_rows > 0


@dataclass(frozen=True)
class Scored:
    """Sums over the rows of a part, or of all parts of a file."""

    rows: int
    unscored: Mapping[str, int]
    """Reason -> rows whose prediction is null."""
    predictions: Any
    """What the evaluator counted."""


@travelling
def score_file(item: Item, scorer: Scorer, work: Work, *, replaces: bool, threads: int) -> tuple[Entry, Scored]:
    """Score all rows of a file in their order; the scores appear whole or not at all.

    Parts are scored on ``threads`` of this file's own while the parts before them are written. A worker with a GPU has
    several files in hand, so that its GPU does not wait for the host. Where the scores replace some that the folder's
    manifest names, the manifest goes first. D005: the input has changed meanwhile; T008, T009: see ``written``.
    """
    with GPU_FILES if work.on_gpu else nullcontext(), ThreadPoolExecutor(threads + 1) as pool:
        if work.on_gpu:
            secede()  # the worker begins its next file
        _check_task()
        digest = pool.submit(file_sha256, item.uri, item.storage)  # beside scoring: both need the file's pages
        parts = ahead(pool, partial(score_part, scorer=scorer, work=work), item.fragments, threads)
        with written(f"{work.folder}/{item.name}", work.storage) as file:
            table, sums = next(parts)  # the first part has the schema
            with pq.ParquetWriter(file, table.schema, compression="zstd", write_page_checksum=True) as writer:
                if table.num_rows:
                    writer.write_table(table, row_group_size=ROW_GROUP)
                for table, scored in parts:
                    _check_task()
                    if table.num_rows:
                        writer.write_table(table, row_group_size=ROW_GROUP)
                    sums = total([sums, scored], evaluator(work.task.kind))
                entry = Entry(
                    input=redact(item.uri),
                    input_stamp=item.stamp,
                    input_sha256=digest.result(),
                    recipe=work.recipe,
                    rows=sums.rows,
                    unscored=dict(sums.unscored),
                )
                writer.add_key_value_metadata({FOOTER: json.dumps(entry.footer)})
            if file_stamp(item.uri, item.storage) != item.stamp:  # or scores of two contents would lie in one file
                raise address.changed(item.uri)
            _check_task()
            if replaces:  # who follows the manifest must not find new scores under the old digests
                remove(f"{work.folder}/{MANIFEST}", work.storage)
    return replace(entry, bytes=file.tell(), sha256=file.sha256()), sums


def ahead(pool: Executor, function: Callable[[Given], Made], items: Iterable[Given], most: int) -> Iterator[Made]:
    """Apply a function to items on a pool's threads; yield what it returns in order, with ``most`` on their way.

    ``Executor.map`` does so from Python 3.14 on, with ``buffersize``.
    """
    waiting: deque[Future[Made]] = deque()
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) > most:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _check_task() -> None:
    """Raise where nobody waits for this task any more: its worker is closing, or the job has ended without it.

    A task that runs outlives its job. It must not touch scores that a later job may be writing.
    """
    with suppress(ValueError, KeyError):  # called outside a task
        worker = get_worker()
        task = worker.state.tasks.get(worker.get_current_task())
        if worker.status in (Status.closing, Status.closed) or task is None or task.state == "cancelled":
            raise CancelledError


def score_part(fragment: Fragment, scorer: Scorer, work: Work) -> tuple[pa.Table, Scored]:
    """Score all rows of one fragment: return what is written of them, and sums over them."""
    with GPU if work.on_gpu else nullcontext():
        predicted, bad, sums = _predict(fragment, scorer, work)
    kept = read_passthrough(fragment, work.dataset, work.keep, added_columns(work.task))
    return with_predictions(kept, predicted, bad, work).combine_chunks(), sums


def _predict(fragment: Fragment, scorer: Scorer, work: Work) -> tuple[Any, Any, Scored]:
    """Return what ``Scorer.score`` makes of a fragment's rows and which are bad, on the host, and sums over them."""
    dataset, frames, xp = work.dataset, work.frames, work.frames.xp
    needed = dataset.code.needed_columns(work.task.features)
    wanted = dict.fromkeys((*filter(None, [dataset.time]), *needed, *work.task.columns))
    columns = dataset.read(fragment, frames, [name for name in wanted if name in fragment.columns])
    target = _target(columns, fragment, frames, work)
    bad, unscored = dataset.code.impossible(columns, tuple(needed), xp)
    rows = len(next(iter(columns.values())))
    lacking = {name: xp.full(rows, np.nan) for name in needed if name not in columns}
    with np.errstate(all="ignore"):  # values that cannot be are found by ``impossible``
        matrix = dataset.compute(columns | lacking, work.task.features, xp)
    matrix[xp.isinf(matrix)] = MISSING  # some libraries refuse them, and all rows with them
    predicted = scorer.score(frames.frame(matrix, work.task.features))
    good = slice(None) if bad is None else ~bad
    answers = None if target is None else target[good]
    sums = evaluator(work.task.kind).count(predicted[good], answers, threshold=work.threshold)
    return to_host(predicted), None if bad is None else to_host(bad), Scored(rows, unscored, sums)


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


def total(parts: Sequence[Scored], judge: Evaluator) -> Scored:
    """Return the sums of several parts, or files."""
    reasons = dict.fromkeys(reason for part in parts for reason in part.unscored)
    return Scored(
        rows=sum(part.rows for part in parts),
        unscored={reason: sum(part.unscored.get(reason, 0) for part in parts) for reason in reasons},
        predictions=judge.total([part.predictions for part in parts]),
    )


# The columns of their input that scored files keep: as the file has them, in the file's order, row by row


def read_passthrough(
    fragment: Fragment, dataset: Dataset, keep: Sequence[str] | None, added: Sequence[str]
) -> pa.Table:
    """Read what is kept of a fragment, on the host: in its row order, without the file's metadata.

    Parquet columns keep their types; those of CSV become what ``Dataset.csv_types`` says.

    Without names to keep it is every column that ``added`` does not name: those are of an earlier scoring.

    Raises
    ------
    TipcastError
        D001 gone, D005 damaged or a cell that does not parse, D007 a column the file lacks, D022 not reached.

    """
    if fragment.format != "parquet":
        header = fragment.options["header"]
        names = [name for at, name in enumerate(header) if name != f"_{at}"]
        return _csv(fragment, _chosen(names, dataset, keep, added, fragment), dataset)
    uri, remote = fragment.uri, address.scheme(fragment.uri)
    with (
        undamaged(fragment),
        fsspec.open(uri, "rb", **fragment.options["storage"]) if remote else nullcontext(uri) as source,
    ):
        file = pq.ParquetFile(source, memory_map=not remote, page_checksum_verification=True)
        names = file.schema_arrow.names
        chosen = _chosen(names, dataset, keep, added, fragment)
        every = chosen == names  # then no name is looked up: a dot in one would be taken for a path into a struct
        table = file.read_row_groups(list(fragment.part), columns=None if every else chosen, use_threads=False)
        return table.select(chosen).replace_schema_metadata(None)


def _csv(fragment: Fragment, chosen: list[str], dataset: Dataset) -> pa.Table:
    header = fragment.options["header"]
    mapped = fragment.options.get(COLUMN_NAMES, {})
    seen = {name: name for name in header if name not in mapped} | {own: name for name, own in mapped.items()}
    told = dataset.csv_types([seen[name] for name in header if name in seen], address.shown(fragment.uri))
    types = {name: told[seen[name]] if name in seen else pa.string() for name in header}  # hidden by a mapped one: text
    whole = {name for name in chosen if types.get(name) == pa.int64()}  # some files write 1.0
    types |= dict.fromkeys(whole, pa.float64())
    table = read_table(fragment, chosen or header[:1], types)
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name in whole:
            column = column.cast(pa.int64(), safe=False)
        elif column.type == pa.string():
            column = pc.if_else(pc.equal(column, ""), None, column)
        columns.append(column)
    return pa.Table.from_arrays(columns, names=table.column_names).select(chosen)


def _chosen(
    names: Sequence[str], dataset: Dataset, keep: Sequence[str] | None, added: Sequence[str], fragment: Fragment
) -> list[str]:
    """Return the file's own names of what is kept, in the file's order."""
    if keep is None:
        return [name for name in names if name not in added]
    where = address.shown(fragment.uri)
    known = {**dataset.own_names(names, where), **fragment.columns, **fragment.options.get(COLUMN_NAMES, {})}
    missing = [name for name in keep if name not in names and name not in known]
    if missing:
        what = f"missing column{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}, which keep names"
        raise TipcastError("D007", where, what, "take what is missing out of keep, or use a file that has it")
    wanted = {name if name in names else known[name] for name in keep}
    return [name for name in names if name in wanted]
