"""What a worker does in a scoring: read, score and write one file, part by part."""

import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import get_worker, secede
from distributed.core import Status

from tipcast.compute.base import Array, Frames, to_host
from tipcast.config.errors import TipcastError, travelling
from tipcast.datasets import address
from tipcast.datasets.base import Scorable
from tipcast.datasets.parts import FilePart, Fragment
from tipcast.evaluation import evaluator
from tipcast.models.native import Scorer
from tipcast.scoring.plan import Item, added_columns
from tipcast.scoring.writing import (
    FOOTER,
    MANIFEST,
    Entry,
    file_sha256,
    file_stamp,
    remove,
    written,
)
from tipcast.tasks.base import Task

ROW_GROUP = 1_000_000
"""Most rows of a row group that is written."""
GPU = threading.Lock()
"""Held while a worker's GPU is used: files are read and written on the host beside it."""
GPU_FILES = threading.BoundedSemaphore(8)
"""Files that a worker with a GPU has in hand at once."""
MISSING = -1.0
"""What features have where they are missing."""


@dataclass(frozen=True)
class Work:
    """What all tasks of a scoring share."""

    frames: Frames
    dataset: Scorable
    task: Task
    threshold: float | None
    """Of two classes: scores at or above it are predicted 1."""
    keep: Sequence[str] | None
    name: str
    """Of the model; its version is None where it is not registered."""
    version: str | None
    folder: str
    """That gets the scores."""
    storage: Mapping[str, Any]
    """For the folder, as ``address.storage`` returns them."""


@travelling
def score_file(
    item: Item, scorer: Scorer, work: Work, *, replaces: bool, threads: int
) -> tuple[Entry, Any]:
    """Score all rows of a file in their order; return also the evaluator's sums over them.

    The scores appear whole or not at all. Parts are scored on ``threads`` of this file's own while
    the parts before them are written. A worker with a GPU has several files in hand, so that its
    GPU does not wait for the host. Where the scores replace others, the manifest goes first. D005:
    the input has changed meanwhile; T008: see ``written``.
    """
    judge = evaluator(work.task.kind)
    unscored = Counter[str]()
    rows = 0
    # then a worker has one thread, for its GPU
    sums = judge.total([])
    on_gpu = work.frames.batch_rows > 0

    with GPU_FILES if on_gpu else nullcontext(), ThreadPoolExecutor(threads + 1) as pool:
        if on_gpu:
            secede()  # the worker begins its next file

        _check_task()
        # beside scoring: both need the file's pages
        digest = pool.submit(file_sha256, item.uri, item.storage)
        parts = ahead(pool, partial(score_part, scorer=scorer, work=work), item.fragments, threads)
        with written(f"{work.folder}/{item.name}", work.storage) as file:
            part: Any = next(parts)  # the first has the schema
            with pq.ParquetWriter(
                file, part[0].schema, compression="zstd", write_page_checksum=True
            ) as writer:
                while part:
                    _check_task()
                    table, reasons, counted = part
                    if table.num_rows:
                        writer.write_table(table, row_group_size=ROW_GROUP)
                    rows = rows + table.num_rows
                    sums = judge.total([sums, counted])
                    unscored.update(reasons)
                    part = next(parts, None)

                entry = replace(
                    item.entry, input_sha256=digest.result(), rows=rows, unscored=dict(unscored)
                )
                writer.add_key_value_metadata({FOOTER: json.dumps(entry.footer)})

            # or one file has scores of two contents
            if file_stamp(item.uri, item.storage) != entry.input_stamp:
                raise address.changed(item.uri)

            _check_task()
            if replaces:  # who follows the manifest must not find new scores under the old digests
                remove(f"{work.folder}/{MANIFEST}", work.storage)

    return replace(entry, bytes=file.size, sha256=file.digest.hexdigest()), sums


def ahead(
    pool: Executor, function: Callable[[Any], Any], items: Iterable[Any], most: int
) -> Iterator[Any]:
    """Apply a function to items on a pool's threads; yield what it returns in order, with ``most``
    on their way.

    ``Executor.map`` does so from Python 3.14 on, with ``buffersize``.
    """
    waiting: deque[Future[Any]] = deque()
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) > most:
            yield waiting.popleft().result()

    while waiting:
        yield waiting.popleft().result()


def _check_task() -> None:
    """Raise where nobody waits for this task any more: its worker is closing, or the job has ended
    without it.

    A task that runs outlives its job. It must not touch scores that a later job may be writing.
    """
    with suppress(ValueError, KeyError):  # called outside a task
        worker = get_worker()
        task = worker.state.tasks.get(worker.get_current_task())
        if (
            worker.status in (Status.closing, Status.closed)
            or task is None
            or task.state == "cancelled"
        ):
            raise CancelledError


def score_part(
    fragment: FilePart, scorer: Scorer, work: Work
) -> tuple[pa.Table, Mapping[str, int], Any]:
    """Score all rows of a fragment: return what is written, reason -> rows without prediction, the
    evaluator's sums.
    """
    with GPU if work.frames.batch_rows else nullcontext():
        predicted, bad, *counted = _predict(fragment, scorer, work)
    table = with_predictions(read_passthrough(fragment, work), predicted, bad, work)
    return table.combine_chunks(), *counted


def _predict(
    fragment: Fragment, scorer: Scorer, work: Work
) -> tuple[Any, Any, Mapping[str, int], Any]:
    """Return what ``Scorer.score`` makes of a fragment's rows and which are bad, on the host, and
    what is counted.
    """
    dataset = work.dataset
    frames = work.frames
    xp = work.frames.xp
    needed = dataset.needed_columns(work.task.features)
    wanted = dict.fromkeys((*filter(None, [dataset.time]), *needed, *work.task.columns))
    columns = dataset.read(fragment, frames, [name for name in wanted if name in fragment.columns])
    target = _target(columns, fragment, work)
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

    return to_host(predicted), None if bad is None else to_host(bad), unscored, sums


def _target(columns: dict[str, Array], fragment: Fragment, work: Work) -> Array | None:
    """Return the (rows,) target, -1 (classes) or NaN (values) for rows that training would drop;
    None: not known.
    """
    task = work.task
    xp = work.frames.xp
    # what has no answer, as fares of 0, is among the rows that are dropped
    with np.errstate(all="ignore"):
        target = task.target(columns, xp) if set(task.columns) <= set(columns) else None
        if target is None:
            return None
        keep, _ = work.dataset.clean(columns, fragment.period, xp)

    values: Array = target.astype(task.kind.target_dtype(xp.float64))
    if keep is not None:
        values[~keep] = task.kind.no_answer

    return values


def with_predictions(table: pa.Table, predicted: Any, bad: Any, work: Work) -> pa.Table:
    """Return a table of kept columns with what scoring adds; predictions are null where ``bad``,
    (rows,), is true.
    """
    columns = work.task.kind.scored_values(predicted, work.task.classes, work.threshold)
    arrays = [pa.array(column, mask=bad) for column in columns]
    arrays += [
        pa.repeat(pa.scalar(text, pa.string()), len(predicted))
        for text in (work.name, work.version)
    ]
    names = [*table.column_names, *added_columns(work.task)]
    return pa.Table.from_arrays([*table.columns, *arrays], names=names)


# The columns of their input that scored files keep: as the file has them, in the file's order, row
# by row


def read_passthrough(part: FilePart, work: Work) -> pa.Table:
    """Read what is kept of a part, on the host: in its row order, without the file's metadata.

    Parquet columns keep their types; those of CSV become what ``Scorable.csv_types`` says. D001
    gone, D005 damaged or a cell that does not parse, D007 a column the file lacks, D022 not
    reached.
    """
    return part.read_kept(lambda names: _chosen(names, part, work), work.dataset.csv_types)


def _chosen(names: Sequence[str], part: FilePart, work: Work) -> list[str]:
    """Return the file's own names of what is kept, in the file's order; by default all but an
    earlier scoring's.
    """
    if work.keep is None:
        return [name for name in names if name not in added_columns(work.task)]

    where = address.shown(part.uri)
    known = {**work.dataset.own_names(names, where), **part.columns, **part.column_names}
    missing = [name for name in work.keep if name not in names and name not in known]

    if missing:
        what = (
            "missing "
            f"column{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}, which "
            "keep names"
        )
        raise TipcastError(
            "D007", where, what, "take what is missing out of keep, or use a file that has it"
        )

    wanted = {name if name in names else known[name] for name in work.keep}
    return [name for name in names if name in wanted]
